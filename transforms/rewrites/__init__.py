"""What rules are made of: changes of libcst nodes, one pass a file."""
