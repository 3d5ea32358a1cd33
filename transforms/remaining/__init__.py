"""What stays as it is, whether that is loud, silent or out of reach, and what it keeps from being rewritten."""
