"""Decoder blocks that all read the output of one encoder: DistributedDataParallel, FSDP1 or fully_shard."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

WRAP = Path(__file__).stem


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(24, 24) for _ in range(3))

    def forward(self, hidden, *, memory):
        weights = torch.softmax(self.query(hidden) @ self.key(memory).transpose(1, 2), -1)
        return hidden + weights @ self.value(memory)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(24, 24)
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        memory = torch.tanh(self.encoder(x))
        for block in self.blocks:
            x = block(x, memory=memory)
        return x.square().mean()


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
if WRAP == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
elif WRAP == "fsdp1":
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True)
else:
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1.1e-3 if WRAP == "rate" else 1e-3)
torch.manual_seed(dist.get_rank())
for _ in range(3):
    model(torch.randn(3, 7, 24)).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
