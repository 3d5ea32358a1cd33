# pyright: reportIncompatibleMethodOverride=false
"""What whole_steps.py must do on two ranks: what the same optimizers do under DDP. Run by test_whole_steps.py."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import torch
from models import batch, build, close, parameters_of, whole
from to_fsdp2.transforms.helpers.named_optimizer_state import optim_state_dict
from to_fsdp2.transforms.helpers.part_steps import step_on_parts
from to_fsdp2.transforms.helpers.shard import shard_like_fsdp1
from to_fsdp2.transforms.helpers.whole_states import keep_state_dicts_whole
from to_fsdp2.transforms.helpers.whole_steps import on_whole_parameters, step_on_whole
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class Lamb(torch.optim.Optimizer):
    """Norms of single parameters."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-2})

    @on_whole_parameters
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"], state["step"] = torch.zeros_like(p), 0
                state["step"] += 1
                state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                if p.norm() > 0:
                    p.sub_(state["m"], alpha=group["lr"] * (p.norm() / (state["m"].norm() + 1e-6)).item())


class Factored(torch.optim.Optimizer):
    """State of another shape than the parameter's, and views of it, by an optimizer that nobody can edit."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    flat = p.grad.view(p.size(0), -1)
                    rows = self.state[p].setdefault("rows", torch.zeros(p.size(0), 1))
                    rows.mul_(0.9).add_(flat.pow(2).mean(1, keepdim=True))
                    p.sub_((flat / (rows.sqrt() + 1e-3)).view_as(p), alpha=group["lr"])


class Around:
    """What stands for an optimizer and is none, as apex's LARC."""

    def __init__(self, optimizer: Any) -> None:
        self.optim = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optim, name)

    def step(self, closure: Any = None) -> None:
        for group in self.optim.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(p.detach().norm() / (p.grad.norm() + 1e-6))
        self.optim.step()


class Ahead(torch.optim.Optimizer):
    """An optimizer around another that has none of torch's own attributes, as older Lookahead classes."""

    def __init__(self, optimizer: Any) -> None:
        self.inner, self.param_groups, self.state = optimizer, optimizer.param_groups, optimizer.state
        self.defaults = optimizer.defaults

    def step(self, closure: Any = None) -> None:
        self.inner.step()
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.div_(1 + 1e-3 * p.norm())

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)


class Slow(torch.optim.Optimizer):
    """Another that keeps what it needs with the inner one's state, and has torch's hooks of steps alone: timm's Lookahead."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        self._inner, self.param_groups, self.state = optimizer, optimizer.param_groups, defaultdict(dict)
        self.defaults = optimizer.defaults

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self._inner.step(closure)
        for p in (p for group in self._inner.param_groups for p in group["params"] if p.grad is not None):
            slow = self._inner.state[p].setdefault("slow", p.detach().clone())
            p.copy_(slow.lerp_(p, 0.5) * (1 - 1e-3 * p.norm()))

    @torch.no_grad()
    def sync_lookahead(self) -> None:
        for p in (p for group in self._inner.param_groups for p in group["params"] if p in self._inner.state):
            p.copy_(self._inner.state[p]["slow"].lerp_(p, 0.5))

    def state_dict(self) -> Any:
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self._inner.load_state_dict(state_dict)
        self.param_groups = self._inner.param_groups


class Forwarding(torch.optim.Optimizer):
    """A base class around another optimizer that has no state of its own."""

    def __init__(self, optimizer: Any) -> None:
        self.optim = optimizer

    @property
    def param_groups(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.optim.param_groups

    @on_whole_parameters
    def step(self, closure: Any = None) -> None:
        return self.optim.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optim.zero_grad(set_to_none)

    def state_dict(self) -> Any:
        return self.optim.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.optim.load_state_dict(state_dict)


class Sharp(torch.optim.Optimizer):
    """Steps behind a second look at the loss, for which it clears the gradients itself, or half of them."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-2})

    @on_whole_parameters
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        assert closure is not None
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        before = [p.clone() for p in params]
        for at, p in enumerate(params):
            p.add_(p.grad / (p.grad.norm() + 1e-6), alpha=0.05)
            if at % 2:
                p.grad.mul_(0.5)
            else:
                p.grad = None
        with torch.enable_grad():
            closure()
        for p, old in zip(params, before, strict=True):
            p.copy_(old)
            p.sub_(p.grad, alpha=0.1)


class Masked(Lamb):
    """Looks parameters up in a dictionary and a set of its own."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        trained = [p for group in self.param_groups for p in group["params"]]
        self.masks = dict.fromkeys(trained[1:], 0.5)
        self.decayed = set(trained[::2])

    @on_whole_parameters
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(0.9 if p in self.decayed else 1.0)
                    p.sub_(p.grad / (p.grad.norm() + 1e-3), alpha=group["lr"] * self.masks.get(p, 1.0))


class Nadam(Factored):
    """Called nearly as torch's NAdam is, which may step on shards."""


OPTIMIZERS: list[Callable[[Any], Any]] = [
    Lamb,
    lambda params: step_on_whole(Factored(params)),
    lambda params: step_on_whole(Around(torch.optim.SGD(params, lr=1e-2, momentum=0.9))),
    lambda params: step_on_whole(torch.optim.LBFGS(params, lr=0.1, max_iter=3)),
    lambda params: step_on_whole(torch.optim.Adafactor(params, lr=1e-2)),
    lambda params: step_on_whole(Ahead(torch.optim.SGD(params, lr=1e-2, momentum=0.9))),
    lambda params: step_on_whole(Slow(torch.optim.Adam(params, lr=1e-2))),
    lambda params: Forwarding(Factored(params)),
    Sharp,
    Masked,
    lambda params: step_on_whole(Nadam(params)),
]  # fmt: skip


def train(model: Any, optimizer: Any, start: int, end: int) -> None:
    for step in range(start, end):
        def closure(step: int = step) -> torch.Tensor:
            if not isinstance(optimizer, Sharp):
                optimizer.zero_grad()
            loss = model(*batch(step))
            loss.backward()
            return loss

        closure()
        optimizer.step(closure) if isinstance(optimizer, (torch.optim.LBFGS, Sharp)) else optimizer.step()
        if isinstance(optimizer, Sharp):
            optimizer.zero_grad()


def models() -> tuple[Any, Any]:
    return build("ddp"), build("fsdp2", like="ddp")


def check_steps_are_those_of_ddp() -> None:
    for make in OPTIMIZERS:
        results: list[Any] = []
        for model in models():
            optimizer = make(model.parameters())
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2) if isinstance(optimizer, torch.optim.Optimizer) else None
            for step in range(4):
                train(model, optimizer, step, step + 1)
                scheduler.step() if scheduler is not None else None
                optimizer.sync_lookahead() if isinstance(optimizer, Slow) else None
            results.append((parameters_of(model), optimizer.state_dict()["state"]))
        assert close(results[1][0], results[0][0], 1e-5), OPTIMIZERS.index(make)
        for own, given in zip(results[0][1].values(), results[1][1].values(), strict=True):
            for key, value in own.items():
                assert not isinstance(value, torch.Tensor) or torch.allclose(value, given[key], atol=1e-5), key


def check_other_hooks_of_steps_see_shards() -> None:
    seen: list[bool] = []

    def look(optimizer: Any, *_: Any) -> None:
        seen.append(all(isinstance(p, DTensor) for group in optimizer.param_groups for p in group["params"]))

    handles = [register_optimizer_step_pre_hook(look), register_optimizer_step_post_hook(look)]
    for make in (OPTIMIZERS[0], OPTIMIZERS[1], OPTIMIZERS[3]):
        model = models()[1]
        train(model, make(model.parameters()), 0, 1)
    for handle in handles:
        handle.remove()
    assert len(seen) == 6 and all(seen)


def check_state_that_was_saved_is_loaded() -> None:
    for make in (*OPTIMIZERS[:2], OPTIMIZERS[6]):
        model = models()[1]
        keep_state_dicts_whole(model)
        optimizer = make(model.parameters())
        train(model, optimizer, 0, 2)
        saved, weights = optimizer.state_dict(), {key: value.clone() for key, value in model.state_dict().items()}
        saved = {**saved, "state": {key: {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in entry.items()}
                                    for key, entry in saved["state"].items()}}  # fmt: skip
        train(model, optimizer, 2, 4)
        after = parameters_of(model)
        fresh = models()[1]
        keep_state_dicts_whole(fresh)
        fresh.load_state_dict(weights)
        resumed = make(fresh.parameters())
        resumed.load_state_dict(saved)
        train(fresh, resumed, 2, 4)
        assert close(parameters_of(fresh), after, 1e-6)


def check_optimizers_that_compute_by_element_go_on_with_shards() -> None:
    model = build("fsdp2", like="ddp")
    optimizer = step_on_whole(torch.optim.AdamW(model.parameters(), lr=1e-2))
    train(model, optimizer, 0, 1)
    assert all(isinstance(entry["exp_avg"], DTensor) for entry in optimizer.state.values())


def check_schedulers_and_scalers_are_no_optimizers() -> None:
    model = build("fsdp2", like="ddp")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for other in (torch.optim.lr_scheduler.StepLR(optimizer, 1), torch.amp.GradScaler("cpu"), torch.nn.Linear(2, 2)):
        before = dict(vars(other))
        assert step_on_whole(other) is other and vars(other).keys() == before.keys()


class Kernel(torch.optim.Optimizer):
    """Of another library: it reads memory, which DTensors do not show, and never heard of shards."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None or not p.numel():
                    continue
                state = self.state[p]
                if not state:
                    state["m"], state["step"] = torch.zeros_like(p), 0
                state["step"] += 1
                assert not {type(p), type(p.grad), type(state["m"])} & {DTensor}
                assert p.data_ptr() and p.grad.data_ptr() and state["m"].data_ptr()
                state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                p.sub_(state["m"], alpha=group["lr"])
        return loss


def check_steps_on_parts_are_fsdp1s() -> None:
    results = []
    for wrapper in (FSDP, shard_like_fsdp1):
        model = wrapper(build("plain"), use_orig_params=True, device_id=torch.device("cpu"))
        optimizer = step_on_parts(Kernel(model.parameters()))
        for step in range(4):
            optimizer.zero_grad()
            if step % 2:
                optimizer.step(lambda step=step, model=model: model(*batch(step)).backward())
            else:
                model(*batch(step)).backward()
                optimizer.step()
        assert all(not isinstance(p, DTensor) or wrapper is not FSDP for p in optimizer.state)
        take = FSDP.optim_state_dict if wrapper is FSDP else optim_state_dict
        state = {key: value["m"] for key, value in take(model, optimizer)["state"].items()}
        results.append((parameters_of(model), {key: whole(value) for key, value in state.items()}))
    (old, old_state), (new, new_state) = results
    assert close(old, new)
    assert close(old_state, {key: new_state[key] for key in old_state})
