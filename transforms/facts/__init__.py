"""One file at a time: a small picklable summary of names, calls and assignments."""
