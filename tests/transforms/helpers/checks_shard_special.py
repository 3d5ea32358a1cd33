"""Ways to train that need more than plain units, through shard_like_ddp. Run by test_shard_programs.py."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from checks_shard_uses import compare, loop, ones
from models import batch
from shard_models import Residual, build, differences, optimizer_of, rank, result, train
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.methods import forward_method
from to_fsdp2.transforms.helpers.parameter_names import named_buffers, named_modules, named_parameters
from to_fsdp2.transforms.helpers.rebind import rebound_parameters
from to_fsdp2.transforms.helpers.zero_gradients import reset_shards_in_zero_grad
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import spectral_norm
from torch.utils.checkpoint import checkpoint


def check_activation_checkpointing() -> None:
    """Of blocks, before and after the wrap; of the model; of the wrapped model."""

    def of_blocks(wrap: Callable[..., Any], after: bool, how: CheckpointImpl) -> dict[str, Any]:
        model = build("tied")
        wrapper = functools.partial(checkpoint_wrapper, checkpoint_impl=how)
        run = wrap(model) if after else None
        apply_activation_checkpointing(model, checkpoint_wrapper_fn=wrapper, check_fn=lambda m: isinstance(m, Residual))
        run = run or wrap(model)
        return train(run, optimizer_of(run))

    def of_model(wrap: Callable[..., Any]) -> dict[str, Any]:
        run = wrap(checkpoint_wrapper(build("tied")))
        return train(run, optimizer_of(run))

    def of_wrapped(wrap: Callable[..., Any]) -> dict[str, Any]:
        run = wrap(build("tied"))
        return loop(run, lambda step: checkpoint(run, *batch(step), use_reentrant=False))  # pyright: ignore[reportArgumentType]

    for how in CheckpointImpl:
        for after in (False, True):
            compare(functools.partial(of_blocks, after=after, how=how))
    compare(of_model)
    compare(of_wrapped)


def check_precision_of_a_context_and_norms_in_hooks() -> None:
    def autocast(wrap: Callable[..., Any]) -> dict[str, Any]:
        run = wrap(build("tied"))

        def loss_of(step: int) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return run(*batch(step))

        return loop(run, loss_of)

    def normalized(wrap: Callable[..., Any]) -> dict[str, Any]:
        run = wrap(nn.Sequential(spectral_norm(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 1)))
        return loop(run, lambda step: run(ones(step)).sum())

    compare(autocast)
    compare(normalized)


class Critic(nn.Module):
    """`times` is how often it calls its blocks."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.one, self.head, self.times = nn.Linear(4, 6), nn.Linear(6, 1), times
        self.blocks = nn.ModuleList(Residual() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x).tanh()
        for block in list(self.blocks) * self.times:
            x = block(x)
        return self.head(x)


def check_gradients_of_gradients() -> None:
    """A penalty on the gradient, alone or with other terms, with a forward in between; and one that is only looked at."""

    def use(wrap: Callable[..., Any], kind: str, times: int) -> dict[str, Any]:
        run = wrap(Critic(times))
        optimizer, losses = torch.optim.Adam(run.parameters(), lr=1e-2), []
        for step in range(4):
            if kind != "reset":
                optimizer.zero_grad()
            x = (torch.arange(12.0).view(3, 4) / 10 * (step + 1 + rank())).requires_grad_()
            out = run(x)
            (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            penalty = (gradient.norm(dim=1) - 1).square().mean()
            if kind == "between":
                loss = out.mean() - run(torch.ones(3, 4) * rank()).mean() + penalty
            elif kind == "alone":
                loss = gradient.square().sum(1).mean() + 0 * out[0].sum()
            else:
                loss = out.mean() + penalty if kind in ("together", "reset") else run(torch.ones(3, 4)).mean()
            if kind == "reset":
                reset_shards_in_zero_grad()
                run.zero_grad()
            loss.backward()
            optimizer.step()
            losses += [loss.item(), penalty.item()]
        return result(run, losses)

    for kind in ("together", "between", "alone", "looked at", "reset"):
        for times in (0, 1, 2):
            if times or kind == "alone":
                compare(functools.partial(use, kind=kind, times=max(times, 1)), 1e-5)


def check_gradients_of_gradients_by_hand() -> None:
    """A penalty's gradients are taken with torch.autograd.grad, averaged by hand, and added to what a backward gave."""

    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        run = wrap(Critic(1))
        optimizer, losses = torch.optim.Adam(run.parameters(), lr=1e-2), []
        for step in range(4):
            x = (torch.arange(12.0).view(3, 4) / 10 * (step + 1 + rank())).requires_grad_()
            optimizer.zero_grad()
            run(x.detach()).mean().backward()
            before = [p.grad.clone() for p in run.parameters() if p.grad is not None]
            optimizer.zero_grad()
            (gradient,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
            penalty = gradient.square().sum(1).mean()
            found = torch.autograd.grad(penalty, list(run.parameters()), allow_unused=True)
            for p, old, new in zip(run.parameters(), before, found, strict=True):
                if new is not None:
                    new = new.detach().clone()
                    dist.all_reduce(new)
                    old += new / dist.get_world_size()
                p.grad = old
            optimizer.step()
            losses.append(penalty.item())
        return result(run, losses)

    compare(use, 1e-5)


class Forces(nn.Module):
    """A potential whose forward returns its gradient too, as those of molecules do."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = Critic(1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.requires_grad_()
        energy = self.critic(x).tanh().sum()
        return energy, torch.autograd.grad(energy, x, create_graph=self.training)[0]


def check_gradients_that_a_forward_returns() -> None:
    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        run = wrap(Forces())
        optimizer, losses = torch.optim.Adam(run.parameters(), lr=1e-2), []
        for step in range(4):
            optimizer.zero_grad()
            energy, force = run(torch.arange(12.0).view(3, 4) / 10 * (step + 1 + rank()))
            loss = (energy - 1).square() + (force - 0.3).square().mean()
            loss.backward()
            optimizer.step()
            run.eval()
            losses += [loss.item(), run(torch.ones(3, 4))[1].sum().item()]
            run.train()
        return result(run, losses)

    compare(use, 1e-6)


def check_frozen_and_thawed() -> None:
    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        model = build("tied")
        run = wrap(model, find_unused_parameters=True)

        def loss_of(step: int) -> torch.Tensor:
            model.body.blocks[0].requires_grad_(step % 2 == 0)
            return run(*batch(step))

        return loop(run, loss_of)

    compare(use)


def check_a_forward_that_raises() -> None:
    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        run = wrap(build("tied"))
        with contextlib.suppress(ValueError):
            run(torch.zeros(3, dtype=torch.long), torch.zeros(4, dtype=torch.long))
        return train(run, optimizer_of(run))

    compare(use)


def check_parts_wrapped_each() -> None:
    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        model = build("blocks in a Sequential", rank())
        optimizer, losses = optimizer_of(model), []
        for name in ("emb", "body", "head"):
            setattr(model, name, wrap(getattr(model, name)))
        for step in range(3):
            optimizer.zero_grad()
            loss = model(*batch(step))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return {**result(model.body, losses), "without gradient": [], "shapes": []}

    compare(use)


def check_compiled_for_autograd() -> None:
    def use(wrap: Callable[..., Any], blocks: bool) -> dict[str, Any]:
        model = build("tied")
        if blocks:
            for i, block in enumerate(model.body.blocks):
                model.body.blocks[i] = torch.compile(block, backend="aot_eager")
        run = wrap(model)
        return train(run if blocks else torch.compile(run, backend="aot_eager"), optimizer_of(run))

    compare(functools.partial(use, blocks=True), 1e-6)
    compare(functools.partial(use, blocks=False), 1e-6)


class Momentum(nn.Module):
    """A key encoder that follows the query encoder inside forward, and a head that is kept normalized."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.query, self.key, self.head = (nn.Linear(7, 7) for _ in range(3))
        self.key.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for p, k in zip(self.query.parameters(), self.key.parameters(), strict=True):
                if self.how == "assigned":
                    k.data = k.data * 0.9 + p.data * 0.1
                elif self.how == "data":
                    k.data.mul_(0.9).add_(p.data, alpha=0.1)
                else:
                    k.lerp_(p, 0.1)
            self.head.weight.data.div_(self.head.weight.data.norm(dim=0))
        return (self.head(self.query(x)) - self.key(x)).pow(2).mean()


def check_writes_in_forward() -> None:
    for how in ("assigned", "data", "itself"):
        results = []
        for wrap in (DDP, shard_like_ddp):
            torch.manual_seed(0)
            model = wrap(Momentum(how))
            optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
            for step in range(4):
                torch.manual_seed(10 * step + rank())
                loss = model(torch.randn(3, 7))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            results.append(result(model, losses))
        assert not differences(results, 1e-6), how


def check_methods_of_parts() -> None:
    """A method of a part, called by code outside of the model, computes with gathered parameters and trains them."""

    class Encoder(Residual):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.Parameter(torch.linspace(0.5, 1.5, 6))

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self(x) * self.scales

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = Encoder(), nn.Linear(6, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.encoder.encode(x)).sum()

    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        model, seen = Model(), []
        run = wrap(model)

        def loss_of(step: int) -> torch.Tensor:
            with torch.no_grad():
                seen.append(forward_method(model.encoder, "encode")(ones(9)).sum().item())
            return run(ones(step)).tanh()

        found = loop(run, loss_of)
        return {**found, "losses": found["losses"] + seen}

    compare(use, 1e-6)


def check_parts_that_come_later() -> None:
    """A head that a model gets between two wraps is trained as by a DDP that is made anew, by the optimizer that lives on.

    Hooks on its gradients run, its layers may be called by themselves, and copies of the model are plain ones.
    """

    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        model = nn.ModuleDict({"body": Residual(), "heads": nn.ModuleDict({"a": nn.Linear(6, 1)})})

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body, self.heads = model["body"], model["heads"]

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                heads: Any = self.heads
                shown = [heads["a"](self.body(x)), *(head[1](head[0](self.body(x))) for head in [*heads.values()][1:])]
                return sum(one.tanh().sum() for one in shown)  # type: ignore[return-value]

        net = Net()
        run = wrap(net)
        optimizer = optimizer_of(run)
        run(ones(1)).backward()
        optimizer.step()
        torch.manual_seed(rank())
        net.heads.add_module("b", nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 1)))
        optimizer.add_param_group({"params": net.heads.get_submodule("b").parameters()})
        for parameter in net.heads.get_submodule("b").parameters():
            parameter.register_hook(lambda gradient: gradient * 2)
        run = wrap(net)
        losses = []
        for step in range(3):
            optimizer.zero_grad()
            loss = run(ones(step))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return result(run, [*losses, copy.deepcopy(net)(ones(4)).item()])

    compare(use, 1e-6)


def check_hooks_of_parameters_run_where_a_part_is_called_by_itself() -> None:
    found = []
    for factor in (1, 2):
        torch.manual_seed(0)
        net = Residual()
        for parameter in net.parameters():
            parameter.register_hook(lambda gradient, factor=factor: gradient * factor)
        shard_like_ddp(net).up(ones(1)).sum().backward()
        found.append(net.up.weight.grad.full_tensor())  # type: ignore[union-attr]
    assert found[0].any() and torch.allclose(found[0] * 2, found[1])


def check_a_parameter_without_elements() -> None:
    """As one that only says on which device a model is, beside a search for unused ones."""

    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        net = Residual()
        net.register_parameter("device_indicator", nn.Parameter(torch.empty(0)))
        run = wrap(net, find_unused_parameters=True)
        return loop(run, lambda step: run(ones(step)).tanh().sum())

    compare(use, 1e-6)


class Adapter(nn.Module):
    """A small trained path beside a layer that has been sharded before."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(2, base.in_features))
        self.up = nn.Parameter(torch.full((base.out_features, 2), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.down.t() @ self.up.t()


def check_adapters_around_sharded_layers() -> None:
    """What is put around layers between two wraps, with parameters of its own, is trained as by a DDP that is made anew."""

    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
        run = wrap(net)
        run(ones(1)).sum().backward()
        torch.manual_seed(rank())
        net[0] = Adapter(net[0])  # type: ignore[arg-type]
        for name, parameter in net.named_parameters():
            parameter.grad = None
            parameter.requires_grad_("down" in name or "up" in name)
        run = wrap(net)
        return loop(run, lambda step: run(ones(step)).tanh().sum())

    compare(use, 1e-6)


def check_names_of_parameters() -> None:
    """The pairs of `named_parameters` and its kin have the names that DDP's had."""
    model, same = Residual(), Residual()
    old, new = DDP(model), shard_like_ddp(same)
    assert [name for name, _ in named_parameters(new)] == [name for name, _ in old.named_parameters()]
    assert [name for name, _ in named_buffers(new)] == [name for name, _ in old.named_buffers()]
    assert [name for name, _ in named_modules(new)] == [name for name, _ in old.named_modules()]
    assert [name for name, _ in named_parameters(model)] == [name for name, _ in model.named_parameters()]


def check_holders_of_parameters_are_rebound() -> None:
    """An optimizer with state from before plain calls of fully_shard trains on as under DDP."""

    def plainly(module: Any) -> Any:
        with rebound_parameters(module):
            fully_shard(module)
        return module

    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        model = Residual()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model(ones(5)).sum().backward()
        optimizer.step()
        run, losses = wrap(model), []
        for step in range(3):
            optimizer.zero_grad()
            loss = run(ones(step)).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return result(run, losses)

    results = []
    for wrap in (DDP, plainly):
        torch.manual_seed(0)
        results.append(use(wrap))
    found = differences(results, 1e-6)
    assert not found, found


def check_blocks_whose_parts_lie_in_another_list_too() -> None:
    """As where layers are put into gated ones, and the list of the bare layers stays."""

    class Gated(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.gate = inner, nn.Parameter(torch.ones(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * self.gate

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.bare = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3))
            self.gated = nn.ModuleList(map(Gated, self.bare))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.gated:
                x = layer(x)
            return x.square().mean()

    losses = []
    for wrap in (DDP, shard_like_ddp):
        model = wrap(Twice())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(3):
            loss = model(torch.ones(2, 6))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:3] == losses[3:]
