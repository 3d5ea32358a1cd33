"""Ranks and broadcasts as torchrun and torch.distributed know them."""
