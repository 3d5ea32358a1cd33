"""Source text in, findings and edits out: the codemod. No file access, no torch."""
