"""``if isinstance(m, FSDP): … elif isinstance(m, DDP): …``: branches for two wrappers, whose models are one kind now."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.symbols import FSDP_MODULE, WRAPPERS
from ..text.patches import Patch
from ..view import FileView
from .type_tests import type_test

BRANCH_GOES = "models of both wrappers are FSDPModule now"
"""Why a branch is taken out."""


def wrapper_kind(view: FileView, test: ast.expr) -> tuple[str, str] | None:
    """What is tested (its text) and the one kind of wrapper it is tested for, where a condition is just that."""
    if not isinstance(test, ast.Call) or len(test.args) != 2 or view.external(test.func) != "builtins.isinstance":
        return None
    classes = test.args[1].elts if isinstance(test.args[1], ast.Tuple) else [test.args[1]]
    kinds = {WRAPPERS.get(view.external(cls) or "", "") for cls in classes}
    kind = kinds.pop() if len(kinds) == 1 else ""
    return (view.text(test.args[0]), kind) if kind else None


def chain_of(view: FileView, branch: ast.If) -> list[ast.If]:
    """All branches with a condition of the chain that a branch belongs to, from the first."""
    parent = view.parents[branch]
    while isinstance(parent, ast.If) and parent.orelse == [branch] and view.text(branch).startswith("elif"):
        branch, parent = parent, view.parents[parent]
    return list(_following(view, branch))


def _following(view: FileView, branch: ast.If) -> Iterator[ast.If]:
    yield branch
    if len(branch.orelse) == 1 and isinstance(branch.orelse[0], ast.If) and view.text(branch.orelse[0]).startswith("elif"):
        yield from _following(view, branch.orelse[0])


def counterpart(view: FileView, branch: ast.If) -> ast.If | None:
    """The branch for models of FSDP1, or those that are sharded already, of a chain in which this one is for DDP's."""
    own = wrapper_kind(view, branch.test)
    if own is None or own[1] != "DDP":
        return None
    return next((other for other in chain_of(view, branch) if _is_for_sharded(view, other.test, own[0])), None)


def _is_for_sharded(view: FileView, test: ast.expr, model: str) -> bool:
    if wrapper_kind(view, test) == (model, "FSDP1"):
        return True
    found = type_test(view, test)
    return found is not None and found.names == {FSDP_MODULE} and view.text(found.subject) == model


def raises_otherwise(view: FileView, branch: ast.If) -> bool:
    """Whether a chain asks for wrappers of one model alone and raises for everything else."""
    chain = chain_of(view, branch)
    kinds = [wrapper_kind(view, other.test) for other in chain]
    models = {kind[0] for kind in kinds if kind is not None}
    last = chain[-1].orelse
    return None not in kinds and len(models) == 1 and bool(last) and isinstance(last[-1], ast.Raise)


def without_branch(view: FileView, branch: ast.If) -> Patch | None:
    """Takes a branch out of its chain; None where its lines are not its own."""
    chain = chain_of(view, branch)
    source = view.source
    if branch is chain[0]:
        start = source.span(branch.test)[0]
        return Patch(view.path, start, source.span(chain[1].test)[0], (), BRANCH_GOES) if len(chain) > 1 else None
    end = view.line_end(branch.body[-1])
    begin = view.line_start(branch)
    if branch.orelse:
        lines = range(source.position(end)[0], source.position(source.span(branch.orelse[0])[0])[0] + 1)
        indent = source.text[begin : source.span(branch)[0]]
        heads = (line for line in lines if source.lines[line - 1].startswith((f"{indent}else", f"{indent}elif")))
        head = next(heads, None)
        if head is None:
            return None
        end = source.line_starts[head - 1]
    return Patch(view.path, begin, end, (), BRANCH_GOES)
