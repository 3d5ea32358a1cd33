"""What only some ranks do, and how it becomes what all ranks do."""
