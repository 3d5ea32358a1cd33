"""Trains one small model as DDP, FSDP1 and FSDP2 and saves it in every form that the checkpoint tests read.

Run by torchrun with two ranks; the only argument is the directory to write to. The three trainings are the
same, bit for bit, so that files of different forms can be compared with one another.
"""

import copy
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

STEPS = 3
VALUES = {"step": STEPS, "config": {"width": 6, "name": "small"}}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(self.norm(x)) * self.scale


class Net(nn.Module):
    """Uneven shards (11 rows on 2 ranks), a buffer, and an output tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList(Block(6) for _ in range(2))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Two groups by name, so that the order of the optimizer is not the order of the model."""
    decayed = [p for name, p in model.named_parameters() if "norm" not in name and "bias" not in name]
    others = [p for name, p in model.named_parameters() if "norm" in name or "bias" in name]
    return torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    generator = torch.Generator().manual_seed(17 + dist.get_rank())
    for _ in range(STEPS):
        tokens = torch.randint(0, 11, (4, 5), generator=generator)
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.reshape(-1, 11), tokens[:, 1:].reshape(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()


def save(path: Path, content: object) -> None:
    if dist.get_rank() == 0:
        torch.save(content, path)


def with_ddp(model: nn.Module, out: Path) -> None:
    wrapped = DistributedDataParallel(model)
    optimizer = build_optimizer(wrapped)
    train(wrapped, optimizer)
    save(out / "ddp.pt", {"model": wrapped.state_dict(), "optimizer": optimizer.state_dict(), **VALUES})
    save(out / "ddp_clean.pt", {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **VALUES})
    if dist.get_rank() == 0:
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **VALUES}
        torch.save(content, out / "ddp_legacy.pt", _use_new_zipfile_serialization=False)
        named = {id(p): name for name, p in model.named_parameters()}
        order = [[named[id(p)] for p in group["params"]] for group in optimizer.param_groups]
        (out / "order.json").write_text(json.dumps(order))


def with_fsdp1(model: nn.Module, out: Path, flat: bool) -> None:
    wrapped = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        use_orig_params=not flat,
    )
    optimizer = (
        torch.optim.AdamW(wrapped.parameters(), lr=1e-2, weight_decay=0.0)
        if flat
        else build_optimizer(wrapped)
    )
    train(wrapped, optimizer)
    name = "fsdp1_flat" if flat else "fsdp1"
    full, full_optimizer = (
        FullStateDictConfig(offload_to_cpu=False),
        FullOptimStateDictConfig(offload_to_cpu=False),
    )
    with FullyShardedDataParallel.state_dict_type(
        wrapped, StateDictType.FULL_STATE_DICT, full, full_optimizer
    ):
        state, optimizer_state = (
            wrapped.state_dict(),
            FullyShardedDataParallel.optim_state_dict(wrapped, optimizer),
        )
        content = {"model": state, "optimizer": optimizer_state, **VALUES}
        save(out / f"{name}_full.pt", copy.deepcopy(content))
    sharded, sharded_optimizer = ShardedStateDictConfig(), ShardedOptimStateDictConfig()
    with FullyShardedDataParallel.state_dict_type(
        wrapped, StateDictType.SHARDED_STATE_DICT, sharded, sharded_optimizer
    ):
        state, optimizer_state = (
            wrapped.state_dict(),
            FullyShardedDataParallel.optim_state_dict(wrapped, optimizer),
        )
        content = {"model": state, "optimizer": optimizer_state, **VALUES}
        torch.save(content, out / f"{name}_sharded_rank{dist.get_rank()}.pt")
        dcp.save(content, checkpoint_id=out / f"{name}_dcp")
    with FullyShardedDataParallel.state_dict_type(wrapped, StateDictType.LOCAL_STATE_DICT):
        torch.save({"model": wrapped.state_dict()}, out / f"{name}_local_rank{dist.get_rank()}.pt")


def with_fsdp2(model: nn.Module, out: Path) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = build_optimizer(model)
    train(model, optimizer)
    options = StateDictOptions(full_state_dict=True)
    state = get_model_state_dict(model, options=options)
    optimizer_state = get_optimizer_state_dict(model, optimizer, options=options)
    content = {"model": state, "optimizer": optimizer_state, **VALUES}
    save(out / "fsdp2_full.pt", content)
    save(
        out / "fsdp2_prefixed.pt",
        {**content, "model": {f"module.{key}": value for key, value in state.items()}},
    )
    flattened = get_optimizer_state_dict(
        model, optimizer, options=StateDictOptions(full_state_dict=True, flatten_optimizer_state_dict=True)
    )
    save(out / "fsdp2_flattened.pt", {**content, "optimizer": flattened})
    sharded_model, sharded_optimizer = get_state_dict(model, optimizer)
    sharded = {"model": sharded_model, "optimizer": sharded_optimizer, **VALUES}
    dcp.save(sharded, checkpoint_id=out / "fsdp2_dcp")
    torch.save(sharded, out / f"fsdp2_sharded_rank{dist.get_rank()}.pt")
    save(out / "fsdp2_rank0_dtensors.pt", {**content, "model": model.state_dict()})
    local = {
        key: value.to_local() if hasattr(value, "to_local") else value for key, value in sharded_model.items()
    }
    save(out / "fsdp2_local.pt", {**content, "model": local})
    save(out / "fsdp2_without_buffers.pt", {**content, "model": dict(model_parameters(state))})
    save(out / "fsdp2_without_optimizer.pt", {"model": state, **VALUES})
    save(out / "fsdp2_empty_optimizer.pt", {**content, "optimizer": {**optimizer_state, "state": {}}})
    save(out / "fsdp2_cast.pt", {**content, "model": {key: value.bfloat16() for key, value in state.items()}})
    untied = {key: value for key, value in state.items() if key != "head.weight"}
    save(out / "fsdp2_untied.pt", {**content, "model": untied})


def model_parameters(state: dict) -> list:
    return [(key, value) for key, value in state.items() if not key.endswith("scale")]


def main() -> None:
    out = Path(sys.argv[1])
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    model = Net()
    with_ddp(copy.deepcopy(model), out)
    with_fsdp1(copy.deepcopy(model), out, flat=False)
    with_fsdp1(copy.deepcopy(model), out, flat=True)
    with_fsdp2(copy.deepcopy(model), out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
