"""What a wrap becomes: the plan of its sharding, and the statements that carry it out."""
