"""An old and a new training script in, a verdict out."""
