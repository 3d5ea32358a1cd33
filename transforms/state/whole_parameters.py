"""A context manager for generated code that does what ``summon_full_params`` did: whole parameters inside, shards outside."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ..migration import Migration
from ..rule import Outcome
from ..text.definitions import defined_before
from ..text.patches import Part
from ..view import FileView
from .contexts import bound_arguments

_NAMES = ("module", "recurse", "writeback", "rank0_only", "offload_to_cpu", "with_grads")
_DEFAULTS = {"recurse": True, "rank0_only": False, "offload_to_cpu": False, "with_grads": False}
_HELPERS = ("whole_parameters", "with_whole_parameters", "gathered_parameters")
_WHY = "FSDP2 has no context with whole parameters"

_HELPER = '''\
@{contextmanager}
def {name}(model, writeback=True):
    """Puts whole parameters in the place of the shards of a model; what is left in them goes back with writeback."""
    for module in model.modules():
        if isinstance(module, {FSDPModule}):
            module.reshard()
    places = [
        (module, name, param)
        for module in model.modules()
        for name, param in module.named_parameters(recurse=False)
        if isinstance(param, {DTensor})
    ]
    whole = {{}}
    for _, _, shard in places:
        if shard not in whole:
            gathered = shard.detach().to(shard.device_mesh.device_type).full_tensor()
            whole[shard] = {Parameter}(gathered, requires_grad=shard.requires_grad)
    for module, name, shard in places:
        setattr(module, name, whole[shard])
    try:
        yield
    finally:
        kept = all(getattr(module, name) is whole[shard] for module, name, shard in places)
        for module, name, shard in places:
            setattr(module, name, shard)
        if kept and writeback:
            with {no_grad}():
                for shard, param in whole.items():
                    mesh = shard.device_mesh
                    copies = {DTensor}.from_local(param.detach(), mesh, [{Replicate}()] * mesh.ndim)
                    shard.to_local().copy_(copies.redistribute(mesh, shard.placements).to_local())
    if not kept:
        raise RuntimeError("parameters were put in place inside {name}; forwards have to run outside of it")
'''

_SYMBOLS = (
    "contextlib.contextmanager", "torch.distributed.fsdp.FSDPModule", "torch.distributed.tensor.DTensor",
    "torch.distributed.tensor.Replicate", "torch.nn.Parameter", "torch.no_grad",
)  # fmt: skip


def what_is_asked(call: ast.Call) -> str:
    """What a call of ``summon_full_params`` asks for that the context manager does not do; empty where there is none."""
    if any(isinstance(argument, ast.Starred) for argument in call.args) or any(k.arg is None for k in call.keywords):
        return "its arguments are not written out"
    arguments = bound_arguments(call, _NAMES)
    if "module" not in arguments:
        return "the model is not among its arguments"
    for name, default in _DEFAULTS.items():
        given = arguments.get(name)
        if given is not None and not (isinstance(given, ast.Constant) and given.value is default):
            return f"{name} is {ast.unparse(given)}"
    return ""


def helper_text(name: str, spelled: Callable[[str], str]) -> str:
    """The definition of the context manager; ``spelled`` says how the file names a symbol."""
    return _HELPER.format(name=name, **{symbol.rpartition(".")[2]: spelled(symbol) for symbol in _SYMBOLS})


def write_whole_parameters(migration: Migration, view: FileView, call: ast.Call, outcome: Outcome) -> None:
    """Puts the context manager in the place of a call of ``summon_full_params``, and defines it once in the file."""
    name = _define(migration, view, outcome)
    arguments = bound_arguments(call, _NAMES)
    parts: list[Part] = [f"{name}(", view.keep(arguments["module"])]
    if "writeback" in arguments:
        parts += [", writeback=", view.keep(arguments["writeback"])]
    outcome.patches.append(view.replace(call, (*parts, ")"), _WHY))


def _define(migration: Migration, view: FileView, outcome: Outcome) -> str:
    taken = {node.name for node in view.nodes(ast.FunctionDef, ast.ClassDef)} | {node.id for node in view.nodes(ast.Name)}
    name = next(name for name in _HELPERS if name not in taken)
    text = helper_text(name, lambda symbol: migration.use(outcome, view, symbol, view.tree))
    outcome.patches.append(defined_before(view, _first_definition(view), (text,), _WHY))
    return name


def _first_definition(view: FileView) -> ast.stmt:
    """The first function or class of a file, or what summons parameters outside of any."""
    for statement in view.tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return statement
        if any(isinstance(node, ast.Attribute) and node.attr == "summon_full_params" for node in ast.walk(statement)):
            return statement
    return view.tree.body[-1]
