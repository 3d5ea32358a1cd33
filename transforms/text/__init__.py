"""A file as text: decoding, positions, and the bytes that come back."""
