"""What whole_copies.py must do on two ranks: what libraries' averages do under DDP. Run by test_whole_copies.py."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from models import batch, build, close, parameters_of
from to_fsdp2.transforms.helpers.each_rank import whole_on_each_rank
from to_fsdp2.transforms.helpers.rebind import rebound_parameters
from to_fsdp2.transforms.helpers.whole_copies import with_whole_copies
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Average:
    """Over parameters, as torch_ema and diffusers keep it."""

    def __init__(self, parameters: Any, decay: float) -> None:
        self.parameters, self.decay = list(parameters), decay
        self.shadow = [p.detach().clone() for p in self.parameters]
        self.kept: list[torch.Tensor] = []

    @torch.no_grad()
    def update(self, parameters: Any = None) -> None:
        for p, shadow in zip(list(parameters or self.parameters), self.shadow, strict=True):
            assert not isinstance(p, DTensor)
            shadow.add_((p - shadow) * (1 - self.decay) / (1 + p.norm()))

    def store(self) -> None:
        self.kept = [p.detach().clone() for p in self.parameters]

    def copy_to(self) -> None:
        for p, shadow in zip(self.parameters, self.shadow, strict=True):
            p.data.copy_(shadow.data)

    def restore(self) -> None:
        for p, kept in zip(self.parameters, self.kept, strict=True):
            p.data.copy_(kept)

    @contextmanager
    def average_parameters(self) -> Iterator[None]:
        self.store()
        self.copy_to()
        try:
            yield
        finally:
            self.restore()

    def state_dict(self) -> dict[str, Any]:
        return {"decay": self.decay, "shadow": self.shadow}


class ModelAverage(nn.Module):
    """Over a model, which it copies and calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.online = [model]
        self.model = copy.deepcopy(model)

    @torch.no_grad()
    def update(self) -> None:
        for mine, live in zip(self.model.parameters(), self.online[0].parameters(), strict=True):
            mine.lerp_(live, 0.1)
        for mine, live in zip(self.model.buffers(), self.online[0].buffers(), strict=True):
            mine.copy_(live)

    def forward(self, *args: Any) -> Any:
        return self.model(*args)


def trained(kind: str, make: Callable[..., Any], after: Callable[[Any, Any], None]) -> Any:
    model = build(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    average = make(model)
    for step in range(3):
        model(*batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        after(average, model)
    return model, average


def averaged(kind: str, given: bool = False) -> list[Any]:
    """Everything that can be seen of an average of parameters and of its model."""
    make = with_whole_copies(Average) if kind == "fsdp2" else Average
    model, average = trained(
        kind, lambda model: make(model.parameters(), 0.9), lambda a, m: a.update(m.parameters()) if given else a.update()
    )
    assert isinstance(average, Average)
    seen = [parameters_of(model), average.state_dict()]
    with average.average_parameters():
        seen += [parameters_of(model), model(*batch(5)).item()]
    seen += [parameters_of(model)]
    average.store()
    average.copy_to()
    seen += [parameters_of(model)]
    average.restore()
    return [*seen, parameters_of(model)]


def check_averages_of_parameters() -> None:
    for given in (False, True):
        for seen, expected in zip(averaged("fsdp2", given), averaged("ddp", given), strict=True):
            assert close(seen, expected, 1e-5), (given, seen, expected)


def check_averages_of_models() -> None:
    def seen(kind: str) -> list[Any]:
        make = with_whole_copies(ModelAverage) if kind == "fsdp2" else ModelAverage
        model, average = trained(kind, lambda m: make(m.module if kind == "ddp" else m), lambda a, _: a.update())
        return [{k: v.clone() for k, v in average.state_dict().items()}, average(*batch(5)).item(), parameters_of(model)]

    for one, expected in zip(seen("fsdp2"), seen("ddp"), strict=True):
        assert close(one, expected, 1e-5)


def check_one_rank_alone() -> None:
    """As programs save averages: behind a test of the rank."""

    def saved(kind: str) -> list[Any]:
        make = with_whole_copies(Average) if kind == "fsdp2" else Average
        model, average = trained(kind, lambda m: make(m.parameters(), 0.9), lambda a, _: a.update())
        files: list[Any] = []
        with whole_on_each_rank(model):
            if dist.get_rank() == 0:
                average.store()
                average.copy_to()
                inner = model.module if kind == "ddp" else model
                files.append({name: p.detach().clone() for name, p in inner.named_parameters()})
                average.restore()
        return [*files, parameters_of(model)]

    for one, expected in zip(saved("fsdp2"), saved("ddp"), strict=True):
        assert close(one, expected, 1e-5)


def check_made_before_sharding() -> None:
    model = build("plain")
    average = with_whole_copies(Average)(model.parameters(), 0.9)
    with rebound_parameters(model):
        fully_shard(model)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    average.update()
    reference = build("plain")
    expected = Average(reference.parameters(), 0.9)
    with torch.no_grad():
        for p in reference.parameters():
            p.mul_(2)
    expected.update()
    assert close(average.state_dict(), expected.state_dict(), 1e-6)


def check_the_model_is_moved_after_it_was_given() -> None:
    """As to a device: the average's own tensors are moved by itself."""
    seen = []
    for make in (with_whole_copies(Average), Average):
        model = build("plain")
        average = make(model.parameters(), 0.9)
        model.to(torch.float64)
        average.shadow = [p.to(torch.float64) for p in average.shadow]
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(2)
        average.update()
        seen.append(average.state_dict())
    assert close(seen[0], seen[1], 1e-9)


def check_files_hold_the_library_s_class() -> None:
    average = with_whole_copies(Average)(build("fsdp2").parameters(), 0.9)
    file = io.BytesIO()
    torch.save(average, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded) is Average and not any(isinstance(p, DTensor) for p in loaded.parameters)
    assert type(average) is not Average
