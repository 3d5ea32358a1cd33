"""Methods other than forward, called on a model that may be sharded."""

import ast
import functools
import inspect
import re
import sys
import textwrap
from contextlib import AbstractContextManager, nullcontext
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from .ddp_writes import take_writes
from .gathered import in_backward
from .handed_out import hand_out
from .parameters import resharded
from .tensors import tensors_in


def forward_method(model: Any, name: str) -> Any:
    """`model.name`, so that a sharded model gathers its parameters around the call.

    Only for methods that compute with parameters, called by every rank: the gather is a collective. `forward` and
    attributes that are no methods come as they are. What the method keeps or returns of the parameters (an optimizer,
    groups for one) has the sharded ones afterwards, and what it writes into them stays.
    """
    if not isinstance(model, nn.Module) or isinstance(getattr(model, name), nn.Module):  # a part gathers by itself
        return getattr(model, name)
    sharded: Any = getattr(model, "_orig_mod", model)  # torch.compile hands methods through to the module that it holds
    registered = getattr(sharded, "_forward_methods", ())
    if getattr(sharded, "_held_whole", False):  # needed for: each_rank
        return getattr(model, name)
    is_new = name != "forward" and name not in registered
    if is_new and issubclass(type(sharded), FSDPModule) and callable(getattr(sharded, name)):
        _register(sharded, name)
        sharded._forward_methods = (*registered, name)
    if "_gather" in vars(sharded) and name != "forward" and any(isinstance(p, DTensor) for p in sharded.parameters()):
        return functools.partial(_gathered, sharded, getattr(model, name))
    around = getattr(sharded, "_around_methods", None)  # needed for: full_parameters
    if around and name != "forward":  # needed for: full_parameters
        return functools.partial(around, getattr(model, name))
    return getattr(model, name)


def _gathered(part: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
    """A method of a part of a sharded model, run as the part's forward is."""
    enter, leave, take = part._gather
    with _gradients_of(method):
        args, kwargs = enter(part, args, kwargs) or (args, kwargs)
        output = method(*args, **kwargs)
        take(part)
        left = leave(part, args, output)
    return output if left is None else left


def _gradients_of(method: Any) -> AbstractContextManager[Any]:
    """No gradients around a method that runs without them by itself, so that its gather counts as one of an evaluation."""
    function = inspect.unwrap(method)
    return torch.no_grad() if _is_evaluation(getattr(function, "__func__", function)) else nullcontext()


@functools.cache
def _is_evaluation(function: Any) -> bool:
    """Whether a function is decorated with `torch.no_grad()` or its kin, or has it around all that it does with its object."""
    try:
        tree: Any = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return False
    if not isinstance(tree, ast.FunctionDef) or any(map(_is_without_gradients, tree.decorator_list)):
        return isinstance(tree, ast.FunctionDef)
    inside = [s for s in tree.body if isinstance(s, ast.With) and any(_is_without_gradients(i.context_expr) for i in s.items)]
    outside = [n.id for s in tree.body if s not in inside for n in ast.walk(s) if isinstance(n, ast.Name)]
    return bool(inside) and not {argument.arg for argument in tree.args.args[:1]} & {*outside}


def _is_without_gradients(context: ast.expr) -> bool:
    return bool({"no_grad", "inference_mode"} & set(re.findall(r"\w+", ast.unparse(context))))


def _register(module: Any, name: str) -> None:
    method = getattr(module, name)
    handed_out: list[list[nn.Parameter]] = []

    @functools.wraps(method)
    def watch(_: Any, *args: Any, **kwargs: Any) -> Any:
        gathered = list(module.parameters())
        before = [sys.getrefcount(parameter) for parameter in gathered]
        output = method(*args, **kwargs)
        if before != [sys.getrefcount(parameter) for parameter in gathered]:
            handed_out.append(gathered)
        take_writes(module, module)
        return output

    setattr(module, name, MethodType(watch, module))
    register_fsdp_forward_method(module, name)
    inner = getattr(module, name)

    @functools.wraps(method)
    def call(_: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(module, "_held_whole", False):  # needed for: each_rank
            return method(*args, **kwargs)
        if module._get_fsdp_state()._training_state.name == "FORWARD":  # the model calls it itself
            return method(*args, **kwargs)
        with _gradients_of(method):
            output = inner(*args, **kwargs)
        if not in_backward() and not any(tensor.grad_fn is not None for tensor in tensors_in(output)):
            resharded(module)  # no backward will do it
        while handed_out:
            output = _with_shards(module, output, handed_out.pop())
        return output

    setattr(module, name, MethodType(call, module))


def _with_shards(module: nn.Module, output: Any, gathered: list[nn.Parameter]) -> Any:
    """`output`, and all else that keeps parameters, with sharded ones in place of those gathered, also of parts that left."""
    units: list[Any] = [part for part in module.modules() if isinstance(part, FSDPModule)]
    groups = [group for unit in units if (group := unit._get_fsdp_state()._fsdp_param_group)]
    managed = [one for group in groups for one in group.fsdp_params]
    shards: dict[int, Any] = {id(getattr(one, "_unsharded_param", None)): one.sharded_param for one in managed}
    kept = [p for p in gathered if id(p) in shards]
    swap = {id(p): shards[id(p)] for p in kept}
    hand_out(swap, kept, [gathered, *map(vars, managed), *(part._parameters for part in module.modules())])
    return tree_map_only(torch.Tensor, lambda tensor: swap.get(id(tensor), tensor), output)
