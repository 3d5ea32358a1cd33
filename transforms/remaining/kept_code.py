"""What only makes sense with code of the wrappers that stays: annotations in it, tests for it, what stands behind them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ..analysis.symbols import DDP
from ..introspection.branch_chains import wrapper_kind
from ..judge import Judgement
from ..migration import Migration
from ..sites import UNIQUE_MEMBERS
from ..text.patches import Patch
from ..view import FileView

_OF_FSDP1 = "torch.distributed.fsdp"


def hold_beside_kept(migration: Migration, judgements: Sequence[Judgement], gone: Sequence[Patch]) -> bool:
    """Leaves annotations and assertions as they are where the code that they speak for goes on using FSDP1.

    ``gone`` is what the rewritten code takes along: it keeps nothing. Says whether anything was held.
    """
    kept = [j for j in judgements if _is_kept(j) and not _goes(j, gone)]
    staying = [j for j in judgements if j.site.role == "isinstance" and j.site.symbol == DDP and not j.applied]
    found = False
    for judgement in judgements:
        if not judgement.applied or not judgement.outcome.patches:
            continue
        view, node = judgement.site.view, judgement.site.node
        places: Iterator[tuple[FileView, ast.AST]] = iter(())
        if judgement.site.role == "annotation":
            places = iter([(view, _outermost(view, node))])
        elif judgement.site.role == "isinstance" and judgement.site.group is None:
            places = _callees_of_asserted(migration, view, node)
        cause = next((k for where, scope in places for k in kept if _stands_in(k, where, scope)), None)
        if cause is None and judgement.site.role == "isinstance" and judgement.site.group is None:
            cause = _kept_by_callers(migration, view, node, kept)
        cause = cause or next((branch for branch in staying if _stands_in_branch(judgement, branch)), None)
        if cause is not None:
            judgement.held_by = cause.held_by or cause
            found = True
    return found


def _is_kept(judgement: Judgement) -> bool:
    site = judgement.site
    of_fsdp1 = site.symbol.startswith(_OF_FSDP1) and site.role not in ("import", "annotation", "isinstance", "hazard")
    is_setting = site.role == "use" and site.member not in UNIQUE_MEMBERS  # model.process_group: the rest is of FSDP2
    return of_fsdp1 and not is_setting and not judgement.applied


def _stands_in_branch(judgement: Judgement, test: Judgement) -> bool:
    """Whether a site stands where only a model under DDP comes, since the test for that stays: it is right for one."""
    view = test.site.view
    call = next((a for a in view.ancestors(test.site.node) if isinstance(a, (ast.Call, ast.stmt))), None)
    branch = view.parents[call] if call is not None else None
    if not isinstance(branch, ast.If) or wrapper_kind(view, branch.test) is None or judgement.site.view is not view:
        return False
    return any(statement in (judgement.site.node, *view.ancestors(judgement.site.node)) for statement in branch.body)


def _goes(judgement: Judgement, gone: Sequence[Patch]) -> bool:
    view = judgement.site.view
    start, end = view.source.span(judgement.site.node)
    return any(patch.file == view.path and patch.start <= start and end <= patch.end for patch in gone)


def _stands_in(judgement: Judgement, view: FileView, scope: ast.AST) -> bool:
    site = judgement.site
    return site.view is view and (site.node is scope or scope in view.ancestors(site.node))


def _outermost(view: FileView, node: ast.AST) -> ast.AST:
    """The class or function around an annotation, its own statement outside of any."""
    around = [a for a in view.ancestors(node) if isinstance(a, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))]
    return around[-1] if around else node


def _kept_by_callers(migration: Migration, view: FileView, node: ast.AST, kept: Sequence[Judgement]) -> Judgement | None:
    """Code of FSDP1 that stays in every function that calls the one a test stands in: it answers for FSDP1's modules."""
    function = view.function(node)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    callers = [(where, where.function(call)) for where, call in migration.program.callers(view, function)]
    causes = [next((k for k in kept if scope is not None and _stands_in(k, where, scope)), None) for where, scope in callers]
    return causes[0] if causes and None not in causes else None


def _callees_of_asserted(migration: Migration, view: FileView, node: ast.AST) -> Iterator[tuple[FileView, ast.AST]]:
    """Functions that are handed what ``assert isinstance(model, FSDP)`` speaks of, behind it in the same function."""
    call = next((a for a in view.ancestors(node) if isinstance(a, ast.Call)), None)
    if call is None or not call.args or not isinstance(call.args[0], ast.Name):
        return
    statement, function = view.parents[call], view.function(call)
    if not isinstance(statement, ast.Assert) or statement.test is not call or function is None:
        return
    name = call.args[0].id
    for other in ast.walk(function):
        if not isinstance(other, ast.Call) or other is call:
            continue
        given = [*other.args, *(keyword.value for keyword in other.keywords)]
        if any(isinstance(value, ast.Name) and value.id == name for value in given):
            for callee in migration.program.callees(view, other):
                yield migration.program.function_node(callee)
