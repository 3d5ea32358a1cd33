"""What parameters.py, units.py and stops.py must do on two ranks. Run by test_parameters.py."""

from __future__ import annotations

import collections
import functools
from typing import Any

import torch
import torch.distributed as dist
from models import Block, Net, batch, build, clean, close, error_of, parameters_of, record_wrapper
from to_fsdp2.transforms.helpers import replaced_data
from to_fsdp2.transforms.helpers.clipping import clip_model_grad_norm
from to_fsdp2.transforms.helpers.full_parameters import full_parameters
from to_fsdp2.transforms.helpers.gradients import gradient_sync, no_gradient_sync
from to_fsdp2.transforms.helpers.parameter_names import named_buffers, named_modules, named_parameters
from to_fsdp2.transforms.helpers.parameters import assign_data, handle_parameters, resharded
from to_fsdp2.transforms.helpers.stops import stop_if_sharded
from to_fsdp2.transforms.helpers.units import has_member, sharded_behind, units, unwrap, wrapper_method
from to_fsdp2.transforms.helpers.whole import whole
from to_fsdp2.transforms.helpers.zero_gradients import reset_shards_in_zero_grad
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.parallel import DistributedDataParallel as DDP

KINDS = ("plain", "ddp", "fsdp2")


def evaluate(model: Any) -> None:
    with torch.no_grad():
        model(*batch(9))


def train(model: Any, edit: Any, before_step: bool = False) -> Any:
    """Parameters after three steps with `edit(model)` after an evaluation."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
    for step in range(3):
        loss = model(*batch(step))
        if before_step:
            edit(model)
        loss.backward()
        optimizer.step()
        evaluate(model)
        if not before_step:
            edit(model)
        reset_shards_in_zero_grad()
        model.zero_grad()
    return parameters_of(model)


@torch.no_grad()
def shrink(model: Any) -> None:
    for p in resharded(model).parameters():
        p.mul_(0.9).clamp_(-0.5, 0.5)


def shrink_data(model: Any) -> None:
    for p in resharded(model).parameters():
        p.data.add_(0.01)


def replace_data(model: Any) -> None:
    for p in resharded(model).parameters():
        assign_data(p, p.data * 0.9 + 0.01)


def replace_by_whole_tensors(model: Any) -> None:
    for name, p in resharded(model).named_parameters():
        torch.manual_seed(len(clean(name)))
        assign_data(p, torch.randn(p.shape) * 0.1)


def check_edits_after_an_evaluation_are_ddps() -> None:
    for edit in (shrink, shrink_data, replace_data, replace_by_whole_tensors):
        assert close(train(build("ddp"), edit), train(build("fsdp2"), edit), 1e-5), edit
        assert close(train(build("ddp"), edit), train(build("fsdp2", ignored=False, batch_norm=False), edit), 1e-5), edit


def check_resharding_between_forward_and_backward_changes_nothing() -> None:
    reshard = lambda model: resharded(model)  # noqa: E731
    assert close(train(build("ddp"), reshard, True), train(build("fsdp2"), reshard, True), 1e-5)


def check_resharded_returns_what_it_got() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)])
    for thing in (build("plain"), build("ddp"), build("fsdp1"), build("fsdp2"), optimizer, None, [1]):
        assert resharded(thing) is thing
    model = build("fsdp2")
    evaluate(model)
    assert not isinstance(model.emb.weight, DTensor) and isinstance(resharded(model).emb.weight, DTensor)
    evaluate(model)
    compiled = torch.compile(model, backend="eager")
    assert resharded(compiled) is compiled and isinstance(model.emb.weight, DTensor)


def check_assigned_data() -> None:
    plain = nn.Parameter(torch.zeros(3))
    new = torch.ones(5, dtype=torch.float64)
    assert assign_data(plain, new) is None and plain.data_ptr() == new.data_ptr() and plain.shape == (5,)
    model = build("fsdp2")
    weight: Any = model.emb.weight
    assign_data(weight, torch.full(weight.shape, float(dist.get_rank())))
    assert set(weight.to_local().unique().tolist()) == {float(dist.get_rank())}, "each rank its own part"
    assign_data(weight, torch.full(weight.shape, 2.0).requires_grad_() * 1.5)
    assert torch.equal(weight.full_tensor(), torch.full(weight.shape, 3.0)) and weight.requires_grad and weight.is_leaf
    for wrong in (torch.zeros(1), torch.zeros(weight.shape).double(), torch.zeros_like(weight.to_local())):
        assert isinstance(error_of(lambda wrong=wrong: assign_data(weight, wrong)), ValueError)
    on_mesh: Any = nn.Linear(4, 4)
    fully_shard(on_mesh, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")))
    assign_data(on_mesh.weight, torch.arange(16.0).view(4, 4))
    assert torch.equal(on_mesh.weight.full_tensor(), torch.arange(16.0).view(4, 4))


def check_handle_parameters() -> None:
    flat = handle_parameters(build("fsdp1"))
    assert len(flat) == 3 and {type(p).__name__ for p in flat} <= {"FlatParameter", "Parameter"} and flat[0].dim() == 1
    model = build("fsdp2", ignored=True)
    evaluate(model)
    managed = handle_parameters(model)
    assert {n for n, p in model.named_parameters() if any(p is q for q in managed)} == {
        n for n, _ in model.named_parameters() if n not in ("scale", "layers.0.norm.weight", "layers.0.norm.bias")
    }
    assert handle_parameters(build("plain")) == [] == handle_parameters(build("ddp"))


def check_units_are_fsdp1s() -> None:
    def found(model: Any, root_only: bool = False) -> list[str]:
        names = {module: clean(name + ".") for name, module in model.named_modules()}
        return [names[unit] for unit in units(model, root_only)]

    one, two = build("fsdp1"), build("fsdp2")
    for root_only in (False, True):
        assert found(one, root_only) == found(two, root_only), (found(one), found(two))
        assert units(one, root_only) == FSDP.fsdp_modules(one, root_only)
    assert found(torch.compile(two, backend="eager"), True) == ["."] or found(two, True) == ["."]
    for kind in ("plain", "ddp"):
        assert units(build(kind)) == [] == units(build(kind), root_only=True)
    pair = nn.ModuleList([build("fsdp1"), build("fsdp2")])
    assert units(pair, True) == list(pair) and len(units(pair)) == 6
    plain = Net()
    for layer in plain.layers:
        fully_shard(layer)
    assert units(plain, root_only=True) == list(plain.layers) == units(plain)


class Holder(nn.Module):
    """Has a `module` of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.module = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


def check_unwrapped() -> None:
    ddp, fsdp1, sharded = build("ddp"), build("fsdp1"), build("fsdp2")
    assert unwrap(ddp) is ddp.module and unwrap(fsdp1) is fsdp1.module and unwrap(sharded) is sharded
    assert isinstance(error_of(lambda: unwrap(build("plain"))), AttributeError)
    for kind in (None, "ddp", "fsdp1"):
        holder = Holder()
        own = holder.module
        fully_shard(holder)
        if kind:
            record_wrapper(holder, kind)
        assert unwrap(holder) is (holder if kind else own)
        if kind:
            assert unwrap(holder, 2) is own
        around = nn.Module()
        around.module = holder
        assert unwrap(around, 2) is (holder if kind else own)
    holder = Holder()
    assert unwrap(holder) is holder.module and unwrap(DDP(holder)) is holder and unwrap(DDP(holder), 2) is holder.module
    compiled = torch.compile(sharded, backend="eager")
    assert unwrap(compiled) is sharded and unwrap(torch.compile(ddp, backend="eager")) is ddp.module
    inside: Any = torch.compile(build("plain"), backend="eager")
    fully_shard(inside)
    assert isinstance(inside, FSDPModule) and unwrap(inside) is inside


class Proxy(nn.Module):
    """Hands on what it lacks, as metaseq's ModuleProxyWrapper."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


class Syncing(Proxy):
    def no_sync(self) -> str:
        return "its own"


def check_members_behind_proxies() -> None:
    ddp, plain, sharded = build("ddp"), build("plain"), build("fsdp2", like="ddp")
    for model in (ddp, sharded, Proxy(ddp), Proxy(sharded), torch.compile(sharded, backend="eager"), Proxy(Proxy(sharded))):
        assert has_member(model, "no_sync")
    assert not has_member(plain, "no_sync") and not has_member(Proxy(plain), "no_sync") and not has_member(None, "no_sync")
    for model in (sharded, Proxy(sharded), torch.compile(sharded, backend="eager")):
        assert sharded_behind(model, "no_sync") is sharded
        with wrapper_method(model, "no_sync", no_gradient_sync)():
            assert not gradient_sync(model)
        assert gradient_sync(model)
    assert sharded_behind(Proxy(ddp), "no_sync") is None
    assert no_gradient_sync(Syncing(sharded)) == "its own" == wrapper_method(Syncing(sharded), "no_sync", no_gradient_sync)()
    assert wrapper_method(plain, "no_sync", no_gradient_sync, print) is print
    assert isinstance(error_of(lambda: wrapper_method(plain, "no_sync", no_gradient_sync)), AttributeError)
    norm = clip_model_grad_norm(Proxy(sharded), 1.0)
    assert norm == 0


def check_stops() -> None:
    mesh = init_device_mesh("cpu", (2,))
    alone = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = build("fsdp2", ignored=True)
    weight = model.emb.weight
    fine: list[Any] = [
        1, None, "text", torch.ones(2), model.scale, build("plain"), build("ddp"), build("fsdp1"),
        DTensor.from_local(torch.ones(2), mesh, [Replicate()]), {"a": [1, (2, {3})]}, iter([weight]), weight.full_tensor(),
        torch.optim.SGD(build("plain").parameters()).state_dict(),
    ]  # fmt: skip
    single = nn.Linear(2, 2)
    fully_shard(single, mesh=alone)
    fine.append(single.weight)  # in one piece on each rank
    for value in fine:
        assert stop_if_sharded(value, "no") is value
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model(*batch(0)).backward()
    optimizer.step()
    bad = [
        weight, weight.grad, weight.norm(), model, nn.Sequential(model), {"a": [1, (2, weight)]}, {weight},
        collections.OrderedDict(model.state_dict()), optimizer.state_dict(), optimizer, list(model.parameters()),
        torch.compile(model, backend="eager"),
    ]  # fmt: skip
    for value in bad:
        assert str(error_of(lambda value=value: stop_if_sharded(value, "FS702: here"))) == "FS702: here", type(value)


def check_names_are_those_of_the_old_wrappers() -> None:
    for kind in ("fsdp1", "ddp"):
        old, new = build(kind, batch_norm=True), build("fsdp2", batch_norm=True, like=kind)
        for begin in ("", "net"):
            assert [n for n, _ in named_parameters(new, begin)] == [n for n, _ in old.named_parameters(begin)]
            assert [n for n, _ in named_buffers(new, prefix=begin)] == [n for n, _ in old.named_buffers(prefix=begin)]
            names = {n: [child for child, _ in m.named_children()] for n, m in named_modules(new, prefix=begin)}
            assert names == {n: [child for child, _ in m.named_children()] for n, m in old.named_modules(prefix=begin)}
        assert all(p is q for (_, p), q in zip(named_parameters(new), new.parameters(), strict=True))
    old, new = build("fsdp1"), build("fsdp2", like="fsdp1")
    with FSDP.summon_full_params(old), full_parameters(new):
        assert [n for n, _ in named_parameters(new)] == [n for n, _ in old.named_parameters()]
    assert [n for n, _ in named_parameters(new)] == [n for n, _ in old.named_parameters()]
    plain = build("plain")
    assert [n for n, _ in named_parameters(plain)] == [n for n, _ in plain.named_parameters()]


def check_data_is_replaced_as_under_ddp() -> None:
    results: list[Any] = []
    for kind in ("ddp", "fsdp2"):
        model, other = build(kind, like="ddp"), build(kind, like="ddp")
        train(other, shrink)
        kept = [p.data for p in resharded(model).parameters()]
        average = [p.detach().clone().mul_(0.5) for p in resharded(model).parameters()]
        for p, mean in zip(resharded(model).parameters(), average, strict=True):
            replaced_data.replace_data(p, mean)
        losses = [model(*batch(3)).item()]
        for mean in average:
            mean.mul_(0.9)  # the parameter's own memory
        losses.append(resharded(model)(*batch(3)).item())
        for p, q in zip(resharded(model).parameters(), resharded(other).parameters(), strict=True):
            replaced_data.replace_each_data([p, q], [q.data, p.data])
        losses += [model(*batch(3)).item(), other(*batch(3)).item()]
        for p, q, before in zip(resharded(model).parameters(), resharded(other).parameters(), kept, strict=True):
            replaced_data.replace_data(p, before)
            replaced_data.replace_data(q, p.data)
        train(model, lambda _: None)
        results.append([losses, model(*batch(4)).item(), parameters_of(model), parameters_of(other)])
    assert close(results[1], results[0], 1e-5)
    weight = next(resharded(model).parameters())
    assert isinstance(error_of(lambda: replaced_data.replace_data(weight, torch.ones(3))), ValueError)


def check_writing_to_flat_memory_of_parameters_is_told() -> None:
    for kind in ("ddp", "fsdp2"):
        model = build(kind, like="ddp")
        parameters = list(resharded(model).parameters())
        flat = torch.cat([whole(p).detach().reshape(-1) for p in parameters])
        offset = 0
        for p in parameters:
            replaced_data.replace_data(p, flat[offset : offset + p.numel()].view(p.shape))
            offset += p.numel()
        before = model(*batch(3)).item()
        flat.mul_(0.5)
        told = error_of(functools.partial(model, *batch(3)))
        assert (told is None) == (kind == "ddp") and (told is None or str(told).startswith("FS709"))
        flat.mul_(2.0)
        gradients = torch.zeros_like(flat)
        parameters[0].grad = gradients[: parameters[0].numel()].view(parameters[0].shape)
        told = error_of(functools.partial(model, *batch(3)))
        assert (told is None) == (kind == "ddp") and (told is None or str(told).startswith("FS709"))
        with torch.no_grad():
            assert close(model(*batch(3)).item(), before)
        for p in resharded(model).parameters():
            replaced_data.replace_data(p, whole(p).detach().clone())
        flat.zero_()
        assert close(model(*batch(3)).item(), before)
