"""Forwards of parts of a sharded model: DDP let every part run by itself, fully_shard gathers for whole units."""

from collections import Counter
from collections.abc import Collection
from itertools import compress
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .ddp_gradients import after_backward, on_any_rank
from .ddp_writes import take_writes
from .tensors import tensors_in


def gather_for_parts(module: Any, blocks: list[Any], elsewhere: Collection[Any] = ()) -> None:
    """Let a part of `module` that is called by itself, as in `model.encoder(x)`, count as a forward of `module`.

    So the methods of a model that call its parts need not be registered. As every gather, it takes all ranks.
    """
    state = module._get_fsdp_state()
    in_blocks = {inner for block in blocks for inner in block.modules()}
    entered: set[Any] = set()
    module._ran_by_parts = False

    def enter(part: Any, args: Any, kwargs: Any) -> Any:
        entered.discard(part)
        if state._training_state.name != "IDLE" or module._running_forwards:
            return None
        entered.add(part)
        module._ran_by_parts = True
        return state._pre_forward(module, args, kwargs)

    def leave(part: Any, args: Any, output: Any) -> Any:
        if part not in entered:
            return None
        entered.discard(part)
        output = state._post_forward(module, args, output)
        if getattr(module, "_awaits_second_backward", False):  # needed for: create_graph
            return output
        module.reshard()
        return output

    for part in module.modules():
        own = [p for inner in part.modules() if inner not in in_blocks for p in inner.parameters(recurse=False)]
        if part is not module and part not in in_blocks and any(isinstance(p, DTensor) and p not in elsewhere for p in own):
            part._gather = enter, leave, lambda part: take_writes(module, part)  # needed for: forward_methods
            part.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
            part.register_forward_hook(leave)


def leave_to_others(module: Any, units: Collection[Any]) -> None:
    """Keep `module`, a root, from taking over `units` in it that another model shards: their root stays the other one.

    fully_shard makes all units inside of a root its own at the first forward, and raises where they have one already.
    """
    state = module._get_fsdp_state()
    initialize, listed = state._lazy_init, module.named_modules

    def initialize_own() -> None:
        state._lazy_init = initialize
        module.named_modules = lambda *args, **kwargs: [one for one in listed(*args, **kwargs) if one[1] not in units]
        try:
            initialize()
        finally:
            del module.named_modules

    if units:
        state._lazy_init = initialize_own


def gather_irregular_blocks(module: Any, blocks: list[Any], group: Any) -> None:
    """Gather those of `blocks`, its units, together with `module` that its forward calls not exactly once, or differentiates.

    A unit is gathered at each of its own forwards. So parts of it that are called without it would not be, and ranks
    that call it another number of times would wait for each other. The first forward shows which classes these are.
    """
    if not blocks or not hasattr(module, "set_reshard_after_forward"):  # torch 2.8
        return
    irregular = list(blocks)
    calls: Counter[Any] = Counter()
    inside: list[bool] = []  # of backwards that ran in a forward, for a gradient that it returns: they free what it goes on with

    def count(block: Any, _: Any) -> None:
        calls[block] += 1
        module._get_fsdp_state()._lazy_init()  # a block may run before the model does, which then is no root any more

    def watch(_: Any, __: Any, output: Any) -> None:
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(lambda _: inside.append(True) if module._running_forwards else None)

    def hold(gathered: bool) -> None:
        if not gathered and getattr(module, "_awaits_second_backward", False):  # needed for: create_graph
            return
        for block in irregular:
            block.set_reshard_after_forward(not gathered)
            block.set_reshard_after_backward(not gathered)
            block.unshard() if gathered else block.reshard()

    def decide(*_: Any) -> None:
        for handle in counting:
            handle.remove()
        flags = on_any_rank([calls[block] != 1 or bool(inside) for block in blocks], next(module.parameters()).device, group)
        classes = {type(block) for block in compress(blocks, flags)}
        irregular[:] = [block for block in blocks if type(block) in classes]

    module.register_forward_pre_hook(torch.compiler.disable(lambda *_: hold(True)))
    module.register_forward_hook(torch.compiler.disable(lambda *_: hold(False)))
    counting = [block.register_forward_pre_hook(torch.compiler.disable(count), prepend=True) for block in blocks]
    counting += [block.register_forward_hook(torch.compiler.disable(watch)) for block in blocks]
    counting.append(module.register_forward_hook(torch.compiler.disable(decide)))
    after_backward(module, lambda: hold(True), lambda: hold(False))
