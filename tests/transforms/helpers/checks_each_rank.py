"""What each_rank.py must do on two ranks. Run by test_each_rank.py."""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib.util
import pickle
import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from models import Net, batch, build, close, error_of, gradients_of, parameters_of
from to_fsdp2.transforms.helpers import each_rank, sharding_hooks
from to_fsdp2.transforms.helpers.copies import as_plain
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.each_rank import (
    ask_for_whole,
    entered,
    everything_whole_on_each_rank,
    holding_whole,
    whole_on_each_rank,
    whole_when_asked,
)
from to_fsdp2.transforms.helpers.gradients import no_gradient_sync
from to_fsdp2.transforms.helpers.methods import forward_method
from to_fsdp2.transforms.helpers.mixed import compute_as_whole
from to_fsdp2.transforms.helpers.shard import shard_like_fsdp1
from to_fsdp2.transforms.helpers.sharding_hooks import is_of_sharding
from to_fsdp2.transforms.helpers.state import state_of
from to_fsdp2.transforms.helpers.whole import whole
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def trained() -> tuple[Any, torch.optim.Optimizer]:
    model = build("fsdp2")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(*batch(0)).backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def is_whole(*things: Any) -> bool:
    states = [thing.state_dict() for thing in things]
    flat = [v for s in states for e in [s, *s.get("state", {}).values()] for v in e.values()]
    return not any(isinstance(value, DTensor) for value in flat)


def check_one_rank_works_alone() -> None:
    model, optimizer = trained()
    expected = parameters_of(model)
    ids = torch.arange(3)
    with torch.no_grad():
        output = model(ids)
    held = {"model": model, "beside": [optimizer, "text", None]}
    for context in (whole_on_each_rank(model, optimizer), whole_on_each_rank(held), everything_whole_on_each_rank()):
        with context:
            if dist.get_rank() == 0:
                assert is_whole(model, optimizer)
                with torch.no_grad():
                    assert close(model(ids), output)
        assert not is_whole(model) and not is_whole(optimizer)
    assert close(parameters_of(model), expected)
    model(*batch(1)).backward()
    optimizer.step()


def check_evaluation_behind_it_sees_what_was_written() -> None:
    """Between two evaluations that gather once: what all ranks wrote, what one of them loaded, or nothing at all."""
    model = shard_like_ddp(build("plain"))
    plain = build("plain")
    for work in ("write", "load", "read"):
        with torch.no_grad():
            model(*batch(0))
        with whole_on_each_rank(model), torch.no_grad():
            for p in model.parameters() if work == "write" else ():
                p.mul_(0.5)
            if dist.get_rank() == 0 and work == "load":
                model.load_state_dict({key: value * 3 for key, value in model.state_dict().items()})
        factor = {"write": 0.5, "load": 3, "read": 1}[work]
        with torch.no_grad():
            for p in plain.parameters():
                p.mul_(factor)
            assert close(model(*batch(0)), plain(*batch(0)))


def check_sharded_tensors_of_other_objects() -> None:
    """What an object keeps of parameters, such as averages, is whole too: one rank saves it alone."""

    class Kept:
        def __init__(self, model: Any) -> None:
            self.averages = {name: p.detach().clone() for name, p in model.named_parameters()}

        def state_dict(self) -> dict[str, Any]:
            return {"averages": self.averages}

    model, _ = trained()
    kept = {"ema": Kept(model)}
    expected = parameters_of(model)
    with whole_on_each_rank(model, kept):
        if dist.get_rank() == 0:
            saved = state_of(kept["ema"])["averages"]
            assert not any(isinstance(value, DTensor) for value in saved.values())
            assert close(dict(saved), dict(expected))
    assert all(isinstance(value, DTensor) and not hasattr(value, "_held_whole") for value in kept["ema"].averages.values())


def check_a_part_that_is_no_unit() -> None:
    model, _ = trained()
    part = next(m for m in model.modules() if not isinstance(m, FSDPModule) and any(True for _ in m.parameters()))
    expected = state_of(part)
    with whole_on_each_rank(part):
        if dist.get_rank() == 0:
            assert is_whole(part) and close(part.state_dict(), expected)
    assert not is_whole(part)


class Saved(Net):
    def save_pretrained(self, is_main_process: bool) -> Any:
        with whole_on_each_rank(self):
            state = state_of(self) if is_main_process else None
        return state, self.scale * 2


def check_a_method_that_some_ranks_leave_early() -> None:
    """The method's own gather goes on after the block, and one rank takes the state alone."""
    torch.manual_seed(0)
    model: Any = shard_like_ddp(Saved())
    for _ in range(2):
        state, twice = forward_method(model, "save_pretrained")(is_main_process=dist.get_rank() == 0)
        assert not isinstance(twice, DTensor)
        assert (state is None) == (dist.get_rank() != 0)
        assert state is None or not any(isinstance(value, DTensor) for value in state.values())
        model(*batch(0)).backward()


def check_models_are_saved_as_plain_ones() -> None:
    """In containers too, on all ranks, or on one inside whole_on_each_rank; training goes on after it."""
    torch.manual_seed(0)
    plain = Net()
    model: Any = shard_like_ddp(copy.deepcopy(plain))
    forward_method(model, "extra_repr")()
    with no_gradient_sync(model):
        pass
    other, ids = torch.ones(2), torch.arange(3)
    for context in (contextlib.nullcontext(), whole_on_each_rank(model)):
        with context:
            if isinstance(context, contextlib.nullcontext) or dist.get_rank() == 0:
                assert as_plain(other) is other and as_plain(plain) is plain
                saved = pickle.loads(pickle.dumps(as_plain({"net": model, "more": [other, *model.children()], "step": 3})))
                assert type(saved["net"]) is Net and saved["step"] == 3
                assert all(same_attributes(m, own) for m, own in zip(saved["net"].modules(), plain.modules(), strict=True))
                assert close(parameters_of(saved["net"]), parameters_of(plain))
                assert close(saved["net"](ids), plain(ids))
    model(*batch(0)).backward()
    assert close(gradients_of(model), gradients_of_plain(plain))


def check_an_optimizer_works_with_the_parameters_that_its_model_has_there() -> None:
    """One rank gives them other memory and back, and keeps a state dict, which stays whole; steps go on as before."""
    model, optimizer = trained()
    compute_as_whole(model)
    before = [p.full_tensor().clone() for p in model.parameters()]
    for p in model.parameters():
        optimizer.state[p]["average"] = torch.zeros_like(p)
    kept: list[Any] = []
    with whole_on_each_rank(optimizer, model):
        if dist.get_rank() == 0:
            for _ in range(2):
                for p in optimizer.param_groups[0]["params"]:
                    swapped = p.data.detach()
                    p.data = optimizer.state[p]["average"].detach()
                    optimizer.state[p]["average"] = swapped
                kept.append([p.detach().clone() for p in model.parameters()])
            kept.append(optimizer.state_dict())
            own = optimizer.param_groups[0]["params"]
            assert all(torch.equal(p, other) for p, other in zip(own, model.parameters(), strict=True))
            optimizer.state[optimizer.param_groups[0]["params"][-1]]["seen"] = 3
    if dist.get_rank() == 0:
        assert not any(value.any() for value in kept[0]) and close(kept[1], before)
        found = [value for entry in kept[2]["state"].values() for value in entry.values() if isinstance(value, torch.Tensor)]
        assert found and not any(isinstance(value, DTensor) for value in found)
        assert optimizer.state[list(model.parameters())[-1]]["seen"] == 3
    assert list(optimizer.state) == list(model.parameters()) == optimizer.param_groups[0]["params"]
    assert not any(whole(entry["average"]).any() for entry in optimizer.state.values())
    assert close([p.full_tensor() for p in model.parameters()], before)
    optimizer.step()


def check_hooks_of_another_copy_of_the_helpers_are_known() -> None:
    """Folders that do not import each other have a copy each, and one may shard what another one holds whole."""

    def hook() -> None: ...

    name = is_of_sharding.__module__.rpartition(".")[2]
    hook.__qualname__ = "gather_for_parts.<locals>.enter"
    for module, expected in ((f"other.{name}", True), (name, True), ("other.train", False), (f"not_{name}", False)):
        hook.__module__ = module
        assert is_of_sharding(hook) == expected


def check_hooks_of_other_code_in_the_file_are_kept() -> None:
    """The copy may lie in the training script itself, or beside modules with hooks of their own."""
    module = is_of_sharding.__module__
    for place in (module, f"{module.rpartition('.')[0]}.features"):

        def hook(*_: Any) -> None: ...

        hook.__module__ = place
        assert not is_of_sharding(hook)
    trees = [ast.parse(file.read_text()) for file in Path(sharding_hooks.__file__).parent.glob("*.py")]
    functions = [n for tree in trees for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    made = set()
    for top in functions:
        for call in (n for n in ast.walk(top) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)):
            if re.fullmatch(r"register_\w*hook", getattr(call.func, "attr", "")):
                handed = {n.id for argument in call.args for n in ast.walk(argument) if isinstance(n, ast.Name)}
                made |= {top.name} | (handed & {function.name for function in functions})
    assert made <= sharding_hooks.MAKERS_OF_HOOKS, made - sharding_hooks.MAKERS_OF_HOOKS


def check_hooks_that_come_and_go_inside() -> None:
    model, _ = trained()
    seen: list[str] = []
    gone = model.register_forward_hook(lambda *_: seen.append("gone"))
    with whole_on_each_rank(model):
        gone.remove()
        for name, part in model.named_modules():
            part.register_forward_hook(lambda *_, name=name: seen.append(name))
    model(*batch(0)).backward()
    assert "gone" not in seen and {name for name, part in model.named_modules() if isinstance(part, FSDPModule)} <= set(seen)
    assert all(isinstance(p.grad, DTensor) for p in model.parameters() if p.grad is not None)


def check_models_in_place_of_fsdp1_are_saved_as_plain_ones() -> None:
    plain = Net()
    for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
        model: Any = shard_like_fsdp1(copy.deepcopy(plain), sharding_strategy=strategy, device_id=torch.device("cpu"))
        model(*batch(0)).backward()
        saved = pickle.loads(pickle.dumps(as_plain(model)))
        assert all(same_attributes(m, own) for m, own in zip(saved.modules(), plain.modules(), strict=True))
        saved(*batch(0)).backward()
        saved.zero_grad()
        assert not any(p.grad is not None for p in saved.parameters())


def same_attributes(module: Any, other: Any) -> bool:
    """The same names, and hooks, and notes of hooks, as many."""
    ours, theirs = vars(module), vars(other)
    hooks = [name for name in ours if "hooks" in name]
    return ours.keys() == theirs.keys() and all(len(ours[name] or ()) == len(theirs[name] or ()) for name in hooks)


def gradients_of_plain(plain: Any) -> Any:
    for rank in range(dist.get_world_size()):
        (plain(*batch(0, rank)) / dist.get_world_size()).backward()
    return gradients_of(plain)


def check_parameters_that_something_else_holds() -> None:
    """`whole` of them gathers nothing while they are held, when only one rank asks."""
    model, _ = trained()
    kept, expected = list(model.named_parameters()), parameters_of(model)
    with whole_on_each_rank(model):
        if dist.get_rank() == 0:
            assert close({name: whole(p) for name, p in kept}, expected)
    assert close({name: whole(p).detach() for name, p in kept}, expected)


def check_everything_is_every_model() -> None:
    pairs = [trained(), trained()]

    @everything_whole_on_each_rank()
    def save() -> None:
        if dist.get_rank() == 0:
            assert is_whole(*(thing for pair in pairs for thing in pair))

    save()
    with whole_on_each_rank(*pairs):
        if dist.get_rank() == 0:
            save()  # alone, where all is whole
    with everything_whole_on_each_rank(needed=False):
        assert not is_whole(pairs[0][0])


def check_a_held_model_is_moved_as_a_plain_one() -> None:
    model, _ = trained()
    expected = parameters_of(model)
    with whole_on_each_rank(model):
        if dist.get_rank() == 0:
            assert model.to("cpu") is model and next(model.double().parameters()).dtype == torch.float64
            assert not isinstance(next(model.parameters()), DTensor)
    close(parameters_of(model.to("cpu")), expected)
    model(*batch(0)).backward()


def check_what_one_rank_keeps_is_its_own() -> None:
    """Rank 0 still has a model and an optimizer that the others dropped, as a name in a guard does."""
    kept = [trained(), trained()]
    with everything_whole_on_each_rank():
        pass
    kept += [trained()]  # never seen by all
    if dist.get_rank() != 0:
        kept.clear()
    model, optimizer = trained()
    with everything_whole_on_each_rank():
        if dist.get_rank() == 0:
            assert is_whole(model, optimizer) and not any(is_whole(old) for old, _ in kept)
            with everything_whole_on_each_rank():  # alone: nothing more is gathered
                assert is_whole(model, optimizer)
    assert not is_whole(model)


def check_everything_inside_of_a_held_model() -> None:
    """As in a function that saves a model, called by one rank for which the model is held; the optimizer is not."""
    model, optimizer = trained()
    expected = parameters_of(model)
    with whole_on_each_rank(model):
        if dist.get_rank() == 0:
            with everything_whole_on_each_rank():
                assert is_whole(model)
                assert close({name: p.detach() for name, p in model.named_parameters()}, expected)
    assert any(isinstance(value, DTensor) for entry in optimizer.state.values() for value in entry.values())


def check_decorated_functions() -> None:
    model, optimizer = trained()

    @holding_whole(lambda model, *_, **__: (model, optimizer))
    def save(model: Any) -> None:
        if dist.get_rank() == 0:
            assert is_whole(model, optimizer)

    save(model)
    assert not is_whole(model)


def check_training_inside_raises() -> None:
    model, _ = trained()

    def run() -> None:
        with whole_on_each_rank(model):
            model(*batch(0)).backward()

    assert "training ran" in str(error_of(run))


def check_a_backward_behind_it_raises() -> None:
    """What it learns would reach tensors that nobody has any more."""
    model, _ = trained()
    with whole_on_each_rank(model):
        loss = model(*batch(0))
        with torch.no_grad():
            silent = model(*batch(1))
    assert "training ran" in str(error_of(loss.backward))
    assert not silent.requires_grad
    model(*batch(0)).backward()
    assert all(p.grad is not None for p in model.parameters())


def check_a_step_inside_raises_at_once() -> None:
    """In front of gradients that are let go; other optimizers step, and once outside, this one does."""
    model, optimizer = trained()
    expected = parameters_of(model)
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)

    def run() -> None:
        with whole_on_each_rank(model):
            other.step()
            for number in range(2):
                assert not number, "the first step has to raise"
                model(*batch(number)).backward()
                optimizer.step()
                model.zero_grad()

    assert "training ran" in str(error_of(run))
    assert close(parameters_of(model), expected)
    model(*batch(0)).backward()
    optimizer.step()


class Around(torch.optim.Optimizer):
    """An optimizer around another one, with a state of its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner


def check_an_optimizer_around_another_is_whole_with_it() -> None:
    model, optimizer = trained()
    with whole_on_each_rank(Around(optimizer)):
        assert is_whole(optimizer) and not is_whole(model)
    assert not is_whole(optimizer)


def check_gradients_are_whole_too() -> None:
    model, _ = trained()
    model(*batch(1)).backward()
    expected = gradients_of(model)
    with whole_on_each_rank(model):
        if dist.get_rank() == 0:
            assert close({name: p.grad for name, p in model.named_parameters()}, expected)
            model.zero_grad()
    assert close(gradients_of(model), expected)


def check_a_rank_that_has_ended_its_process_group_is_not_waited_for() -> None:
    model, optimizer = trained()
    held = entered(whole_on_each_rank(model, optimizer))
    if dist.get_rank() == 0:
        next(model.parameters()).data.add_(1)
    else:
        dist.destroy_process_group()
    held.close()
    assert isinstance(next(model.parameters()), DTensor)
    dist.barrier = lambda: None  # which would end the check


def check_what_one_rank_asks_for_is_whole_from_then_on() -> None:
    model, optimizer = trained()
    saved: list[dict[str, Any]] = []
    for step in range(4):
        with whole_when_asked(model, optimizer):
            if dist.get_rank() == 0:
                assert isinstance(next(model.parameters()), DTensor)
                if step in (1, 2):
                    ask_for_whole()
                    ask_for_whole()
                    saved.append({"model": copy.deepcopy(model.state_dict()), "out": model(*batch(0)).item()})
                    with whole_when_asked(model), whole_on_each_rank(model):
                        assert not isinstance(next(model.parameters()), DTensor)
        assert isinstance(next(model.parameters()), DTensor)
        ask_for_whole()
    expected = parameters_of(model)
    loss = model(*batch(0)).item()
    assert len(saved) == (2 if dist.get_rank() == 0 else 0)
    for entry in saved:
        assert all(close(entry["model"][name], value) for name, value in expected.items())
        assert dist.get_rank() != 0 or close(entry["out"], loss)


def check_all_ranks_and_everything_asked_for() -> None:
    model, _ = trained()
    for asked in (False, True):
        held = entered(whole_when_asked())
        if asked:
            ask_for_whole()
        assert isinstance(next(model.parameters()), DTensor) != asked
        held.close()
        assert isinstance(next(model.parameters()), DTensor)
    assert isinstance(error_of(_ask_and_fail), ZeroDivisionError)
    with whole_when_asked(model):
        assert isinstance(next(model.parameters()), DTensor)


def check_another_copy_of_the_helpers_may_ask() -> None:
    """Folders that do not import each other have a copy each: one asks for what another one waits with."""
    spec: Any = importlib.util.spec_from_file_location(f"{each_rank.__package__}.copied", each_rank.__file__)
    copied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)
    model, _ = trained()
    with whole_when_asked(model):
        if dist.get_rank() == 0:
            copied.ask_for_whole()
            assert not isinstance(next(model.parameters()), DTensor)
            with copied.whole_on_each_rank(model), copied.whole_when_asked(model):
                assert not isinstance(next(model.parameters()), DTensor)
    assert isinstance(next(model.parameters()), DTensor)


def _ask_and_fail() -> None:
    with whole_when_asked():
        ask_for_whole()
        raise ZeroDivisionError
