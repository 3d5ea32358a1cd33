"""``with FSDP.state_dict_type(…):`` goes; the helpers of DCP take the kind of state dict as an option."""

from __future__ import annotations

import ast

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.chosen import qualify
from ..state.contexts import OLD_RANK_FILES, read_context, told_by_callers
from ..state.opened import is_context_call
from ..state.readers import has_reader
from ..text.dedent import can_unwrap, unwrapped
from ..text.patches import Patch
from ..view import FileView

_WHY = "FSDP2 has no state_dict_type: what kind of state dict is meant is said where it is taken or loaded."


def check(site: Site, migration: Migration) -> Outcome:
    """Removes a context; its body moves out."""
    view, call = site.view, site.call
    if site.role == "keyword":
        return Outcome(Level.SAFE, "part of its call", silent=True)
    if call is None or not is_context_call(view, call):
        return Outcome(
            Level.MANUAL,
            "state_dict_type is handed on instead of being called here",
            "Take the state with get_model_state_dict(model, options=StateDictOptions(…)) where it is needed.",
            holds=True,
        )
    if _is_handed_on(view, call):
        return Outcome(
            Level.MANUAL,
            "the context is handed to a function, and how long it stays open is not followed",
            "Open it by with, or take the state with get_model_state_dict(model, options=StateDictOptions(…)).",
            holds=True,
        )
    context = read_context(migration, view, call)
    if context.kind == "unknown" and not told_by_callers(migration, view, call):
        return Outcome(Level.MANUAL, "the kind of state dict is only known at run time", _CHOOSE, holds=True)
    seen = has_reader(migration, call)
    if not seen and not context.is_sharded:
        return Outcome(
            Level.MANUAL,
            "nothing in these files takes or loads the full state under this context: code that is outside them would get "
            "this rank's shards instead, and raise nothing",
            "Take or load the state here: get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)).",
            holds=True,
        )
    outcome = Outcome(Level.SAFE, "the context goes: the helpers of DCP get the kind of state dict as options")
    if not seen:
        outcome.level = Level.REVIEW
        outcome.message = "the context goes: what the code under it takes from a sharded model is sharded by itself"
    if context.kind == "local":
        outcome.level = Level.REVIEW
        outcome.message += f"; {OLD_RANK_FILES}"
        if not seen:
            outcome.message += (
                "; look that code outside these files does not load them with both weights_only=False and strict=False, "
                "which would skip flat parameters without an error"
            )
    parent = view.parents[call]
    statement = view.statement(call)
    check: tuple[str, ...] = ()
    if context.choice is not None:
        check = (f"{view.indent(statement)}{context.choice.check}\n",)
        qualify(outcome, context.choice)
    if isinstance(parent, ast.withitem) and isinstance(statement, (ast.With, ast.AsyncWith)):
        if parent.optional_vars is None and len(statement.items) > 1:
            position = statement.items.index(parent)
            neighbour = statement.items[position - 1 if position else 1].context_expr
            start, end = view.source.span(call)
            if position:
                start = view.source.span(statement.items[position - 1].optional_vars or neighbour)[1]
            else:
                end = view.source.span(neighbour)[0]
            outcome.patches.append(Patch(view.path, start, end, (), _WHY))
            if check:
                outcome.patches.append(view.insert_before(statement, check, _WHY))
            return outcome
        overriding = _only_passes_on(view, statement) if parent.optional_vars is None and not check else None
        if overriding is not None:
            outcome.message += f"; {overriding.name} then only calls the method that it overrides, so it goes, too"
            block, place = view.block_of(overriding)
            start, end = view.line_start(overriding), view.line_start(block[place + 1])
            outcome.patches.append(Patch(view.path, start, end, (), _WHY))
            return outcome
        if parent.optional_vars is None and can_unwrap(view, statement):
            outcome.patches.append(unwrapped(view, statement, _WHY, before=check))
            return outcome
    if check:
        outcome.patches.append(view.insert_before(statement, check, _WHY))
    name = migration.use(outcome, view, "contextlib.nullcontext", call)
    outcome.patches.append(view.replace(call, f"{name}()", _WHY))
    return outcome


def _only_passes_on(view: FileView, statement: ast.With | ast.AsyncWith) -> ast.FunctionDef | None:
    """The method around a context that does nothing else but ``return super().load(*args, **kwargs)``."""
    method = view.parents[statement]
    if not isinstance(method, ast.FunctionDef) or method.body != [statement] or method.decorator_list:
        return None
    block, place = view.block_of(method)
    takes, only = method.args, statement.body[0]
    if len(statement.items) > 1 or len(statement.body) > 1 or not isinstance(only, ast.Return) or place + 1 == len(block):
        return None
    if [a.arg for a in takes.args] != ["self"] or takes.vararg is None or takes.kwarg is None or "#" in view.text(method):
        return None
    passed = f"super().{method.name}(*{takes.vararg.arg}, **{takes.kwarg.arg})"
    is_method = isinstance(view.parents[method], ast.ClassDef)
    return method if is_method and only.value is not None and ast.unparse(only.value) == passed else None


def _is_handed_on(view: FileView, call: ast.Call) -> bool:
    """``stack.enter_context(FSDP.state_dict_type(…))``."""
    parent = view.parents[call]
    while isinstance(parent, ast.IfExp):
        parent = view.parents[parent]
    return isinstance(parent, ast.Call)


_CHOOSE = (
    "Choose the options where the kind is chosen: StateDictOptions(full_state_dict=True, cpu_offload=True) "
    "or StateDictOptions(), and call get_model_state_dict(model, options=options)."
)

_UNSEEN = """\
from saving import Saver
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


class FullSaver(Saver):
    def __init__(self, model):
        super().__init__()
        self.model = FSDP(model)

    def save(self):
        with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT):
            super().save()
"""

RULE = Rule(
    id="FS401",
    title="state_dict_type contexts",
    why=_WHY,
    symbols=(f"{FSDP1}.state_dict_type", f"{FSDP1}.state_dict_type(*"),
    roles=("call", "keyword", "use"),
    check=check,
    sources=("https://docs.pytorch.org/docs/stable/distributed.checkpoint.html",),
    examples=(
        Example(
            before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType, FullStateDictConfig


def save(model: FSDP, rank):
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        state = model.state_dict()
    if rank == 0:
        torch.save(state, "model.pt")
""",
            after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule


def save(model: FSDPModule, rank):
    config = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=config)
    if rank == 0:
        torch.save(state, "model.pt")
""",
        ),
        Example(
            before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def main(model):
    model = FSDP(model)
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        return model.state_dict()
""",
            after="""\
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard


def main(model):
    fully_shard(model)
    return get_model_state_dict(model)
""",
            level=Level.REVIEW,
            note="flat shards exist in FSDP1 only: each rank keeps its rows as DTensors instead",
        ),
        Example(
            before=_UNSEEN,
            after=_UNSEEN,
            level=Level.MANUAL,
            note="what the base class saves is not seen, and would be this rank's shards",
        ),
    ),
    proof=("finetuning_package", "full_optimizer_resume", "trainer_class", "state_dict_kind_from_config"),
)
