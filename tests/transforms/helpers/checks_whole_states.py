"""What whole_states.py must do on two ranks: what the same lines do under DDP. Run by test_state.py."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from models import batch, build, close, parameters_of
from to_fsdp2.transforms.helpers.copies import as_plain, plain_copy
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.each_rank import whole_on_each_rank
from to_fsdp2.transforms.helpers.methods import forward_method
from to_fsdp2.transforms.helpers.state import model_state
from to_fsdp2.transforms.helpers.whole import whole
from to_fsdp2.transforms.helpers.whole_states import keep_state_dicts_whole
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP

OPTIMIZERS: list[Callable[[Any], Any]] = [
    lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    lambda p: torch.optim.Adagrad(p, lr=1e-2, foreach=False),
]  # fmt: skip


def models() -> tuple[Any, Any]:
    """DDP's module with its wrapper, and the model that stands for both."""
    ddp, new = build("ddp"), build("fsdp2", like="ddp")
    keep_state_dicts_whole(new)
    return ddp, new


def train(model: Any, optimizer: Any, start: int, end: int) -> None:
    for step in range(start, end):
        optimizer.zero_grad()
        model(*batch(step)).backward()
        optimizer.step()


def same(one: Any, other: Any) -> bool:
    return list(one) == list(other) and type(one) is type(other) and close(dict(one), dict(other))


def plain(state: Any) -> bool:
    return all(type(value) is torch.Tensor for value in state.values())


def check_states_of_models_and_their_parts() -> None:
    ddp, new = models()
    for model in (ddp, new):
        train(model, OPTIMIZERS[0](model.parameters()), 0, 2)
    for evaluate in (False, True):
        if evaluate:
            with torch.no_grad():
                _ = ddp(*batch(9)), new(*batch(9))
        assert same(new.state_dict(), ddp.module.state_dict()) and plain(new.state_dict())
        assert same(new.layers[1].state_dict(prefix="x."), ddp.module.layers[1].state_dict(prefix="x."))
        assert same(new.head.state_dict(), ddp.module.head.state_dict())
        assert same(model_state(new), ddp.state_dict())
        assert new.state_dict()._metadata == ddp.module.state_dict()._metadata
        state = new.state_dict()
        assert state["emb.weight"] is state["head.weight"], "tied ones stay one"
        inside = nn.ModuleDict({"net": new})
        assert same(inside.state_dict(), nn.ModuleDict({"net": ddp.module}).state_dict())
        only_part = nn.ModuleList([new.layers[0]])
        assert same(only_part.state_dict(), nn.ModuleList([ddp.module.layers[0]]).state_dict())
        assert all(isinstance(p, DTensor) for p in new.parameters())
        assert new.state_dict(keep_vars=True)["scale"].requires_grad


def check_loading() -> None:
    source, _ = models()
    train(source, OPTIMIZERS[1](source.parameters()), 0, 2)
    for state in (source.state_dict(), source.module.state_dict()):
        for assign in (False, True):
            _, new = models()
            assert str(new.load_state_dict(state, assign=assign)) == "<All keys matched successfully>"
            assert same(new.state_dict(), source.module.state_dict())
            if not assign:  # it unties, as ever
                new(*batch(3)).backward()
    _, new = models()
    without = {key: value for key, value in source.module.state_dict().items() if "scale" not in key} | {"more": torch.ones(1)}
    result = new.load_state_dict(without, strict=False)
    assert result.missing_keys == ["scale"] and result.unexpected_keys == ["more"]
    assert str(new.layers[0].load_state_dict(source.module.layers[1].state_dict())) == "<All keys matched successfully>"
    holder = nn.ModuleDict({"net": new})
    assert holder.load_state_dict(nn.ModuleDict({"net": source}).state_dict()).missing_keys == []
    assert close(parameters_of(new), parameters_of(source))


def check_optimizers() -> None:
    for make in OPTIMIZERS:
        for loads_late in (False, True):
            results = []
            for model in models():
                optimizer = make(model.parameters())
                train(model, optimizer, 0, 2)
                file = io.BytesIO()
                inner = getattr(model, "module", model)
                torch.save({"model": inner.state_dict(), "optimizer": optimizer.state_dict()}, file)
                again = next(iter(models()[model is inner :]))
                resumed = make(again.parameters())
                if loads_late:
                    train(again, resumed, 5, 6)
                loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
                saved = copy.deepcopy(loaded["optimizer"])  # loading keeps tensors as they are, and steps change them
                getattr(again, "module", again).load_state_dict(loaded["model"])
                resumed.load_state_dict(loaded["optimizer"])
                states = [copy.deepcopy(resumed.state_dict())]
                train(again, resumed, 2, 4)
                results.append((saved, *states, resumed.state_dict(), parameters_of(again)))
            (old, *olds), (new, *news) = results
            assert new["param_groups"] == old["param_groups"]
            assert close(new["state"], old["state"])
            for one, other in zip(news[:2], olds[:2], strict=True):
                assert close(one["state"], other["state"])
            assert close(news[-1], olds[-1])


class Climbing(torch.optim.Optimizer):
    """Goes up before it lets another optimizer go down: its own step() is called by nobody."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})
        self.inner = torch.optim.SGD(self.param_groups, lr=0.01, momentum=0.9)

    @torch.no_grad()
    def first_step(self) -> None:
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            self.state[p]["way"] = p.grad * 0.05
            p.add_(self.state[p]["way"])

    @torch.no_grad()
    def second_step(self) -> None:
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            p.sub_(self.state[p]["way"])
        self.inner.step()


def check_optimizers_that_never_step_themselves() -> None:
    found = []
    for model in models():
        optimizer = Climbing(model.parameters())
        for step in range(2):
            model(*batch(step)).backward()
            optimizer.first_step()
            optimizer.zero_grad()
            model(*batch(step)).backward()
            optimizer.second_step()
            optimizer.zero_grad()
        found.append((optimizer.state_dict(), optimizer.inner.state_dict()))
    (own, inner), (new_own, new_inner) = found
    assert all(type(entry["way"]) is torch.Tensor for entry in new_own["state"].values())
    assert close(own["state"], new_own["state"]) and close(inner["state"], new_inner["state"])


def check_what_is_written_into_a_state_dict_is_written_into_the_model() -> None:
    def half(model: Any) -> None:
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.mul_(0.5)

    def partly(model: Any) -> None:
        state = model.state_dict()
        state["layers.0.up.weight"].copy_(torch.ones_like(state["layers.0.up.weight"]))
        state["layers.1.up.bias"].data.fill_(2.0)

    for write in (half, partly):
        ddp, new = models()
        for model in (ddp, new):
            optimizer = OPTIMIZERS[0](model.parameters())
            train(model, optimizer, 0, 1)
            write(getattr(model, "module", model))
            train(model, optimizer, 1, 2)
        assert close(parameters_of(new), parameters_of(ddp), 1e-5)
        for model in (ddp.module, new):
            write(model)
        assert same(new.state_dict(), ddp.module.state_dict()), "before the next state dict too"


def check_what_is_written_into_a_state_dict_is_there_for_whatever_comes_next() -> None:
    """A method that gathers, a part alone, an optimizer's step: not forwards alone."""

    def by_method(model: Any) -> Any:
        return forward_method(model, "predict")(batch(0)[0])

    def by_step(model: Any) -> Any:
        torch.optim.SGD(model.parameters(), 0.1).step()
        return model.state_dict()["layers.0.up.weight"]

    for then in (by_method, by_step):
        results = []
        for model in models():
            inner = getattr(model, "module", model)
            type(inner).predict = lambda self, x: self.forward(x)
            model(*batch(0)).backward()
            for value in inner.state_dict().values():
                value.data.mul_(0.5)
            with torch.no_grad():
                results.append(then(inner))
        assert torch.allclose(results[0], whole(results[1]), 1e-5), then.__name__


def check_what_is_written_to_parameters_behind_a_state_dict_stays() -> None:
    def by_data(parameter: Any) -> None:
        parameter.data.mul_(0.5)

    @torch.no_grad()
    def in_place(parameter: Any) -> None:
        parameter.add_(1.0)

    for write in (by_data, in_place):
        results = []
        for model in models():
            state = model.state_dict()
            for parameter in model.parameters():
                write(parameter)
            with torch.no_grad():
                model(batch(0)[0])
            results.append((parameters_of(model), state))
        assert close(results[1][0], results[0][0], 1e-6), write.__name__


def check_copies_and_one_rank_alone() -> None:
    ddp, new = models()
    for model in (ddp, new):
        train(model, OPTIMIZERS[0](model.parameters()), 0, 1)
    file = io.BytesIO()
    torch.save(as_plain(new), file)
    loaded: Any = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert same(loaded.state_dict(), ddp.module.state_dict())
    with whole_on_each_rank(new):
        if torch.distributed.get_rank() == 0:
            assert same(new.state_dict(), ddp.module.state_dict())
    train(new, OPTIMIZERS[0](new.parameters()), 1, 2)


@torch.no_grad()
def update_by_names(average: Any, model: Any) -> None:
    """What ModelEma of timm does."""
    state, prefix = model.state_dict(), "module." if hasattr(model, "module") else ""
    for key, value in average.state_dict().items():
        value.copy_(value * 0.9 + 0.1 * state[prefix + key].detach())


@torch.no_grad()
def update_by_order(average: Any, model: Any) -> None:
    """What ModelEmaV2 of timm does."""
    for value, new in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
        value.copy_(0.9 * value + 0.1 * new)


def check_averages_that_read_state_dicts() -> None:
    for update in (update_by_names, update_by_order):
        averages = []
        for model in models():
            average = copy.deepcopy(as_plain(model.module if hasattr(model, "module") else model)).requires_grad_(False)
            optimizer = OPTIMIZERS[0](model.parameters())
            for step in range(3):
                train(model, optimizer, step, step + 1)
                update(average, model)
            averages.append(parameters_of(average))
        assert close(*averages), update.__name__


class Around(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        return self.module(*args)


def check_a_copy_of_a_part_that_a_unit_further_out_holds() -> None:
    """It is plain, and has no hand in what is written into the model's own state dict."""
    around: Any = Around(build("plain"))
    fully_shard(around)
    keep_state_dicts_whole(around)
    average = plain_copy(around.module)
    assert not any(isinstance(p, DTensor) for p in average.parameters())
    for own, other in zip(around.module.state_dict().values(), average.state_dict().values(), strict=True):
        own.data.copy_(other.data + 1 if own.is_floating_point() else other.data)
    expected = {key: value + 1 for key, value in average.state_dict().items() if value.is_floating_point()}
    assert close({key: around.module.state_dict()[key] for key in expected}, expected)


def check_what_was_shown_is_let_go_with_the_model() -> None:
    ddp, new = models()
    shown = [weakref.ref(value) for value in new.state_dict().values() if value.is_floating_point()]
    assert any(reference() is not None for reference in shown), "kept until the next forward: it may be written"
    del ddp, new
    gc.collect()
    assert all(reference() is None for reference in shown)


def check_what_is_loaded_replaces_what_was_written_into_an_earlier_state_dict() -> None:
    """Averages over ranks by hand: the sum is written into the state dict, and a tenth of it is loaded."""
    results = []
    for model in models():
        state = model.state_dict()
        for value in state.values():
            dist.all_reduce(value)
        model.load_state_dict({key: value / 10 for key, value in state.items()})
        results.append([model(*batch(0)).detach(), *(whole(p.detach()) for p in model.parameters())])
    assert all(torch.allclose(expected, found) for expected, found in zip(*results, strict=True))


class Teacher(nn.Module):
    """Updates an average of its encoder within its forward, as data2vec does."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), nn.Linear(8, 8)
        self.average: dict[str, Any] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name, value in self.encoder.state_dict().items():
            before: Any = self.average.get(name, value.clone())
            self.average[name] = before.lerp(value, 0.1)
        return self.head(self.encoder(x)) - sum(value.mean() for value in self.average.values())


def check_a_state_dict_within_a_forward_leaves_it_whole() -> None:
    torch.manual_seed(0)
    net, results = Teacher(), []
    for wrap in (DDP, shard_like_ddp):
        for finds_unused in (False, True):
            model: Any = wrap(copy.deepcopy(net), find_unused_parameters=finds_unused)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(3):
                x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            results.append([parameters_of(model), dict(getattr(model, "module", model).average)])
    assert close(results[2], results[0]) and close(results[3], results[1])
