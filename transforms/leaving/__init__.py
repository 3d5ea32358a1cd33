"""What goes along with what is rewritten: variables, expressions and names that nothing needs any more."""
