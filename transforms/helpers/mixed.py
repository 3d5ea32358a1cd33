"""Sharded parameters in arithmetic with plain tensors, and in numbers and arrays."""

import functools
import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

from .assigned_gradients import compute_with_assigned, holds_assigned, note_assigned
from .gathered import reshard_after_forward
from .own_losses import gradients_of_own_loss, note_gathered_forms
from .parameters import note_change, write_shard
from .replaced_data import replace_data
from .sharded_math import answer_with, is_called_for_shards, writes_in_place
from .tensors import tensors_in
from .whole import map_tensors, shard_like, whole

READS = ("item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__complex__", "__index__", "__format__")
"""What would be of this rank's shard alone."""
RANDOM = frozenset(
    {"rand_like", "randn_like", "randint_like", "bernoulli", "bernoulli_", "normal", "normal_", "uniform_", "random_",
     "exponential_", "geometric_", "cauchy_", "log_normal_", "multinomial", "poisson", "dropout", "dropout_"}
)  # fmt: skip
"""What draws numbers: each rank draws those of the whole tensor, as if it held it."""
VIEWS = frozenset(
    {"__getitem__", "view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "ravel", "chunk", "split", "unbind",
     "tensor_split", "select", "narrow", "t", "transpose", "swapaxes", "permute", "movedim", "squeeze", "unsqueeze", "expand",
     "diagonal", "detach"}
)  # fmt: skip
"""What gives a part of a tensor, or all of it in another form, that may be written; of a sharded one it is often a copy."""


def compute_as_whole(module: nn.Module) -> None:
    """Let the program compute with sharded tensors as it did while they were whole; `module` has been sharded.

    Numbers and arrays are of the whole tensor. An operator that refuses sharded tensors, or would take one rank's plain
    tensor for that of all, takes them whole: its result is plain, the gradients that it gives are averaged, and all ranks
    call it. What is written in place, or to an index, stays sharded and takes its part. `torch.autograd.grad` by the
    parameters of `module` gives each rank the whole gradients of its own loss.
    """
    note_gathered_forms(module)  # needed for: autograd_grad
    if isinstance(module, FSDPModule) and not hasattr(module, "_running_forwards"):
        reshard_after_forward(module)
    answer_with(_compute_as_whole, "whole")


def _compute_as_whole(function: Any, arguments: Any, keywords: Any, caller: Any) -> Any:
    name = function.__name__
    if function is torch.autograd.grad:  # needed for: autograd_grad
        return gradients_of_own_loss(*arguments, **keywords)
    if name == "__set__" and function.__self__ is torch.Tensor.data:
        return replace_data(*arguments)
    if name == "__set__":  # `p.grad = value`
        function(arguments[0], map_tensors(lambda value: shard_like(value, arguments[0]), arguments[1]))
        note_assigned(*arguments)  # needed for: assigned_gradients
        return None
    kinds = [isinstance(tensor, DTensor) for tensor in arguments[0]] if name.startswith("_foreach_") else []
    if any(kinds) and not all(kinds):
        return _by_kind(function, kinds, arguments, keywords, caller)
    target = arguments[0] if arguments else keywords.get("tensor")  # of functions of torch.nn.init
    target = keywords.get("out", target) if writes_in_place(name, keywords) else None
    if holds_assigned(arguments, keywords) and _is_for_program(caller):  # needed for: assigned_gradients
        return compute_with_assigned(function, arguments, keywords, target)  # needed for: assigned_gradients
    if name in READS:
        with _operators_of_python():
            return function(*whole(arguments), **whole(keywords))
    written = _sharded(target)
    draws = name in RANDOM or getattr(function, "__module__", None) == "torch.nn.init"
    if written and (draws or any(hasattr(tensor, "_view_of") for tensor in written)):
        return _write_whole(function, written, arguments, keywords)
    if not written and any(not isinstance(tensor, DTensor) for tensor in tensors_in(target)):
        # Of one element, it would be taken for a DTensor, and written as another tensor or twice.
        return _given(function, arguments, keywords, caller, function(*whole(arguments), **whole(keywords)))
    take: Any = whole
    take = _whole_in_graph  # needed for: autograd_grad
    if not draws and name not in ("__setitem__", "__deepcopy__") and (written or not _mixes(name, arguments, keywords)):
        if written:
            note_change()
        for tensor in _sharded((arguments, keywords)) if torch.is_grad_enabled() else ():
            _keep_gradients_sharded(tensor)
        try:
            result = function(*arguments, **keywords)
            if not written and _is_made_of_parameters(function, (arguments, keywords), result):  # needed for: autograd_grad
                result = function(*take(arguments), **take(keywords))
            return result if written else _given(function, arguments, keywords, caller, result)
        except torch.OutOfMemoryError:
            raise
        except Exception:
            pass  # what it raises for whole tensors is what the program shall see
    if written:
        return _write_sharded(function, written, arguments, keywords)
    if name == "__deepcopy__":
        return _copied(arguments[0])
    return _given(function, arguments, keywords, caller, function(*take(arguments), **take(keywords)))


def _by_kind(function: Any, kinds: list[bool], arguments: Any, keywords: Any, caller: Any) -> Any:
    """An optimizer's step over lists of plain tensors, which are each rank's own, and sharded ones: for each kind by itself."""

    def picked(value: Any, kind: bool) -> Any:
        is_paired = isinstance(value, (list, tuple)) and len(value) == len(kinds)
        return [one for one, its_kind in zip(value, kinds, strict=True) if its_kind is kind] if is_paired else value

    found: dict[bool, Any] = {}
    for kind in (False, True):
        given = tuple(picked(value, kind) for value in arguments)
        named = {name: picked(value, kind) for name, value in keywords.items()}
        found[kind] = _compute_as_whole(function, given, named, caller) if kind else function(*given, **named)
    results = {kind: iter(result or ()) for kind, result in found.items()}
    return [next(results[kind]) for kind in kinds] if found[True] is not None else None


def _is_made_of_parameters(function: Any, given: Any, result: Any) -> bool:
    """Whether something may be differentiated by a parameter: of shards, that gives the average over ranks alone."""
    parameters = [tensor for tensor in _sharded(given) if tensor.requires_grad]
    made = [tensor for tensor in tensors_in(result) if tensor.requires_grad] if parameters else []
    return function.__name__ not in VIEWS and any(all(tensor is not one for one in parameters) for tensor in made)


def _whole_in_graph(value: Any) -> Any:
    """`whole`, with views made anew of what they are views of, so that parameters are what is gathered."""

    def gather(tensor: Any) -> torch.Tensor:
        made_from: Any = getattr(tensor, "_made_from", None)
        return whole(tensor) if made_from is None else made_from[1](gather(made_from[0]))

    return map_tensors(gather, value)


def _operators_of_python() -> Any:
    """A context in which DTensor computes: `torch.tensor([norm])` reads numbers while nothing that is written in Python does."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot):
        excluded = excluded - torch._C.DispatchKeySet(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def _sharded(value: Any) -> list[DTensor]:
    """The sharded tensors in lists and tuples that have more than one element."""
    return [tensor for tensor in tensors_in(value) if isinstance(tensor, DTensor) and tensor.ndim]


def _keep_gradients_sharded(tensor: Any) -> None:
    """Let a sharded parameter's gradients be sharded as it is: of a sum over it they come whole, and FSDP adds shards to them."""

    def as_sharded(gradient: Any) -> Any:
        return gradient.redistribute(placements=tensor.placements) if isinstance(gradient, DTensor) else gradient

    if tensor.requires_grad and tensor.is_leaf and not hasattr(tensor, "_gets_shards"):
        tensor._gets_shards = True
        tensor.register_hook(as_sharded)


def _mixes(name: str, *values: Any) -> bool:
    """Whether DTensor may give a wrong result: it takes a number that each rank has of its own for that of all ranks."""
    found: list[Any] = list(tensors_in(values))
    sharded = [tensor for tensor in found if isinstance(tensor, DTensor)]
    if "norm" not in name and any(t.ndim and type(p).__name__ == "_NormPartial" for t in sharded for p in t.placements):
        return True  # torch 2.13 adds up stacked norms of shards before it makes norms of the whole of them
    return len(found) > len(sharded) and (torch.is_grad_enabled() or any(tensor.ndim == 0 for tensor in sharded))


def _given(function: Any, arguments: Any, keywords: Any, caller: Any, result: Any) -> Any:
    """What an operator gave, as the program gets it: views of sharded tensors as such, everything else plain and whole."""
    base = arguments[0] if arguments else None
    if function.__name__ in VIEWS and isinstance(base, DTensor):
        return _linked(function, base, arguments[1:], keywords, result)
    if not any(isinstance(tensor, DTensor) for tensor in tensors_in(result)) or not _is_for_program(caller):
        return result
    held = [tensor for tensor in tensors_in((arguments, keywords)) if isinstance(tensor, DTensor)]
    return map_tensors(lambda tensor: tensor if any(_shares_memory(tensor, one) for one in held) else whole(tensor), result)


def _is_for_program(caller: Any) -> bool:
    """Whether code computes that is no optimizer, and nothing of torch that works on shards."""
    in_step = (isinstance(frame.f_locals.get("self"), Optimizer) for frame, _ in traceback.walk_stack(caller))
    return not is_called_for_shards(caller) and not any(in_step)


def _copied(tensor: Any) -> torch.Tensor:
    full = whole(tensor.detach())
    return nn.Parameter(full, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else full


def _write_sharded(function: Any, written: list[DTensor], arguments: Any, keywords: Any) -> Any:
    """Call a function that writes sharded tensors and refused plain ones beside them, or has no form for shards."""
    for tensor in tensors_in((arguments, keywords)):
        if not isinstance(tensor, DTensor) and tensor.ndim:
            _require_same(tensor, written[0].device_mesh)

    def replicated(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if isinstance(tensor, DTensor) or tensor.ndim == 0 else _replicated(tensor, written[0])

    if function.__name__ != "__setitem__":
        try:
            return function(*map_tensors(replicated, arguments), **map_tensors(replicated, keywords))
        except Exception:
            pass  # DTensor has no form of it for shards
    return _write_whole(function, written, arguments, keywords)


def _write_whole(function: Any, written: list[DTensor], arguments: Any, keywords: Any) -> Any:
    full: dict[int, torch.Tensor] = {id(tensor): whole(tensor.detach()) for tensor in written}

    def take(tensor: torch.Tensor) -> torch.Tensor:
        return full[id(tensor)] if id(tensor) in full else whole(tensor)

    function(*map_tensors(take, arguments), **map_tensors(take, keywords))
    for tensor in written:
        _require_same(full[id(tensor)], tensor.device_mesh)
        _keep_written(tensor, full[id(tensor)])
    return keywords.get("out", arguments[0] if arguments else keywords.get("tensor"))


def _linked(function: Any, base: DTensor, arguments: Any, keywords: Any, result: Any) -> Any:
    """Views of a sharded tensor, with what has to be written if they are."""
    numbers: Any = range(len(result)) if isinstance(result, (list, tuple)) else (None,)
    views: list[Any] = []
    for number in numbers:
        view: Any = result if number is None else result[number]
        if not isinstance(view, DTensor) and not view.requires_grad:
            view = _replicated(view, base)
        again = functools.partial(_view, function, arguments, keywords, number)
        if view.requires_grad:  # needed for: autograd_grad
            view._made_from = base, again  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(view, DTensor) and not _shares_memory(view, base):
            view._view_of = base, again  # pyright: ignore[reportAttributeAccessIssue]
        views.append(view)
    return views[0] if isinstance(result, torch.Tensor) else type(result)(views)


def _view(function: Any, arguments: Any, keywords: Any, number: int | None, full: torch.Tensor) -> torch.Tensor:
    found = function(full, *arguments, **keywords)
    return found if number is None else found[number]


def _shares_memory(view: Any, base: DTensor) -> bool:
    if not isinstance(view, DTensor):
        return True
    # Of empty shards no memory has an address: ranks would disagree.
    return view is base or view._local_tensor.untyped_storage()._cdata == base._local_tensor.untyped_storage()._cdata


def _keep_written(tensor: Any, full: torch.Tensor) -> None:
    """Write this rank's part of `full` into a sharded tensor, and into what that is a view of."""
    write_shard(tensor.detach(), full)
    if hasattr(tensor, "_view_of"):
        base, view = tensor._view_of
        of_base = whole(base.detach())
        view(of_base).copy_(full)
        _keep_written(base, of_base)


def _replicated(tensor: torch.Tensor, beside: DTensor) -> Any:
    mesh = beside.device_mesh
    return DTensor.from_local(tensor.to(beside.device), mesh, [Replicate()] * mesh.ndim, run_check=False)


def _require_same(value: torch.Tensor, mesh: Any) -> None:
    """Raise ValueError unless all ranks write the same into a sharded tensor; all ranks ask."""
    numbers = value.detach().double().nan_to_num()
    mine = torch.stack([numbers.sum(), -numbers.sum(), numbers.square().sum(), -numbers.square().sum()])
    most = mine.clone()
    for dimension in range(mesh.ndim):
        dist.all_reduce(most, dist.ReduceOp.MAX, mesh.get_group(dimension))
    if not torch.equal(mine, most):
        raise ValueError(
            f"ranks write different values into a sharded parameter or gradient of shape {tuple(value.shape)}, "
            "which is one for all: average what they write first"
        )
