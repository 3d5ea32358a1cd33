"""What each_rank.py must do on two ranks at the end of what it holds. Run by test_each_rank.py."""

from __future__ import annotations

import contextlib
import copy
import functools
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from checks_each_rank import is_whole, trained
from models import Net, batch, close, parameters_of
from to_fsdp2.transforms.helpers.agreement import true_on_any_rank
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.each_rank import entered, everything_whole_on_each_rank, whole_on_each_rank
from to_fsdp2.transforms.helpers.mixed import compute_as_whole
from to_fsdp2.transforms.helpers.named_optimizer_state import optim_state_dict, optim_state_dict_to_load
from to_fsdp2.transforms.helpers.optimizer_state import load_optimizer_state, optimizer_state
from to_fsdp2.transforms.helpers.state import load_model_state, load_state, state_of
from to_fsdp2.transforms.helpers.whole import whole
from torch.distributed import distributed_c10d
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def check_what_one_rank_writes_all_get() -> None:
    """As where it is sent from there afterwards; what is restored in the end is as it was."""
    model, _ = trained()
    expected = parameters_of(model)
    other = {key: torch.full_like(value, 3.0) for key, value in state_of(model).items()}
    with whole_on_each_rank(model):
        if dist.get_rank() == 0:
            mine = {key: value.clone() for key, value in model.state_dict().items()}
            model.load_state_dict(other)
            assert all((p == 3).all() for p in model.parameters())
            model.load_state_dict(mine)
    assert close(parameters_of(model), expected)
    with whole_on_each_rank(model):
        if dist.get_rank() == 1:
            load_model_state(model, other)
    assert all((whole(p.detach()) == 3).all() for p in model.parameters())
    with whole_on_each_rank(model):
        for p in model.parameters():
            p.data.fill_(dist.get_rank())
    assert {float(p.full_tensor().max()) for p in model.parameters()} <= {0.0, 1.0}  # each rank has cut its own


def trained_ddp() -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = shard_like_ddp(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(*batch(0)).backward()
    optimizer.step()
    return model, optimizer


def check_what_one_rank_loads_into_an_optimizer_all_get() -> None:
    for make, load in ((trained_ddp, torch.optim.Optimizer.load_state_dict), (trained, load_optimizer_state)):
        model, optimizer = make()
        state = optimizer_state(optimizer)
        other = {**state, "state": {key: {**e, "exp_avg": e["exp_avg"] + 1} for key, e in state["state"].items()}}
        wanted = {key: entry["exp_avg"] for key, entry in other["state"].items()}
        with whole_on_each_rank(model, optimizer):
            if dist.get_rank() == 0:
                load(optimizer, other)
                assert all(torch.equal(e["exp_avg"], wanted[key]) for key, e in optimizer.state_dict()["state"].items())
        assert all(close([e["exp_avg"]], [wanted[key]]) for key, e in optimizer_state(optimizer)["state"].items())
        assert all(isinstance(entry["exp_avg"], DTensor) for entry in optimizer.state.values())


def check_all_ranks_load_into_a_new_optimizer() -> None:
    """By position, and by the names of FSDP1's own functions: the steps afterwards are those of one that was never cut."""
    expected, (model, optimizer) = None, trained()
    saved, positions, named = copy.deepcopy((state_of(model), optimizer_state(optimizer), optim_state_dict(model, optimizer)))
    for give in (None, lambda *_: positions, lambda net, new: optim_state_dict_to_load(net, new, named)):
        if give is not None:
            load_state(model, saved)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            with whole_on_each_rank(optimizer, model):
                load_optimizer_state(optimizer, give(model, optimizer))
        assert all(isinstance(entry["exp_avg"], DTensor) for entry in optimizer.state.values())
        optimizer.zero_grad()
        model(*batch(7)).backward()
        optimizer.step()
        expected = expected or parameters_of(model)
        assert close(parameters_of(model), expected)


def check_one_rank_works_longer_than_a_collective_may_wait() -> None:
    model, optimizer = trained()
    distributed_c10d._set_pg_timeout(timedelta(seconds=1), dist.group.WORLD)
    for _ in range(2):
        with whole_on_each_rank(model, optimizer):
            if dist.get_rank() == 0:
                time.sleep(3)
    assert close(parameters_of(model), parameters_of(trained()[0]))


class Trainer:
    """Whose lists of parameters come before the models that have them, by name."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.models = {"encoder": shard_like_ddp(Net()), "decoder": shard_like_ddp(Net())}
        self.all_params = [p for model in self.models.values() for p in model.parameters()]
        self.all_params[0].requires_grad_(False)


def check_a_list_of_parameters_is_held_as_the_models_are() -> None:
    trainer = Trainer()
    asked = [p.requires_grad for p in trainer.all_params]
    with whole_on_each_rank(trainer):
        named = [p for model in trainer.models.values() for p in model.parameters()]
        assert [p.requires_grad for p in named] == asked == [p.requires_grad for p in trainer.all_params]
        assert not any(isinstance(p, DTensor) for p in named)
        assert all(torch.equal(one.detach(), p) for one, p in zip(trainer.all_params, named, strict=True))


def check_what_is_kept_of_parameters_are_the_live_ones() -> None:
    """One rank takes them once, and averages and exchanges them later, each time where the model is held."""
    results = []
    for wrap in (DistributedDataParallel, shard_like_ddp):
        torch.manual_seed(0)
        model = wrap(Net())
        inner = getattr(model, "module", model)
        optimizer, kept, average = torch.optim.SGD(model.parameters(), lr=0.1), {}, []
        with whole_on_each_rank(model):
            if dist.get_rank() == 0:
                kept["live"], kept["named"] = list(inner.parameters()), dict(inner.named_parameters())
                average = [p.clone().detach() for p in kept["live"]]
        for step in range(3):
            optimizer.zero_grad()
            model(*batch(step)).backward()
            optimizer.step()
            with whole_on_each_rank(model), torch.no_grad():
                for mean, p in zip(average, kept.get("live", ()), strict=True):
                    mean.lerp_(p, 0.5)
        with whole_on_each_rank(model), torch.no_grad():
            before = [p.clone() for p in kept.get("live", ())]
            for mean, p in zip(average, kept.get("live", ()), strict=True):
                p.data.copy_(mean)
            saved = {key: value.clone() for key, value in inner.state_dict().items()}
            for p, old in zip(kept.get("live", ()), before, strict=True):
                p.data.copy_(old)
        assert all(p is kept["named"][name] for name, p in inner.named_parameters() if kept and wrap is shard_like_ddp)
        results.append((average, saved if dist.get_rank() == 0 else {}, parameters_of(inner)))
    assert close(list(results[0][0]), list(results[1][0]))
    assert close(*[saved for _, saved, _ in results])
    assert close(*[parameters for _, _, parameters in results])


def check_what_all_ranks_load_stays() -> None:
    """Where a test holds a model whole that all ranks pass: by an own method, through `.data`, and the optimizer's state."""
    model, optimizer = trained()
    other = {key: value + 1 for key, value in state_of(model).items()}
    with whole_on_each_rank(model):
        model.load_state_dict(other)
    assert close(state_of(model), other)
    with everything_whole_on_each_rank():
        for p in model.parameters():
            p.data.mul_(2)
    assert close(state_of(model), {key: value * 2 for key, value in other.items()})
    state = copy.deepcopy(whole(optimizer.state_dict()))
    for entry in state["state"].values():
        entry["exp_avg"] += 1
    with whole_on_each_rank(optimizer, model):
        optimizer.load_state_dict(state)
    assert close(whole(optimizer.state_dict())["state"][0], state["state"][0])
    assert not is_whole(model) and not is_whole(optimizer)
    model(*batch(0)).backward()
    optimizer.step()


def check_a_context_without_a_block() -> None:
    model, _ = trained()
    held = entered(whole_on_each_rank(model))
    assert is_whole(model)
    held.close()
    assert not is_whole(model)
    assert not is_whole(entered(whole_on_each_rank(model, needed=False)) and model)


def check_an_exception_ends_a_context_without_a_block() -> None:
    model, optimizer = trained()

    def save() -> None:
        held = entered(whole_on_each_rank(model, optimizer))
        assert is_whole(model, optimizer)
        if dist.get_rank() == 0:
            raise ValueError("no space left")
        held.close()

    with contextlib.suppress(ValueError):
        save()
    assert not is_whole(model)
    assert not is_whole(optimizer)
    model(*batch(1)).backward()
    optimizer.step()


def check_one_rank_answers_for_itself_where_models_are_held() -> None:
    """As a saver that rank 0 alone has does, in front of a hold of its own that only it comes to."""
    model, optimizer = trained()
    for hold in (everything_whole_on_each_rank(), whole_on_each_rank(model, optimizer)):
        with hold:
            if dist.get_rank() == 0:
                assert true_on_any_rank(True) and not true_on_any_rank(False)
                with whole_on_each_rank(model, optimizer, needed=true_on_any_rank(True)):
                    assert is_whole(model, optimizer)
    assert true_on_any_rank(dist.get_rank() == 1) and not is_whole(model)


class Groups:
    """Keeps parameters as libraries do, in a tuple."""

    def __init__(self, parameters) -> None:
        self.main = tuple(parameters)


def check_optimizers_that_are_made_while_it_is_held_go_on_with_shards() -> None:
    """With the state that they loaded meanwhile; what keeps parameters in a tuple has shards too."""
    model, optimizer = trained()
    saved = copy.deepcopy(state_of(optimizer))
    expected = trained()[0]
    with everything_whole_on_each_rank():
        made = torch.optim.AdamW(model.parameters(), lr=0.1)
        made.load_state_dict(copy.deepcopy(saved))
        groups = Groups(model.parameters())
    assert groups.main == tuple(model.parameters()) and all(a is b for a, b in zip(groups.main, model.parameters(), strict=True))
    other = torch.optim.AdamW(expected.parameters(), lr=0.1)
    load_state(other, copy.deepcopy(saved))
    for trainer, net in ((made, model), (other, expected)):
        net(*batch(7)).backward()
        trainer.step()
    assert list(made.state) == list(model.parameters())
    assert close(parameters_of(model), parameters_of(expected))


class Pruner:
    def __init__(self, model: torch.nn.Module) -> None:
        self.weights = dict(model.named_parameters())


def check_what_holds_parameters_beside_their_model() -> None:
    """In either order: the parameters are held once, and what is read of them is the model's."""
    model, _ = trained()
    expected = parameters_of(model)
    pruner = Pruner(model)
    for things in ((pruner, model), (model, pruner)):
        with whole_on_each_rank(*things):
            assert close({name: whole(p.detach()) for name, p in pruner.weights.items()}, dict(expected))
        assert not any(hasattr(p, "_held_whole") for p in model.parameters())
    assert close(parameters_of(model), expected)


class Keeper:
    """Keeps each parameter in one place alone."""

    def __init__(self, model: Net) -> None:
        (name, first), (_, second), (_, third), (_, fourth), (_, fifth), *others = model.named_parameters()
        self.listed = [p for _, p in others]
        self.paired = [(name, first)]
        self.chosen = {second}
        self.functions = [lambda kept=third: kept, functools.partial(lambda kept: kept, fourth), lambda: fifth]

    def all(self) -> list[torch.Tensor]:
        return [*(p for _, p in self.paired), *self.chosen, *(give() for give in self.functions), *self.listed]


def check_what_is_kept_in_one_place_alone_is_live() -> None:
    model, _ = trained()
    with whole_on_each_rank(model):
        keeper = Keeper(model)
        assert not any(isinstance(p, DTensor) for p in keeper.all())
    assert {id(p) for p in keeper.all()} == {id(p) for p in model.parameters()}


def check_hooks_that_one_rank_registers_fire_afterwards() -> None:
    """Those of before as well, inside and afterwards."""
    torch.manual_seed(0)
    model = shard_like_ddp(Net())
    seen: list[str] = []
    first, second = list(model.parameters())[:2]
    first.register_hook(lambda _: seen.append("before"))
    with whole_on_each_rank(model):
        if dist.get_rank() == 0:
            for name, p in zip("ab", list(model.parameters())[:2], strict=True):
                p.register_hook(lambda _, name=name: seen.append(name))
    assert isinstance(second, DTensor)
    model(*batch(0)).backward()
    assert sorted(seen) == (["a", "b", "before"] if dist.get_rank() == 0 else ["before"])
    seen.clear()
    with whole_on_each_rank(model):
        model(*batch(0)).backward()
        model.zero_grad()
    assert "before" in seen


def check_a_hook_of_one_rank_reads_its_parameter() -> None:
    """Also one that keeps it in a default: in the backward it is whole, and no other rank is asked."""
    torch.manual_seed(0)
    model = shard_like_ddp(Net())
    compute_as_whole(model)
    expected = {key: value.clone() for key, value in state_of(model).items()}
    seen: dict[str, torch.Tensor] = {}
    with whole_on_each_rank(model):
        if dist.get_rank() == 0:
            for name, p in model.named_parameters():
                p.register_hook(lambda _, name=name, kept=p: seen.update({name: kept.detach().double()}))
    model(*batch(0)).backward()
    assert not dist.get_rank() or not seen
    assert bool(seen) == (dist.get_rank() == 0)
    assert all(torch.equal(value, expected[name].double()) for name, value in seen.items())
    assert not any(hasattr(p, "_held_whole") for p in model.parameters())
