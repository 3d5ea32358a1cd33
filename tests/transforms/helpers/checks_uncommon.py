"""The helpers on uncommon meshes, outputs and orders of calls, on two ranks. Run by test_uncommon.py."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from models import Block, Net, batch, build, close, gradients_of, parameters_of, record_wrapper
from to_fsdp2.transforms.helpers.clipping import clip_grad_norm, clip_model_grad_norm
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.full_parameters import apply_to_full, full_parameters
from to_fsdp2.transforms.helpers.gradients import no_gradient_sync, set_gradient_sync
from to_fsdp2.transforms.helpers.join import join, until_all_ranks_finish
from to_fsdp2.transforms.helpers.parameters import assign_data, handle_parameters, resharded
from to_fsdp2.transforms.helpers.ranks import on_all_ranks
from to_fsdp2.transforms.helpers.scaling import sharded_grad_scaler
from to_fsdp2.transforms.helpers.shard import shard_like_fsdp1
from to_fsdp2.transforms.helpers.stops import holds_shards
from to_fsdp2.transforms.helpers.strategy import compute_device_of, mixed_precision_of, strategy_of
from to_fsdp2.transforms.helpers.units import units
from to_fsdp2.transforms.helpers.zero_gradients import reset_shards_in_zero_grad
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecision, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def sharded(kind: str, like: str = "ddp") -> Any:
    torch.manual_seed(0)
    net: Any = Net()
    if kind == "like ddp":
        return shard_like_ddp(net)
    names = ("replicate", "shard")
    arguments: dict[str, Any] = {
        "hybrid": {"mesh": init_device_mesh("cpu", (1, 2), mesh_dim_names=names)},
        "unsharded": {"mesh": init_device_mesh("cpu", (2, 1), mesh_dim_names=names)},
        "replicate": {},
        "offload": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
        "gathered": {"reshard_after_forward": False},
        "frozen": {},
    }[kind]
    if kind == "frozen":
        net.layers[0].requires_grad_(False)
    for module in (*net.layers, net):
        replicate(module) if kind == "replicate" else fully_shard(module, **arguments)
    record_wrapper(net, like)
    return net


KINDS = ("hybrid", "unsharded", "replicate", "offload", "gathered", "frozen", "like ddp")


def used(model: Any) -> list[Any]:
    """Everything once, in the course of a training."""
    on_all_ranks(model, "start")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, foreach=False)
    scaler = sharded_grad_scaler("cpu", init_scale=8.0)
    seen: list[Any] = []
    for step in range(3):
        for micro in range(2):
            with contextlib.nullcontext() if micro else no_gradient_sync(model):
                scaler.scale(model(*batch(2 * step + micro))).backward()
            if not micro:
                with full_parameters(model, writeback=False):
                    seen.append([p.norm().item() for p in model.parameters()])
        scaler.unscale_(optimizer)
        seen.append(clip_grad_norm(resharded(model).parameters(), 0.2).item())
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            seen.append(model(*batch(50, rank=0)).item())
            for p in resharded(model).parameters():
                p.mul_(0.9)
        with full_parameters(model), torch.no_grad():
            seen.append(model(*batch(50, rank=0)).item())
            for p in model.parameters():
                p.add_(0.01)
        for p in resharded(model).parameters():
            assign_data(p, p.data * 1.1)
        apply_to_full(model, lambda m: torch.nn.init.eye_(m.weight) if type(m) is nn.Linear and m.bias is not None else None)
        reset_shards_in_zero_grad()
        model.zero_grad()
    return [seen, parameters_of(model)]


def check_all_kinds_of_sharding() -> None:
    ddp = build("ddp")
    expected = used(ddp)
    for kind in KINDS:
        model = sharded(kind)
        if kind == "frozen":
            ddp = build("plain")
            ddp.layers[0].requires_grad_(False)
            expected_of_kind = used(nn.parallel.DistributedDataParallel(ddp))
        else:
            expected_of_kind = expected
        assert len(units(model)) == 3 and len(units(model, root_only=True)) == 1, kind
        assert holds_shards(list(model.parameters())) is (kind not in ("unsharded", "replicate")), kind
        assert len(handle_parameters(model)) == len(list(model.parameters())), kind
        for number, (one, other) in enumerate(zip(expected_of_kind, used(model), strict=True)):
            assert close(one, other, 1e-4), (kind, number)


@dataclass
class Output:
    loss: torch.Tensor
    more: tuple[torch.Tensor, ...]


class Talkative(nn.Module):
    def __init__(self, output: Any) -> None:
        super().__init__()
        self.net, self.output = Net(), output

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> Any:
        return self.output(self.net(ids, targets))


def check_outputs_of_all_kinds() -> None:
    """The flag of no_sync and the weight of Join go by what the forward returns."""
    outputs = (
        (lambda loss: Output(loss, (loss.detach(),)), lambda out: out.loss),
        (lambda loss: {"a": [None, {"loss": loss}]}, lambda out: out["a"][1]["loss"]),
        (lambda loss: (1, loss), lambda out: out[1]),
    )
    for wrap, loss_of in outputs:
        results = []
        for kind in ("ddp", "fsdp2"):
            torch.manual_seed(0)
            model: Any = Talkative(wrap)
            if kind == "ddp":
                model = nn.parallel.DistributedDataParallel(model)
            else:
                fully_shard(model)
                record_wrapper(model, "ddp")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.3, foreach=False)
            batches = [{"x": batch(step)} for step in range(2 + 2 * dist.get_rank())]
            with join([model]):
                for step, one in enumerate(until_all_ranks_finish(batches, model)):
                    set_gradient_sync(model, step % 2 == 1)
                    loss_of(model(*one.pop("x"))).backward()
                    if step % 2:
                        optimizer.step()
                        optimizer.zero_grad()
            results.append(parameters_of(model))
        assert close(results[0], results[1], 1e-5)


def check_whole_parameters_of_two_models() -> None:
    def blend(model: Any, other: Any) -> None:
        with full_parameters(model), full_parameters(other), torch.no_grad():
            for p, q in zip(model.parameters(), other.parameters(), strict=True):
                q.mul_(0.5).add_(p, alpha=0.5)

    pairs = []
    for kind in ("plain", "fsdp2"):
        model, average = build(kind), build(kind)
        apply_to_full(average, lambda m: nn.init.constant_(m.weight, 0.3) if isinstance(m, (nn.Linear, nn.LayerNorm)) else None)
        if kind == "fsdp2":
            with torch.no_grad():
                average(*batch(0))
        blend(model, average)
        pairs.append([parameters_of(model), parameters_of(average)])
    assert close(pairs[0], pairs[1])


def check_unsynced_gradients_outlive_whole_parameters() -> None:
    for like in ("ddp", "fsdp1"):
        model = build("fsdp2", like=like)
        with no_gradient_sync(model):
            model(*batch(0)).backward()
        with full_parameters(model, writeback=False), torch.no_grad():
            model.emb.weight.zero_()
            model(*batch(5))
        resharded(model)
        model(*batch(1)).backward()
        ddp = build("ddp")
        torch.stack([ddp(*batch(0)), ddp(*batch(1))]).sum().backward()
        assert close(gradients_of(ddp), gradients_of(model), 1e-5), like
        assert close(clip_model_grad_norm(model, 1.0), clip_grad_norm(ddp.parameters(), 1.0), 1e-5)


def check_parts_that_are_sharded_inside_a_plain_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    torch.manual_seed(0)
    plain = nn.Sequential(Block(), Block())
    fully_shard(model[0])
    for one in (model, plain):
        with full_parameters(one), torch.no_grad():
            for p in one.parameters():
                p.mul_(0.5)
        apply_to_full(one, lambda m: nn.init.eye_(m.weight) if isinstance(m, nn.Linear) else None)
        one(torch.ones(2, 6)).sum().backward()
    assert close(parameters_of(model), parameters_of(plain))
    assert close(clip_grad_norm(model.parameters(), 0.1), clip_grad_norm(plain.parameters(), 0.1), 1e-5)
    assert close(gradients_of(model), gradients_of(plain), 1e-5)


class Generous(nn.Module):
    """Returns a parameter, and a part of one, beside what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.first = nn.Parameter(torch.zeros(3)), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.first(x), self.weights, self.first.weight[0]


def check_parameters_that_a_forward_returns() -> None:
    results = []
    for wrap in (nn.parallel.DistributedDataParallel, shard_like_ddp, lambda net: shard_like_fsdp1(net, use_orig_params=True)):
        torch.manual_seed(0)
        model: Any = wrap(Generous())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        losses = []
        for step in range(3):
            x = torch.full((2, 5), 0.1 * step + dist.get_rank())
            with torch.no_grad():
                losses.append(float(sum(part.sum() for part in model(x))))
            out, weights, part = model(x)
            loss = (torch.exp(-weights) * out.mean(0) + 0.5 * weights).sum() + part.pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        results.append((parameters_of(model), losses))
    for parameters, losses in results[1:]:
        assert close(parameters, results[0][0], 1e-5) and close(losses, results[0][1], 1e-5)


def check_the_strategy_is_that_asked_for_also_once_the_root_has_run() -> None:
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        device, policy = torch.device("cpu"), ModuleWrapPolicy({Block})
        model: Any = shard_like_fsdp1(Net(), auto_wrap_policy=policy, sharding_strategy=strategy, device_id=device)
        assert strategy_of(model) is strategy and compute_device_of(model) == torch.device("cpu")
        model(*batch(0)).backward()
        assert strategy_of(model) is strategy and strategy_of(model.layers[0]) is strategy


def check_the_precision_of_a_unit_is_that_asked_for() -> None:
    device, policy = torch.device("cpu"), ModuleWrapPolicy({Block})
    for asked in (MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32), MixedPrecision(), None):
        model: Any = shard_like_fsdp1(Net(), auto_wrap_policy=policy, mixed_precision=asked, device_id=device)
        for unit in (model, model.layers[0]):
            found = mixed_precision_of(unit)
            expected = (asked.param_dtype, asked.reduce_dtype) if asked is not None else (None, None)
            assert (found.param_dtype, found.reduce_dtype) == expected
