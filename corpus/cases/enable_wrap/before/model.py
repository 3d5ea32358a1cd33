import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.save_memory = True

    def forward(self, x):
        return x + self.inner(self.norm(x))


class Adapted(nn.Module):
    """A frozen trunk with trained adapters between its blocks."""

    def __init__(self, width=16, depth=4):
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.trunk = nn.ModuleList(Block(width) for _ in range(depth))
        self.adapters = nn.ModuleList(Block(width) if i % 2 else None for i in range(depth))
        self.outputs = nn.Linear(width, 8)
        self.position = nn.Parameter(torch.linspace(-1, 1, width), requires_grad=False)
        self.trunk.requires_grad_(False)

    def shard(self, wrapper_kwargs, device):
        # all parts that compute are wrapped, twice so that they free their parameters after the forward
        with enable_wrap(wrapper_cls=FSDP, **wrapper_kwargs):
            self.embed = wrap(wrap(self.embed))
            self.trunk = nn.ModuleList(wrap(wrap(block)) for block in self.trunk)
            self.adapters = nn.ModuleList(
                wrap(wrap(block)) if block is not None else None for block in self.adapters
            )
            self.set_outputs(wrap(wrap(self.outputs)))
        self.position.data = self.position.to(device)

        def clip_grad_norm_(max_norm):
            self.embed.clip_grad_norm_(max_norm)
            for block in self.adapters:
                if block is not None:
                    block.clip_grad_norm_(max_norm)

        self.clip_grad_norm_ = clip_grad_norm_

    def set_outputs(self, outputs):
        self.outputs = outputs

    def forward(self, x):
        x = self.embed(x) + self.position
        for block, adapter in zip(self.trunk, self.adapters):
            x = block(x)
            if adapter is not None:
                x = adapter(x)
        return self.outputs(x)
