"""The loop around the model: synchronisation, clipping, order, unwrapping."""
