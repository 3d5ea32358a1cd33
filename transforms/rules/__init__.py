"""One small file a rule: what, why, idiom, fallback, examples."""
