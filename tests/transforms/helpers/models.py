"""Small models in every wrapping, batches, and whole copies of what they hold."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP

VOCABULARY, WIDTH = 13, 6  # odd, so that shards are uneven

torch.set_num_threads(1)


def record_wrapper(module: Any, kind: str) -> None:
    """What sharding in place of a wrapper notes."""
    module._wrapped_like = kind


def wrapper_of(module: Any) -> str | None:
    return getattr(module, "_wrapped_like", None)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 9), nn.Linear(9, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Tied embedding and head, blocks; on request BatchNorm, dropout and a parameter for `ignored`."""

    def __init__(self, batch_norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.bn = nn.BatchNorm1d(WIDTH) if batch_norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        x = self.emb(ids)
        for layer in self.layers:
            x = self.drop(layer(x))
        logits = self.head(self.bn(x) * self.scale)
        return logits if targets is None else F.cross_entropy(logits, targets)


def build(kind: str, ignored: bool = False, like: str | None = None, **options: Any) -> Any:
    """`Net` as plain | ddp | fsdp1 | fsdp2 (of `like`: what wrapped_like says)."""
    torch.manual_seed(0)
    net: Any = Net(**options)
    skipped = {net.scale, *net.layers[0].norm.parameters()} if ignored else set()
    if kind == "ddp":
        return DDP(net)
    if kind == "fsdp1":
        policy = ModuleWrapPolicy({Block})
        return FSDP(net, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu"), ignored_states=skipped)
    if kind == "fsdp2":
        for layer in net.layers:
            fully_shard(layer, ignored_params=skipped)
        fully_shard(net, ignored_params=skipped)
        if like:
            record_wrapper(net, like)
    return net


def batch(step: int, rank: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Another one on each rank."""
    generator = torch.Generator().manual_seed(100 * step + (dist.get_rank() if rank is None else rank))
    ids = torch.randint(0, VOCABULARY, (2, 8), generator=generator)
    return ids[0], ids[1]


def clean(name: str) -> str:
    return name.removeprefix("module.").replace("_fsdp_wrapped_module.", "").replace("_orig_mod.", "")


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def parameters_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Whole copies, from the shards."""
    if isinstance(model, FSDP):
        with FSDP.summon_full_params(model, writeback=False):
            return {clean(name): p.detach().clone() for name, p in model.named_parameters()}
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    return {clean(name): whole(p) for name, p in model.named_parameters()}


def gradients_of(model: nn.Module) -> dict[str, torch.Tensor | None]:
    """Whole copies of the gradients of a model that is no FSDP1 model."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    return {clean(name): None if p.grad is None else whole(p.grad) for name, p in model.named_parameters()}


def close(one: Any, other: Any, tolerance: float = 1e-6) -> bool:
    """Numbers, tensors, and lists and dicts of them."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key], tolerance) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(close(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if one is None or other is None:
        return one is other
    one, other = torch.as_tensor(one), torch.as_tensor(other)
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), rtol=tolerance, atol=tolerance)


def gathered(value: Any) -> list[Any]:
    """Every rank's value."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def error_of(call: Any) -> BaseException | None:
    try:
        call()
    except Exception as error:
        return error
    return None
