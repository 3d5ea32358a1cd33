"""to-fsdp2: what a user runs."""
