"""A file as text: decoding, positions, patches, imports, and the bytes that come back."""
