"""Source text in, findings and edits out; no file access, no torch."""
