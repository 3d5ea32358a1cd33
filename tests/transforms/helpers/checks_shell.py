"""Classes derived from DDP and FSDP1 beside the same classes with another base, on two ranks. Run by test_shell.py."""

from __future__ import annotations

import copy
from typing import Any

import torch
from models import Block, Net, batch, close
from to_fsdp2.transforms.helpers.clipping import clip_model_grad_norm
from to_fsdp2.transforms.helpers.gradients import no_gradient_sync
from to_fsdp2.transforms.helpers.shell import ShardedLikeDDP, ShardedLikeFSDP1
from to_fsdp2.transforms.helpers.state import load_model_state, model_state
from to_fsdp2.transforms.helpers.units import unwrap
from to_fsdp2.transforms.helpers.value_classes import ClassLikeDDP, ClassLikeFSDP1
from to_fsdp2.transforms.helpers.whole import whole
from to_fsdp2.transforms.helpers.wrapped import stands_for
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel as DDP


def derived(base: Any, **options: Any) -> Any:
    """A wrapper of a program's own, with an overridden forward and a method for evaluations."""

    class Doubled(base):
        def __init__(self, module: Any, factor: float) -> None:
            super().__init__(module, **options)
            self.factor = factor

        def forward(self, *args: Any) -> Any:
            return super().forward(*args) * self.factor

        def validate(self, *args: Any) -> Any:
            with torch.no_grad():
                return self.module(*args) if base in (DDP, ShardedLikeDDP) else self(*args)

    torch.manual_seed(0)
    return Doubled(Net(), 2.0)


def trained(model: Any, context: Any) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Losses of steps over two micro-batches each, the first without synchronization, and the state afterwards."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    losses = []
    for step in range(3):
        with context(model):
            model(*batch(2 * step)).backward()
        loss = model(*batch(2 * step + 1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses += [loss.detach(), model.validate(*batch(9))]
    return losses, model_state(model)


def compare(old: Any, new: Any) -> None:
    assert isinstance(new, FSDPModule) and type(unwrap(new)) is Net
    losses, state = trained(old, lambda model: model.no_sync())
    new_losses, new_state = trained(new, no_gradient_sync)
    assert close(losses, new_losses)
    assert list(state) == list(new_state) and close(dict(state), dict(new_state))
    zeros = {key: torch.zeros_like(value) for key, value in state.items()}
    load_model_state(new, zeros)
    assert all(not value.any() for value in model_state(new).values())
    assert not load_model_state(new, state).missing_keys
    assert close(dict(model_state(new)), dict(state))


def check_derived_from_ddp() -> None:
    compare(derived(DDP), derived(ShardedLikeDDP))


def check_a_class_with_names_of_its_own() -> None:
    results = []
    for base in (DDP, ShardedLikeDDP):

        class Bare(base):  # type: ignore[misc, valid-type]
            def named_parameters(self, prefix: str = "", recurse: bool = True) -> Any:
                return self.module.named_parameters(prefix=prefix, recurse=recurse)

        torch.manual_seed(0)
        model = Bare(Net())
        optimizer = torch.optim.SGD([p for _, p in model.named_parameters()], lr=0.3)
        model(*batch(0)).backward()
        optimizer.step()
        results.append([whole(p.detach()) for _, p in model.named_parameters()])
        assert [name for name, _ in model.named_parameters()] == [name for name, _ in Net().named_parameters()]
    assert all(map(close, *results))


def check_derived_from_fsdp1() -> None:
    options = {"auto_wrap_policy": ModuleWrapPolicy({Block}), "use_orig_params": True, "device_id": torch.device("cpu")}
    old, new = derived(FSDP, **options), derived(ShardedLikeFSDP1, **options)
    compare(old, new)
    assert [name for name, _ in new.named_parameters()] == [name for name, _ in unwrap(new).named_parameters()]
    assert new.layers is new.module.layers


def check_states_of_torchs_own_functions() -> None:
    """What get_state_dict gives of a derived class has FSDP1's keys, and set_state_dict takes it."""
    found = []
    for base in (FSDP, ShardedLikeFSDP1):
        policy = ModuleWrapPolicy({Block})
        model = derived(base, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu"))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        whole = StateDictOptions(full_state_dict=True)

        def step(model: Any = model, optimizer: Any = optimizer) -> torch.Tensor:
            loss = model(*batch(1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        step()
        # Whole tensors may be views of the shards.
        state, optim = copy.deepcopy(get_state_dict(model, optimizer, options=whole))
        losses = [step(), step()]
        set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=optim, options=whole)
        assert close(losses, [step(), step()])
        found.append((set(state), set(optim["state"]), losses))
    assert found[0][:2] == found[1][:2] and close(found[0][2], found[1][2])


def check_gradients_are_clipped() -> None:
    """By the method that every wrapper of FSDP1 has, and by the helper that takes its place where a model is not known."""
    norms = []
    for base, clip in ((FSDP, FSDP.clip_grad_norm_), (ShardedLikeFSDP1, ShardedLikeFSDP1.clip_grad_norm_),
                       (ShardedLikeFSDP1, clip_model_grad_norm)):  # fmt: skip
        model = derived(base, use_orig_params=True, device_id=torch.device("cpu"))
        model(*batch(0)).backward()
        norms += [clip(model, 1e-3), clip(model, 1.0)]
    assert close(norms[:2], norms[2:4]) and close(norms[:2], norms[4:])


def check_what_a_shell_stands_for() -> None:
    for base, kind in ((ShardedLikeDDP, "ddp"), (ShardedLikeFSDP1, "fsdp1")):
        shell: Any = type("Own", (base,), {})(nn.Linear(4, 4))
        assert stands_for(shell) == kind
        assert stands_for(shell.module) is None
    assert stands_for(nn.Linear(4, 4)) is None


def check_classes_that_are_values() -> None:
    for cls, kind, other in ((ClassLikeDDP, "ddp", ClassLikeFSDP1), (ClassLikeFSDP1, "fsdp1", ClassLikeDDP)):
        net = Net()
        options: Any = {} if kind == "ddp" else {"device_id": torch.device("cpu")}
        model: Any = cls(net, **options)
        assert model is net and isinstance(model, FSDPModule) and stands_for(model) == kind
        assert isinstance(model, (cls, int)) and not isinstance(model, other) and not isinstance(nn.Linear(4, 4), cls)
        assert not isinstance(model, tuple({other})) and isinstance(model, tuple({cls}))
    assert isinstance(DDP(Net()), ClassLikeDDP) and not isinstance(DDP(Net()), ClassLikeFSDP1)  # as a library makes them


def frozen_in_turn(base: Any) -> list[torch.Tensor]:
    """Losses where the wrapper is made anew whenever other parameters train, and then around a part of the model."""

    class Wrapper(base):
        pass

    torch.manual_seed(0)
    net = Net()
    losses = []
    for names in (("head", "emb"), ("layers",), ("layers.1", "scale")):
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name.startswith(names))
        model = Wrapper(net, find_unused_parameters=True)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.3)
        for step in range(2):
            loss = model(*batch(step))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    part: Any = Wrapper(net.layers[0].requires_grad_(True))
    optimizer = torch.optim.SGD(part.parameters(), lr=0.3)
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(int(batch(1)[0].sum())))
    for _ in range(2):
        optimizer.zero_grad()
        loss = part(x).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def check_wrappers_that_are_made_anew() -> None:
    assert close(frozen_in_turn(DDP), frozen_in_turn(ShardedLikeDDP))
