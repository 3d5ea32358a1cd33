"""``model.load_state_dict()`` of a wrapped or sharded model."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ..analysis.symbols import DDP, FSDP1
from ..analysis.values import Annotated, Derived, Wrapped
from ..findings import Level
from ..migration import Migration
from ..ranks.evaluation import reshard_lines
from ..ranks.guards import GuardFinder
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.contexts import OLD_RANK_FILES, StateContext, bound_arguments, context_at
from ..state.ddp_loads import beside_own_load
from ..state.loads import load_outcome
from ..state.old_prefix import may_be_prefixed
from ..state.reads import before_wrap, hidden_uses, is_optimizer, is_prefixed, of_another_program
from ..state.sharded_parts import parts_load
from ..state.strangers import is_of_stranger, loads_of_strangers
from ..state.unseen_loads import stranger_load
from ..state.writing import OPTIONS, SET_MODEL
from ..text.dedent import unwraps
from ..text.generated import replaced_call
from ..text.patches import Part
from ..training.after_forward import follows_a_forward
from ..training.conditions import may_meet_ddp


def find(migration: Migration) -> Iterator[Site]:
    """Loads that no value shows to be into a wrapped model."""
    hidden = [site for site in hidden_uses(migration) if site.member == "load_state_dict"]
    yield from hidden
    known = {site.node for site in hidden}
    yield from (site for site in loads_of_strangers(migration) if site.node not in known)


def check(site: Site, migration: Migration) -> Outcome:
    """A load into the sharded model becomes set_model_state_dict; one before the wrap stays."""
    view, call, node = site.view, site.call, site.node
    if is_of_stranger(migration, site):
        return stranger_load(migration, site, "any")
    if not is_optimizer(site) and before_wrap(migration, site):
        return Outcome(Level.OK, "loaded before the model is sharded")
    if of_another_program(migration, site):
        return Outcome(Level.OK, "made by the same factory as a model that is wrapped, but in a script of its own")
    if is_optimizer(site):
        return load_outcome(site, migration)
    arguments = bound_arguments(call, ("state_dict", "strict", "assign")) if call is not None else {}
    state = arguments.get("state_dict")
    if call is None or state is None or not isinstance(node, ast.Attribute):
        return _manual("load_state_dict is not called with one state dict here")
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    guard = next(iter(finder.around(view, call)), None) or finder.callers_guarded(view, call)
    if guard is not None:
        return _manual(f"only some ranks load here (guard at line {guard.statement.lineno}), and loading is collective")
    context = context_at(migration, view, call, site.group)
    if context.kind == "unknown":
        return _manual("the kind of state dict is only known at run time")
    is_prefixed_file = is_prefixed(site) or may_be_prefixed(migration, site, state)
    by_parts = parts_load(migration, site) if context.full and not context.is_sharded and not is_prefixed_file else None
    if by_parts is not None:
        return by_parts
    outcome = _rewrite(site, migration, arguments, context)
    if context.may_be_local:
        outcome.level = Level.REVIEW
        outcome.message += f"; {OLD_RANK_FILES}"
    return outcome


def _rewrite(site: Site, migration: Migration, arguments: dict[str, ast.expr], context: StateContext) -> Outcome:
    view, call, node = site.view, site.call, site.node
    assert call is not None and isinstance(node, ast.Attribute)
    message = "sharded state is loaded" if context.is_sharded else "a full state dict is loaded, and each rank keeps its shards"
    if context.choice is not None:
        message = f"what is loaded is full or sharded as {context.choice.text} says"
    outcome = Outcome(Level.SAFE, message)
    name = migration.use(outcome, view, SET_MODEL, call)
    state: Sequence[Part] = (view.keep(arguments["state_dict"]),)
    if is_prefixed(site) or may_be_prefixed(migration, site, arguments["state_dict"]):
        state = ('{name.removeprefix("module."): tensor for name, tensor in ', *state, ".items()}")
        outcome.message += "; the keys of DDP's file lose their prefix on the way"
    flags = [context.full] if context.full else []
    strict = arguments.get("strict")
    is_strict = not (isinstance(strict, ast.Constant) and not strict.value)
    if is_strict and not context.is_sharded and flags == ["full_state_dict=True"] and _is_on_all_ranks(site, migration):
        flags.append("broadcast_from_rank0=True")
        outcome.message += "; rank 0 hands it out, and its keys are checked as before"
    elif is_strict and not context.is_sharded:
        outcome.level = Level.REVIEW
        outcome.message += (
            "; a key that it lacks no longer raises: that parameter keeps its value (with broadcast_from_rank0=True it raises, "
            "where all ranks of the world load)"
        )
    if strict is not None and not (isinstance(strict, ast.Constant) and strict.value is True):
        flags.append(f"strict={view.text(strict)}")
        if isinstance(strict, ast.Constant):
            outcome.level = Level.REVIEW
            outcome.message += "; strict=False loads what has a matching name and is silent about the rest"
        if not context.is_sharded and not isinstance(view.parents[call], ast.Expr):
            outcome.level = Level.REVIEW
            outcome.message += "; missing_keys of what it gives back is always empty: compare the file's names with the model's"
    if "assign" in arguments:
        outcome.level = Level.REVIEW
        outcome.message += "; assign= goes: values are copied into the shards"
    parts: list[Sequence[Part]] = [(view.keep(node.value),), state]
    if flags:
        parts.append((f"options={migration.use(outcome, view, OPTIONS, call)}({', '.join(flags)})",))
    text = replaced_call(view, call, name, parts, unwraps(view, call))
    before: list[Part] = []
    statement, indent = view.statement(call), view.indent(call)
    may_be_gathered = site.group is not None and (
        follows_a_forward(migration, view, call, site.group, site.values) or _is_from_its_wrap(site, arguments["state_dict"])
    )
    if may_be_gathered and view.stands_alone(statement):
        outcome.level = Level.REVIEW
        outcome.message += "; a forward may have run last, so the model goes back to its shards first"
        before = reshard_lines(migration, outcome, view, view.keep(node.value), indent, call)
    if before and isinstance(statement, ast.Expr) and statement.value is call:
        text = [str(before[0]).removeprefix(indent), *before[1:], indent, *text]
    elif before:
        outcome.patches.append(view.insert_before(statement, before, "state is loaded into the sharded parameters"))
    if may_meet_ddp(site, call):
        text = beside_own_load(migration, outcome, view, call, view.keep(node.value), text)
        outcome.message += "; models that stay under DDP load as before"
    outcome.patches.append(view.replace(call, text, "full tensors do not fit into shards"))
    return outcome


def _is_on_all_ranks(site: Site, migration: Migration) -> bool:
    """Whether the model is surely sharded, and over all ranks: then rank 0 can hand out what is loaded."""
    group = site.group
    receiver = site.node.value if isinstance(site.node, ast.Attribute) else site.node
    while isinstance(receiver, ast.Attribute) and receiver.attr == "module":
        receiver = receiver.value
    held = site.view.values(receiver)
    if group is None or not held or not all(isinstance(value, (Wrapped, Annotated)) for value in held):
        return False
    given = {keyword.arg for wrap in group.wraps for keyword in wrap.node.keywords}
    return migration.options.ddp != "replicate" and bool(group.wraps) and not given & {None, "process_group", "device_mesh"}


def _is_from_its_wrap(site: Site, state: ast.expr) -> bool:
    """``target.load_state_dict(online.state_dict())`` of two models that one call wraps: what ran last cannot be told apart."""
    view, node = site.view, site.node
    if not isinstance(state, ast.Call) or not isinstance(state.func, ast.Attribute) or not isinstance(node, ast.Attribute):
        return False
    is_another = view.text(state.func.value) != view.text(node.value)
    return is_another and any(v.owner in site.values for v in view.values(state) if isinstance(v, Derived))


def _manual(what: str) -> Outcome:
    return Outcome(
        Level.MANUAL,
        what,
        "On all ranks: set_model_state_dict(model, state_dict, options=StateDictOptions(full_state_dict=True)); add "
        "broadcast_from_rank0=True where rank 0 alone has read the file and the others pass {}. Or load before "
        "sharding.",
        holds=True,
    )


RULE = Rule(
    id="FS403",
    title="Loading model state",
    why=(
        "model.load_state_dict() of full tensors into a sharded model raises (their shapes differ). "
        "set_model_state_dict with full_state_dict=True gives each rank its shards; it replaces the tensors of the "
        "dict that it is given by shards, so that dict is of no further use. Measured on torch 2.13: strict=True raises for keys "
        "that the model lacks, and for keys that the dict lacks only with broadcast_from_rank0=True (on every rank), so loads "
        "into models that are sharded over all ranks get it; without it the parameters of such keys keep their values."
    ),
    symbols=(f"{FSDP1}.load_state_dict", f"{DDP}.load_state_dict", "torch.nn.Module.load_state_dict"),
    roles=("use", "hazard"),
    check=check,
    find=find,
    sources=(
        "https://docs.pytorch.org/docs/stable/distributed.checkpoint.html#torch.distributed.checkpoint.state_dict.set_model_state_dict",
    ),
    examples=(
        Example(
            before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def load(model: FSDP, path):
    model.load_state_dict(torch.load(path))
""",
            after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule


def load(model: FSDPModule, path):
    set_model_state_dict(model, torch.load(path), options=StateDictOptions(full_state_dict=True))
""",
            level=Level.REVIEW,
        ),
    ),
    proof=("finetuning_package", "full_optimizer_resume", "state_dict_kind_from_config"),
)
