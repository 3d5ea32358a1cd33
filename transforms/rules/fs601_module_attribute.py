"""``model.module``: with FSDP2 the model is sharded in place, so there is nothing to unwrap."""

from __future__ import annotations

import ast

from ..analysis.objects import is_anything
from ..analysis.scopes import dotted_path
from ..analysis.symbols import DATA_PARALLEL, DDP
from ..analysis.values import Annotated, Wrapped
from ..findings import Level
from ..introspection.type_tests import OF_WRAPPED, classes_asked_for, type_test
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.reads import read_of
from ..text.generated import removed
from ..text.patches import Patch
from ..text.spelling import quoted
from ..training.conditions import may_meet_ddp
from ..training.passes import outside_name
from ..training.unseen_methods import is_unseen
from ..training.unwrapping import (
    has_wrapper_of_its_own,
    is_unwrap_test,
    may_be_data_parallel,
    only_unwraps,
    tests_around,
    unwrapped_path,
)
from ..view import FileView

_WHY = "fully_shard keeps the model itself"
_UNSEEN = (
    "the code of the model is not seen: where other methods of it than forward compute, they have to be registered "
    "(register_fsdp_forward_method)"
)


def check(site: Site, migration: Migration) -> Outcome:
    view, node = site.view, site.node
    assert isinstance(node, ast.Attribute)
    if site.member == "_fsdp_wrapped_module" and has_wrapper_of_its_own(migration):
        return Outcome(Level.OK, "an attribute of this repository's own FSDP class")
    if not isinstance(node.ctx, ast.Load):
        return Outcome(
            Level.MANUAL,
            "the wrapped model is replaced by assigning to .module",
            "Assign to the model's own name before it is sharded; a model put in later has to be sharded again.",
            holds=True,
        )
    meets_ddp = may_meet_ddp(site, node)
    staying = DATA_PARALLEL | {DDP} if meets_ddp else DATA_PARALLEL
    path = unwrapped_path(site)
    for branch, holds in tests_around(view, node):
        is_other = path is not None and holds and is_unwrap_test(migration, view, branch.test, path)
        if is_other and (only_unwraps(branch) or not meets_ddp):
            others = meets_ddp or may_be_data_parallel(site.values)
            if isinstance(branch, ast.IfExp) and not others and not _names_others(view, branch, staying):
                break
            return Outcome(Level.OK, "this branch is for other wrappers: an FSDP2 model has no .module")
    is_wrapped = path is not None and any(
        holds and _asks_for_wrappers_alone(view, branch.test, path) for branch, holds in tests_around(view, node)
    )
    loop = _unwrapping_loop(view, node)
    if loop is not None:
        return _without_loop(view, loop, view.parents[node])
    scope = view.function(node)
    is_asked = bool(classes_asked_for(view, node.value) & staying)
    may_hold_another = _may_hold_another(site)
    is_named = is_asked or may_be_data_parallel(site.values) or (scope is not None and _mentions(view, scope, staying))
    if may_hold_another or meets_ddp or (is_named and not is_wrapped):
        other = "what holds a model as its .module" if may_hold_another else "DDP" if meets_ddp else "DataParallel"
        outcome = Outcome(Level.REVIEW, f"{other} still has a .module, an FSDP2 model is itself")
        choice = _choice_by_helper(migration, view, node) if other == "DataParallel" else None
        if choice is not None:
            mentioned = (view.external(name) for name in view.nodes(ast.Name, ast.Attribute))
            symbol = next((name for name in mentioned if name in DATA_PARALLEL), "torch.nn.DataParallel")
            parallel = migration.use(outcome, view, symbol, node)
            outcome.message += ", and the test that chooses is true of both"
            outcome.patches.append(view.replace(choice.test, ("isinstance(", view.keep(node.value), f", {parallel})"), _WHY))
            return outcome
        parts = ("getattr(", view.keep(node.value), f", {quoted(view, 'module')}, ", view.keep(node.value), ")")
        outcome.patches.append(view.replace(node, parts, _WHY))
        return outcome
    outcome = Outcome(Level.SAFE, "the model itself takes the place of .module")
    if site.group is not None and "DDP" in site.group.kinds and is_unseen(site.group) and _is_handed_on(view, node):
        outcome.level = Level.REVIEW
        outcome.message += f"; {_UNSEEN}"
    outcome.patches.append(_strip(view, node))
    return outcome


def _is_handed_on(view: FileView, node: ast.expr) -> bool:
    """Whether an expression, or the choice that it is one side of, is returned or given to a call that is not seen."""
    parent = view.parents[node]
    while isinstance(parent, (ast.IfExp, ast.keyword)):
        node, parent = parent, view.parents[parent]  # pyright: ignore[reportAssignmentType]
    if isinstance(parent, ast.Return):
        return True
    if not isinstance(parent, ast.Call) or parent.func is node:
        return False
    return not view.program.callees(view, parent) and view.external(parent.func) is None


def _may_hold_another(site: Site) -> bool:
    """Whether a search of its modules says that an unknown receiver is wrapped: one of them may be what is."""
    models = site.group.raw if site.group is not None else set()
    if any(isinstance(v, (Wrapped, Annotated)) or (v in models and not is_anything(v)) for v in site.values):
        return False
    assert isinstance(site.node, ast.Attribute)
    return site.member == "module" and not OF_WRAPPED.isdisjoint(classes_asked_for(site.view, site.node.value, of_parts=True))


def _unwrapping_loop(view: FileView, node: ast.Attribute) -> ast.While | None:
    """``while isinstance(model, DDP): model = model.module``: the loop around, which would never end."""
    statement = view.parents[node]
    if not isinstance(statement, ast.Assign):
        return None
    if [view.text(target) for target in statement.targets] != [view.text(node.value)]:
        return None
    for ancestor in view.ancestors(statement):
        if isinstance(ancestor, ast.While):
            return ancestor
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return None
    return None


def _without_loop(view: FileView, loop: ast.While, statement: ast.AST) -> Outcome:
    if loop.body != [statement] or loop.orelse or _calls(loop.test) or not view.stands_alone(loop):
        return Outcome(
            Level.MANUAL,
            "a loop takes wrappers off and does more than that",
            "With FSDP2 there is nothing to take off: write what else the loop does without it.",
            holds=True,
        )
    outcome = Outcome(Level.SAFE, "the loop that takes wrappers off goes: the model is itself")
    outcome.patches.append(removed(view, loop, _WHY))
    return outcome


def _asks_for_wrappers_alone(view: FileView, test: ast.expr, path: str) -> bool:
    """Whether a test lets nothing pass but what is an FSDPModule now."""
    asked = type_test(view, test)
    return asked is not None and dotted_path(asked.subject) == path and bool(asked.names) and asked.names <= OF_WRAPPED


def _choice_by_helper(migration: Migration, view: FileView, node: ast.Attribute) -> ast.IfExp | None:
    """``model.module if is_wrapped(model) else model``, with a function that asks for DataParallel and what is no wrapper now.

    Its sides may be states of these, too, where both are gathered: the second is that of FSDP2 models then.
    """
    side: ast.expr = node
    while isinstance(choice := view.parents[side], (ast.Attribute, ast.Call)) and side is next(ast.iter_child_nodes(choice)):
        side = choice
    if not isinstance(choice, ast.IfExp) or side is not choice.body or not isinstance(choice.test, ast.Call):
        return None
    asked, model = type_test(view, choice.test), view.text(node.value)
    if asked is None or not asked.is_whole or not view.program.callees(view, choice.test):
        return None
    is_of_model = view.text(asked.subject) == model
    is_same = view.text(side).replace(view.text(node), model, 1) == view.text(choice.orelse)
    if side is not node and (not isinstance(choice.orelse, ast.Call) or read_of(migration, choice.orelse) is None):
        return None
    known = asked.names & DATA_PARALLEL and asked.names & OF_WRAPPED and asked.names <= DATA_PARALLEL | OF_WRAPPED
    return choice if is_of_model and is_same and known else None


def _names_others(view: FileView, branch: ast.IfExp, staying: frozenset[str]) -> bool:
    return _mentions(view, branch.test, staying) or not _is_plain_hasattr(branch.test)


def _mentions(view: FileView, test: ast.AST, staying: frozenset[str]) -> bool:
    """Whether a test, or a function with its tests, names a wrapper that stays."""
    return any(
        isinstance(n, (ast.Name, ast.Attribute)) and outside_name(view, n) in staying for n in ast.walk(test)
    )


def _is_plain_hasattr(test: ast.expr) -> bool:
    return isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "hasattr"


def _strip(view: FileView, node: ast.Attribute) -> Patch:
    """Takes ``.module`` off; a choice between the two becomes the model, and what then says nothing goes."""
    receiver = view.text(node.value)
    start, end = view.source.span(node.value)[1], view.source.span(node)[1]
    subject: ast.expr = node
    parent = view.parents[node]
    if isinstance(parent, ast.IfExp) and parent.test is not node:
        other = parent.orelse if parent.body is node else parent.body
        if view.text(other) == receiver:
            subject = parent
    statement = view.parents[subject]
    if isinstance(statement, ast.Assign) and view.stands_alone(statement):
        if [view.text(target) for target in statement.targets] == [receiver]:
            return _without(view, statement)
        if subject is not node:
            return view.replace(subject, (view.keep(node.value),), _WHY)
    if subject is not node:
        return view.replace(subject, (view.keep(node.value),), _WHY)
    return Patch(view.path, start, end, (), _WHY)


def _without(view: FileView, statement: ast.stmt) -> Patch:
    """Removes ``model = model``, and the ``if`` that holds nothing else."""
    block, _ = view.block_of(statement)
    parent = view.parents[statement]
    if len(block) > 1 or isinstance(parent, ast.Module):
        return view.delete(statement, _WHY)
    if isinstance(parent, ast.If) and not parent.orelse and view.stands_alone(parent):
        outer, _ = view.block_of(parent)
        is_elif = isinstance(view.parents[parent], ast.If) and parent in view.parents[parent].orelse  # pyright: ignore[reportAttributeAccessIssue]
        if len(outer) > 1 and not is_elif and not _calls(parent.test):
            return view.delete(parent, _WHY)
    return view.replace(statement, "pass", _WHY)


def _calls(test: ast.expr) -> bool:
    """Whether a test may do more than look."""
    called = [ast.unparse(node.func) for node in ast.walk(test) if isinstance(node, ast.Call)]
    return any(name not in ("isinstance", "hasattr", "type") for name in called)


_WRAP = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(build())\n"
_SHARD = "import torch\nfrom torch.distributed.fsdp import fully_shard\n\nmodel = build()\nfully_shard(model)\n"

RULE = Rule(
    id="FS601",
    title="model.module becomes the model",
    why=(
        "DDP and FSDP1 put the model inside a wrapper; fully_shard changes it in place, so the attribute is missing "
        "and every other name of the model means the same object. DataParallel keeps its .module."
    ),
    symbols=(
        "torch.nn.parallel.DistributedDataParallel.module",
        "torch.distributed.fsdp.FullyShardedDataParallel.module",
        "torch.distributed.fsdp.FullyShardedDataParallel._fsdp_wrapped_module",
    ),
    roles=("use",),
    check=check,
    proof=("nanogpt_ddp", "gan_ddp", "imagenet_ddp", "model_without_ddp"),
    examples=(
        Example(
            _WRAP + "raw_model = model.module if ddp else model\nprint(model.module.config)\n",
            _SHARD + "raw_model = model\nprint(model.config)\n",
        ),
    ),
)
