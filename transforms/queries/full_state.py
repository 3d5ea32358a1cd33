"""Contexts of FSDP1 in which nothing but full state dicts of one model are taken."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..facts.symbols import FSDP1
from .file import File
from .local_values import resolved
from .program import Program

_FSDP = "torch.distributed.fsdp."
_PARAMETERS = ("module", "state_dict_type", "state_dict_config", "optim_state_dict_config")
_RENAMED_KEYS = (
    r"torch\.compile|\.compile\(\)|_orig_mod|state_dict_(?:pre_|post_)?hook"
    r"|def (?:state_dict|_save_to_state_dict|[gs]et_extra_state)\b"
)
"""What makes the keys of a model's state others than the names of its parameters and buffers."""


@dataclass(frozen=True)
class FullState:
    """``with FSDP.state_dict_type(model, FULL_STATE_DICT, …):`` around ``model.state_dict()``.

    The context itself says that the model is in FSDP1: it raises KeyError for any other.
    """

    block: ast.With
    reads: tuple[ast.Call, ...]
    """The calls of ``state_dict()``."""
    offloads: bool
    """Whether the state comes to the CPU, and to the first rank alone."""
    needless: tuple[ast.stmt, ...]
    """Assignments that only the context read."""
    settings: tuple[ast.expr, ...]
    """Expressions whose meaning is in the fields here."""


def full_state(program: Program, file: File, context: ast.Call) -> FullState | None:
    """What a call of ``FSDP.state_dict_type`` is for; None where its block does more than take full state dicts."""
    item = file.parents[context]
    block = file.parents[item] if isinstance(item, ast.withitem) else None
    if not isinstance(block, ast.With) or len(block.items) != 1 or block.items[0].optional_vars is not None:
        return None
    given = dict(zip(_PARAMETERS, context.args, strict=False)) | {k.arg: k.value for k in context.keywords if k.arg}
    if len(given) != len(context.args) + len(context.keywords) or not {"module", "state_dict_type"} <= given.keys():
        return None
    settings, needless = [], []
    for name in _PARAMETERS[1:]:
        if name in given:
            value, statement = resolved(file, given[name])
            settings += [given[name], value]
            needless += [statement] if statement is not None else []
            given[name] = value
    if file.external(given["state_dict_type"]) != f"{_FSDP}StateDictType.FULL_STATE_DICT":
        return None
    offloads = _offloads(file, given.get("state_dict_config"))
    model = given["module"]
    if offloads is None or not isinstance(model, (ast.Name, ast.Attribute)) or program.mentions(_RENAMED_KEYS):
        return None
    reads = _reads(file, block, ast.unparse(model))
    if not reads:
        return None
    return FullState(block, tuple(reads), offloads, tuple(needless), tuple(settings))


def full_state_around(program: Program, file: File, read: ast.Call) -> FullState | None:
    """The context whose full state dict a call of ``state_dict()`` takes."""
    for around in file.ancestors(read):
        if isinstance(around, ast.With) and isinstance(around.items[0].context_expr, ast.Call):
            context = around.items[0].context_expr
            if file.external(context.func) == f"{FSDP1}.state_dict_type":
                found = full_state(program, file, context)
                return found if found is not None and read in found.reads else None
    return None


def _offloads(file: File, config: ast.expr | None) -> bool | None:
    """Whether a FullStateDictConfig asks for the CPU of the first rank; None for any other mixture, or an unknown one."""
    if config is None or (isinstance(config, ast.Constant) and config.value is None):
        return False
    if not isinstance(config, ast.Call) or file.external(config.func) != f"{_FSDP}FullStateDictConfig":
        return None
    names = ("offload_to_cpu", "rank0_only")
    given = dict(zip(names, config.args, strict=False)) | {k.arg: k.value for k in config.keywords}
    values = [given.pop(name, ast.Constant(False)) for name in names]
    flags = {bool(value.value) for value in values if isinstance(value, ast.Constant)}
    known = not given and all(isinstance(value, ast.Constant) for value in values)
    return flags.pop() if known and len(flags) == 1 else None


def _reads(file: File, block: ast.With, model: str) -> list[ast.Call]:
    """The calls of the model's ``state_dict()``; none if anything else in the block may ask for a state dict."""
    found: list[ast.Call] = []
    for node in _inside(block):
        if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef, ast.Yield, ast.YieldFrom, ast.Await)):
            return []
        if isinstance(node, ast.Attribute) and node.attr == "state_dict":
            call = file.parents[node]
            if ast.unparse(node.value) != model or not isinstance(call, ast.Call) or call.args or call.keywords:
                return []
            found.append(call)
        elif isinstance(node, (ast.Name, ast.Attribute)) and _may_use(file, node, model):
            return []
    return found


def _may_use(file: File, node: ast.Name | ast.Attribute, model: str) -> bool:
    """Whether an expression hands the model on, or its holder, calls a method of the holder, or takes another state."""
    if isinstance(node, ast.Attribute) and "state_dict" in node.attr:
        return True
    text, parent = ast.unparse(node), file.parents[node]
    if text == model:
        return not (isinstance(parent, ast.Attribute) and parent.attr == "state_dict")
    if isinstance(node, ast.Name) and text == model.partition(".")[0]:
        return not isinstance(parent, ast.Attribute) or _is_called(file, parent)
    return False


def _is_called(file: File, node: ast.Attribute) -> bool:
    call = file.parents[node]
    return isinstance(call, ast.Call) and call.func is node


def _inside(block: ast.With) -> Iterator[ast.AST]:
    for statement in block.body:
        yield from ast.walk(statement)
