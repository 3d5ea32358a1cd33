"""Contexts of FSDP1 in which nothing but full state dicts of one model, and of its optimizers, are taken or loaded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from ..facts.symbols import FSDP1
from ..flow.values import Optimizer
from .file import File
from .local_values import resolved
from .program import Program

_FSDP = "torch.distributed.fsdp."
_PARAMETERS = ("module", "state_dict_type", "state_dict_config", "optim_state_dict_config")
_OF_FULL_STATE = frozenset({"full_optim_state_dict", "shard_full_optim_state_dict", "scatter_full_optim_state_dict"})
"""Functions of FSDP1's class that no context changes."""
_RENAMED_KEYS = (
    r"torch\.compile|\.compile\(\)|_orig_mod|state_dict_(?:pre_|post_)?hook"
    r"|def (?:state_dict|_save_to_state_dict|[gs]et_extra_state)\b"
)
"""What makes the keys of a model's state others than the names of its parameters and buffers."""


@dataclass(frozen=True)
class FullState:
    """``with FSDP.state_dict_type(model, FULL_STATE_DICT, …):`` around ``model.state_dict()`` and its like.

    The context itself says that the model is in FSDP1: it raises KeyError for any other.
    """

    block: ast.With
    reads: tuple[ast.Call, ...]
    """The calls of ``state_dict()``."""
    optimizer_reads: tuple[ast.Call, ...]
    """The calls of ``FSDP.optim_state_dict(model, optimizer)``."""
    offloads: bool
    """Whether the state comes to the CPU, and to the first rank alone."""
    optimizer_on_one_rank: bool
    """Whether an optimizer's state comes to the first rank alone."""
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
    offloads = _offloads(file, given.get("state_dict_config"), "FullStateDictConfig")
    on_one_rank = _offloads(file, given.get("optim_state_dict_config"), "FullOptimStateDictConfig")
    model = given["module"]
    if offloads is None or not isinstance(model, (ast.Name, ast.Attribute)) or program.mentions(_RENAMED_KEYS):
        return None
    uses = _uses(file, block, ast.unparse(model))
    if not uses or (on_one_rank is None and any(map(partial(_is_optimizer_read, file), uses))):
        return None
    reads = [call for call in uses if isinstance(call.func, ast.Attribute) and call.func.attr == "state_dict"]
    of_optimizers = [call for call in uses if _is_optimizer_read(file, call)]
    return FullState(block, tuple(reads), tuple(of_optimizers), offloads, bool(on_one_rank), tuple(needless), tuple(settings))


def full_state_around(program: Program, file: File, read: ast.Call) -> FullState | None:
    """The context whose full state a call takes, of the model or of an optimizer."""
    for around in file.ancestors(read):
        if isinstance(around, ast.With) and isinstance(around.items[0].context_expr, ast.Call):
            context = around.items[0].context_expr
            if file.external(context.func) == f"{FSDP1}.state_dict_type":
                found = full_state(program, file, context)
                return found if found is not None and read in (*found.reads, *found.optimizer_reads) else None
    return None


def _offloads(file: File, config: ast.expr | None, kind: str) -> bool | None:
    """Whether a configuration asks for the CPU of the first rank; None for any other mixture, or an unknown one.

    Without one, or without rank0_only, every rank has the state; FullOptimStateDictConfig has it on the CPU by default.
    """
    if config is None or (isinstance(config, ast.Constant) and config.value is None):
        return False
    if not isinstance(config, ast.Call) or file.external(config.func) != f"{_FSDP}{kind}":
        return None
    names = ("offload_to_cpu", "rank0_only")
    given: dict[str | None, ast.expr] = dict(zip(names, config.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in config.keywords}
    offloads = given.pop("offload_to_cpu", ast.Constant(kind == "FullOptimStateDictConfig"))
    alone = given.pop("rank0_only", ast.Constant(False))
    if given or not isinstance(alone, ast.Constant):
        return None
    if isinstance(offloads, ast.Call) and file.external(offloads.func) == "torch.cuda.is_available" and alone.value:
        return True  # without GPUs it is on the CPU anyway
    if not isinstance(offloads, ast.Constant) or (bool(offloads.value) != bool(alone.value) and kind == "FullStateDictConfig"):
        return None
    return bool(alone.value) if offloads.value else None if kind == "FullOptimStateDictConfig" else False


def _uses(file: File, block: ast.With, model: str) -> list[ast.Call]:
    """The calls that take or load state of the model; none if anything else in the block may ask for a state dict."""
    found: list[ast.Call] = []
    for node in _inside(block):
        if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef, ast.Yield, ast.YieldFrom, ast.Await)):
            return []
        if not isinstance(node, (ast.Name, ast.Attribute)):
            continue
        call = file.parents[node]
        if isinstance(call, ast.Call) and call.func is node and _is_full_use(file, node, call, model):
            found.append(call)
        elif _may_use(file, node, model):
            return []
    return found


def _is_full_use(file: File, function: ast.expr, call: ast.Call, model: str) -> bool:
    """Whether a call takes or loads full state of the model or of an optimizer, as the context wants it."""
    if isinstance(function, ast.Attribute) and ast.unparse(function.value) == model:
        return function.attr == "load_state_dict" or (function.attr == "state_dict" and not (call.args or call.keywords))
    name = file.external(function) or ""
    return _is_optimizer_read(file, call) or (name.startswith(f"{FSDP1}.") and name.rpartition(".")[2] in _OF_FULL_STATE)


def _is_optimizer_read(file: File, call: ast.Call) -> bool:
    return file.external(call.func) == f"{FSDP1}.optim_state_dict" and len(call.args) + len(call.keywords) == 2


def _may_use(file: File, node: ast.Name | ast.Attribute, model: str) -> bool:
    """Whether an expression hands the model on, or its holder, calls a method of the holder, or takes another state."""
    text, parent = ast.unparse(node), file.parents[node]
    if isinstance(node, ast.Attribute) and "state_dict" in node.attr:
        values = file.values(node.value)
        return not values or not all(isinstance(value, Optimizer) for value in values)
    if text == model:
        in_call = isinstance(parent, ast.keyword | ast.Call) and not (isinstance(parent, ast.Call) and parent.func is node)
        call = file.parents[parent] if isinstance(parent, ast.keyword) else parent
        if in_call and isinstance(call, ast.Call):
            return not _is_full_use(file, call.func, call, model)
        return not (isinstance(parent, ast.Attribute) and parent.attr in ("state_dict", "load_state_dict"))
    if isinstance(node, ast.Name) and text == model.partition(".")[0]:
        return not isinstance(parent, ast.Attribute) or _is_called(file, parent)
    return False


def _is_called(file: File, node: ast.Attribute) -> bool:
    call = file.parents[node]
    return isinstance(call, ast.Call) and call.func is node


def _inside(block: ast.With) -> Iterator[ast.AST]:
    for statement in block.body:
        yield from ast.walk(statement)
