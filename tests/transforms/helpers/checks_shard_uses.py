"""Uses of a model that DDP allows and fully_shard alone gets wrong, through shard_like_ddp. Run by test_shard_programs.py."""

from __future__ import annotations

import dataclasses
import functools
import pickle
from collections.abc import Callable
from typing import Any

import torch
from models import WIDTH, batch
from shard_models import Residual, build, differences, optimizer_of, rank, result, train
from to_fsdp2.transforms.helpers.class_names import class_of
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.ddp_buffers import past_ddp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def compare(use: Callable[[Callable[..., Any]], dict[str, Any]], tolerance: float = 0.0) -> None:
    results = []
    for wrap in (DDP, shard_like_ddp):
        torch.manual_seed(0)
        results.append(use(wrap))
    found = differences(results, tolerance)
    assert not found, found


class Answer:
    """What a forward returns, of no class that torch looks into."""

    def __init__(self, hidden: Any, scale: Any, policy: Any) -> None:
        self.hidden, self.scale, self.policy = hidden, scale, policy


class Answering(nn.Module):
    """Blocks and a model that return objects, with a view and a parameter in them."""

    def __init__(self, block: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.blocks = nn.ModuleList() if block else nn.ModuleList(Answering(block=True) for _ in range(2))

    def forward(self, x: Any) -> Answer:
        x = x.hidden if isinstance(x, Answer) else x
        for block in self.blocks:
            x = block(x).hidden
        hidden = self.linear(x) + self.scale
        policy = torch.distributions.Normal(hidden[:, :1], self.scale.exp()[:1])
        return Answer(hidden=hidden, scale=self.scale, policy=policy)


def check_outputs_that_are_objects() -> None:
    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        model = Answering()
        run = wrap(model, find_unused_parameters=False)
        optimizer, losses = optimizer_of(model), []
        for step in range(3):
            optimizer.zero_grad()
            answer = run(torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(2 * step + rank())))
            likely = answer.policy.log_prob(torch.ones(1)).mean()
            loss = answer.hidden.square().mean() + (answer.scale * answer.hidden).mean() - likely
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return result(model, losses)

    compare(use, 1e-6)


def check_class_names() -> None:
    """Classes are called as before, though fully_shard makes others."""
    model = Residual()
    run = shard_like_ddp(model)
    assert type(run) is not Residual and isinstance(run, Residual)
    assert type(run).__name__ == type(run).__qualname__ == "Residual"
    assert class_of(run) is class_of(Residual()) is pickle.loads(pickle.dumps(class_of(run))) is Residual


def check_scaler_over_plain_and_sharded_gradients() -> None:
    """A scalar stays plain, where other parameters are sharded; a scaler takes both, and ranks agree on infinities."""

    class Scaled(Residual):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.scale

    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        run = wrap(Scaled())
        optimizer, scaler = optimizer_of(run), torch.amp.GradScaler("cpu", init_scale=2.0**4)
        scales = []
        for step in range(4):
            optimizer.zero_grad()
            loss = run(torch.ones(2, WIDTH) * (step + rank() + 1)).square().mean()
            scaler.scale(loss * (float("inf") if step == 2 and rank() == 1 else 1.0)).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return result(run, scales)

    compare(use, 1e-6)


def loop(run: Any, loss_of: Callable[[int], torch.Tensor], also: list[float] | None = None) -> dict[str, Any]:
    """Four steps; `also` is compared with the losses."""
    optimizer, losses = optimizer_of(run), []
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return result(run, losses + (also or []))


def ones(step: int, width: int = 6) -> torch.Tensor:
    return torch.ones(2, width) * (step + rank() + 1) / 4


def check_operations_in_place_on_outputs() -> None:
    """Also on views, where fully_shard loses its hooks."""

    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.blocks = nn.Linear(6, 6), nn.ModuleList(Residual() for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
                x += 1
            return (self.one(x).tanh() * 2).view(-1)

    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        run = wrap(Viewed())

        def loss_of(step: int) -> torch.Tensor:
            out = run(ones(step))
            out /= 2
            return out.square().sum()

        return loop(run, loss_of)

    compare(use)


def check_forwards_before_one_backward() -> None:
    def use(wrap: Callable[..., Any], evaluates: bool) -> dict[str, Any]:
        run = wrap(build("buffers"))

        def loss_of(step: int) -> torch.Tensor:
            loss = run(*batch(step))
            with torch.set_grad_enabled(not evaluates):
                other = run(*batch(step + 20))
            return loss if evaluates else loss + other

        return loop(run, loss_of)

    compare(functools.partial(use, evaluates=False), 1e-6)
    compare(functools.partial(use, evaluates=True))


def check_hooks_of_parameters() -> None:
    """Registered before and after the wrap, one of them removed on the way."""

    def use(wrap: Callable[..., Any], early: bool) -> dict[str, Any]:
        model, seen, handles = build("tied"), [], []
        mask = (torch.arange(13) % 2).unsqueeze(1)
        run = model if early else wrap(model)
        for name, parameter in run.named_parameters():
            if name.endswith("emb.weight"):
                handles.append(parameter.register_hook(lambda gradient: gradient * mask))
            if name.endswith("blocks.0.up.bias"):
                parameter.register_hook(lambda gradient: seen.append(gradient.sum().item()))
        run = wrap(model) if early else run

        def loss_of(step: int) -> torch.Tensor:
            if step == 2:
                handles[0].remove()
            return run(*batch(step))

        found = loop(run, loss_of, seen)
        return {**found, "losses": found["losses"] + seen}

    compare(functools.partial(use, early=True))
    compare(functools.partial(use, early=False))


def check_hooks_of_modules() -> None:
    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        model, seen = build("tied"), []
        model.body.blocks[0].register_full_backward_hook(lambda _, __, out: seen.append(out[0].abs().sum().item()))
        model.head.register_full_backward_hook(lambda _, given, __: (given[0] * 0.5,))
        run = wrap(model)
        found = loop(run, lambda step: run(*batch(step)))
        return {**found, "losses": found["losses"] + seen}

    compare(use)


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    hidden: list[torch.Tensor]


def check_outputs_of_every_type() -> None:
    """With a parameter that is not sharded: its gradients are averaged after the backward."""
    forms: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        "dict": (lambda loss: {"x": [loss, loss * 2]}, lambda out: out["x"][1]),
        "tuple": (lambda loss: (loss, (loss, None)), lambda out: out[1][0]),
        "dataclass": (lambda loss: Output(loss, [loss]), lambda out: out.loss),
    }

    class Wrapped(nn.Module):
        def __init__(self, pack: Callable[[Any], Any]) -> None:
            super().__init__()
            self.inner, self.gain, self.pack = build("tied"), nn.Parameter(torch.tensor(0.3)), pack

        def forward(self, *args: torch.Tensor) -> Any:
            return self.pack(self.inner(*args) * self.gain)

    for pack, unpack in forms.values():

        def use(wrap: Callable[..., Any], pack: Any = pack, unpack: Any = unpack) -> dict[str, Any]:
            run = wrap(Wrapped(pack))
            return loop(run, lambda step: unpack(run(*batch(step))))

        compare(use)


def check_parts_that_are_called_by_themselves() -> None:
    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        model, seen = build("tied"), []
        run = wrap(model)

        def loss_of(step: int) -> torch.Tensor:
            with torch.no_grad():
                seen.append(model.head(model.body(model.emb(batch(9)[0]))).sum().item())
            return run(*batch(step))

        found = loop(run, loss_of)
        return {**found, "losses": found["losses"] + seen}

    compare(use)


def check_blocks_that_are_called_more_or_less_often() -> None:
    """More than once, by parts, and another number of times on each rank and in each step."""

    class Looped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks, self.head = nn.ModuleList(Residual() for _ in range(3)), nn.Linear(6, 1)

        def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
            for i in range(times):
                x = self.blocks[i % 3](x).tanh()
            return self.head(x).tanh().sum()

    def use(wrap: Callable[..., Any], times: Callable[[int], int]) -> dict[str, Any]:
        run = wrap(Looped())
        return loop(run, lambda step: run(ones(step), times(step)))

    compare(functools.partial(use, times=lambda step: 3 + 2 * step), 1e-6)
    compare(functools.partial(use, times=lambda step: 3 + (step + 1) * (rank() + 1)), 1e-6)


def check_forward_within_a_forward() -> None:
    """And used after it: the root's own parameter."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.blocks = nn.Linear(6, 6), nn.ModuleList(Residual() for _ in range(2))
            self.scale = nn.Parameter(torch.ones(6))

        def forward(self, x: torch.Tensor, again: bool = True) -> torch.Tensor:
            if again:
                with torch.no_grad():
                    x = x + self(x, again=False)
            x = self.emb(x)
            for block in self.blocks:
                x = block(x)
            return (x * self.scale).tanh()

    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        model = Twice()
        run = wrap(model)
        return loop(run, lambda step: run(ones(step)).sum())

    compare(use)


def check_optimizer_after_a_training_forward() -> None:
    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        run = wrap(build("tied"))
        run(*batch(0))
        return train(run, optimizer_of(run))

    compare(use)


def check_gradients_of_the_model_zeroed_between_forward_and_backward() -> None:
    for name in ("tied", "scalars"):

        def use(wrap: Callable[..., Any], name: str = name) -> dict[str, Any]:
            run = wrap(build(name))
            optimizer, losses = optimizer_of(run), []
            for step in range(4):
                loss = run(*batch(step))
                run.zero_grad(set_to_none=False)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return result(run, losses)

        compare(use)


def check_weights_edited_after_an_evaluation() -> None:
    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        run = wrap(build("tied"))

        def loss_of(step: int) -> torch.Tensor:
            with torch.no_grad():
                run(*batch(3))
                for parameter in run.parameters():
                    parameter.mul_(0.9)
            return run(*batch(step))

        return loop(run, loss_of)

    compare(use)


def check_forwards_past_ddp() -> None:
    """Of the module that DDP wrapped: with statistics of the rank's own until the wrapper's next forward."""

    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
        run, seen = wrap(net), []
        inner = run.module if isinstance(run, DDP) else past_ddp(run)

        def loss_of(step: int) -> torch.Tensor:
            loss = run(ones(step) + torch.randn(2, 6) * (rank() + 1)).sum()
            net.eval()
            with torch.no_grad():
                seen.append(inner(ones(step)).sum().item())
                seen.append(run(ones(step)).sum().item())
            net.train()
            with torch.no_grad():
                inner(ones(step) * (rank() + 2) + torch.randn(2, 6))
            seen.append(net[1].running_mean.sum().item())  # type: ignore[union-attr, operator]
            return loss

        found = loop(run, loss_of)
        return {**found, "losses": found["losses"] + seen}

    compare(use, 1e-6)
