"""Runnable before/after pairs: the proof behind the rules."""
