"""Never reached: snapshots go to disk."""
