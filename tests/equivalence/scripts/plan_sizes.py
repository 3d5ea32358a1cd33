"""What the tests of plan predict; run by torchrun, it counts the collectives of a real step instead."""

import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

WIDTH, BLOCKS, CLASSES = 256, 4, 10
BLOCK_PARAMETERS = 8 * WIDTH * WIDTH + 5 * WIDTH
PARAMETERS = BLOCKS * BLOCK_PARAMETERS + WIDTH * CLASSES + CLASSES


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def trained(model, accumulation=1):
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(512, WIDTH)

    def step():
        for _ in range(accumulation):
            loss = model(x).square().mean()
            loss.backward()
        if isinstance(model, FullyShardedDataParallel):
            model.clip_grad_norm_(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return f"{loss.item():.3f}"

    return model, optimizer, step


def sharded(model, accumulation=1, **options):
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return trained(model, accumulation)


def full():
    return sharded(Net())


def half():
    return sharded(Net(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def kept():
    return sharded(Net(), reshard_after_forward=False)


def accumulated():
    return sharded(Net(), accumulation=3)


def hybrid():
    shape = (dist.get_world_size() // 4, 4)
    return sharded(Net(), mesh=init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")))


def checkpointed():
    model = Net()
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    return sharded(model)


def plain():
    return trained(Net())


def plain_accumulated():
    return trained(Net(), accumulation=3)


def fsdp1():
    model = FullyShardedDataParallel(
        Net(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"), use_orig_params=True
    )
    return trained(model)


def main() -> None:
    dist.init_process_group("gloo")
    counted = {}
    for build in (full, accumulated, kept):
        _, _, step = build()
        step()
        with torch.profiler.profile() as profile:
            step()
        counted[build.__name__] = {e.key: e.count for e in profile.key_averages() if e.key.startswith("c10d::")}
    if os.environ["RANK"] == "0":
        print("COUNTED " + json.dumps(counted))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
