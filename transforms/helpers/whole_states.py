"""State dicts that stay whole by themselves, wherever the program takes and loads them."""

import functools
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .ddp_keys import own_key, rename_keys
from .optimizer_state import shard_by_position, shard_entries
from .parameters import note_change, resharded
from .whole import shard_like, whole


def keep_state_dicts_whole(module: Any) -> None:
    """Let state_dict() of `module` and of its parts give whole tensors, and load_state_dict() take them, as under DDP; also
    of optimizers over its parameters. All ranks call state_dict().

    What is written into a state dict gets to the module before anything of it is gathered, before an optimizer steps, and
    before its next state dict. Keys may have DDP's `module.` or not when they are loaded. Hooks of torch.nn.Module and
    torch.optim.Optimizer do it, so that it holds in libraries too; parts that come later need a call of their own.
    """
    outermost: list[Any] = []  # the part whose state_dict() runs: what is in it is gathered at its end, tied tensors as one
    shown: list[tuple[Any, torch.Tensor, torch.Tensor]] = []  # and what the shard was: no version tells of writes by .data

    @torch.no_grad()
    def write_back(*_: Any) -> None:
        if shown:
            note_change()
        for shard, full, before in shown:
            part: Any = shard_like(full, shard)
            if not torch.equal(part.to_local(), before):
                shard.copy_(part)
        shown.clear()

    def begin(part: Any, prefix: str, _: bool) -> None:
        if not prefix or not outermost:
            outermost[:] = [part]
            write_back()

    def gather(part: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
        if outermost and outermost[0] is not part:
            return
        outermost.clear()
        shards = {key: value for key, value in state.items() if key.startswith(prefix) and isinstance(value, DTensor)}
        if shards:
            note_change()  # what is written into it from now on is not in what was gathered for an evaluation
            _gather_running(module)  # state_dict() has put shards into all units
        for key, full in whole(shards).items():
            state[key] = full
            own: Any = shards[key].detach()
            shown.append((own, full, own.to_local().clone()))

    def shard(part: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
        if not prefix:
            write_back()  # what was written into an earlier state dict is no news after this
            note_change()
            resharded(module)  # it stays gathered after a forward whose backward never came
        if part is module and any(key.startswith(f"{prefix}module.") for key in state):  # needed for: ddp_keys
            rename_keys(state, lambda key: prefix + own_key(module, key[len(prefix) :]) if key.startswith(prefix) else key)
        for name, live in [*part._parameters.items(), *part._buffers.items()]:
            value = state.get(prefix + name)
            if isinstance(live, DTensor) and isinstance(value, torch.Tensor):
                state[prefix + name] = shard_like(value, live)

    for part in module.modules():
        if not isinstance(part, torch.jit.ScriptModule):
            part.register_state_dict_pre_hook(begin)
            part.register_state_dict_post_hook(gather)
            part.register_load_state_dict_pre_hook(shard)
        group = part._get_fsdp_state()._fsdp_param_group if isinstance(part, FSDPModule) else None  # pyright: ignore
        if group is not None:
            group.unshard = _behind(write_back, group.unshard)
    register_optimizer_step_pre_hook(write_back)
    _take_states_whole()
    weakref.finalize(module, _let_go, shown)  # at exit too
    register_optimizer_step_pre_hook(_keep_whole)


def _gather_running(module: Any) -> None:
    """Let units whose forwards run compute with whole parameters on: an average may be updated within one."""
    for state in (unit._get_fsdp_state() for unit in module.modules() if isinstance(unit, FSDPModule)):
        group: Any = state._fsdp_param_group
        if group is not None and state._training_state.name == "FORWARD":
            group.unshard()
            group.wait_for_unshard()


def _behind(write_back: Callable[[], None], unshard: Callable[..., None]) -> Any:
    def write_and_gather(async_op: bool = False) -> None:
        write_back()
        unshard(async_op)

    return torch.compiler.disable(write_and_gather)


def _let_go(shown: list[Any]) -> None:
    """Tensors that live on while Python ends can keep gloo waiting; its threads abort if they let go of theirs only then."""
    shown.clear()
    time.sleep(0.05)


def _take_states_whole() -> None:
    """Let optimizers whose own `step()` never runs give whole states too: those around another one, with steps of other names."""
    take = Optimizer.state_dict
    if getattr(take, "_gives_whole", False):
        return

    @functools.wraps(take)
    def state_dict(self: Optimizer) -> dict[str, Any]:
        return whole(take(self))

    setattr(state_dict, "_gives_whole", True)  # noqa: B010
    Optimizer.state_dict = state_dict


def _keep_whole(optimizer: Optimizer, *_: Any) -> None:
    """Before an optimizer's first step: shard what it has loaded, and see to its state dicts from now on."""
    if hasattr(optimizer, "_state_stays_whole"):
        return
    parameters: dict[Any, torch.Tensor] = {p: p for group in optimizer.param_groups for p in group["params"]}
    if not any(isinstance(p, DTensor) for p in parameters):
        return
    optimizer._state_stays_whole = True  # pyright: ignore[reportAttributeAccessIssue]
    optimizer.state.update(shard_entries(dict(optimizer.state), parameters))
    if not hasattr(optimizer, "_optimizer_state_dict_post_hooks"):  # made around another one, which takes what is loaded
        take = optimizer.state_dict
        optimizer.state_dict = lambda *args, **kwargs: whole(take(*args, **kwargs))
        return

    def shard(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        if getattr(optimizer, "_held_whole", False):
            return state
        return shard_by_position(state, [p for group in optimizer.param_groups for p in group["params"]])

    optimizer.register_load_state_dict_pre_hook(shard)
