"""Reads and loads of model and optimizer state, and what they become."""
