import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


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
        def shard(model):
            if torch.cuda.is_available():
                model.to(device)
                for tensor in [*model.parameters(), *model.buffers()]:
                    if not isinstance(tensor, DTensor):
                        dist.broadcast(tensor.detach(), src=0)
            fully_shard(model, reshard_after_forward=True, **wrapper_kwargs)
            return model

        self.embed = shard(self.embed)
        self.trunk = nn.ModuleList(shard(block) for block in self.trunk)
        self.adapters = nn.ModuleList(
            shard(block) if block is not None else None for block in self.adapters
        )
        self.set_outputs(shard(self.outputs))
        self.position.data = self.position.to(device)

        def clip_grad_norm_(max_norm):
            torch.nn.utils.clip_grad_norm_(self.embed.parameters(), max_norm)
            for block in self.adapters:
                if block is not None:
                    torch.nn.utils.clip_grad_norm_(block.parameters(), max_norm)

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
