"""Conditions that decide nothing any more: once it is rewritten, either way does the same."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..analysis.symbols import is_old
from ..ranks.guards import leaves
from ..text.dedent import can_unwrap, holds_long_strings, unwrapped
from ..text.patches import Old, Patch, flatten
from ..text.source import Source
from ..view import FileView
from .harmless import is_harmless
from .remarks import ABOUT_WRAPPERS

SAME_BRANCHES = "either way is the same now"
"""Why a condition goes."""


@dataclass
class SameBranches:
    """What became of the conditions of a file whose branches are the same now."""

    patches: list[Patch] = field(default_factory=list)
    staying: list[ast.If] = field(default_factory=list)
    """Those that cannot be left out: evaluating them may do something, or a comment would be lost."""


def same_branches(view: FileView, patches: Sequence[Patch]) -> SameBranches:
    """Takes out the conditions whose branches become the same by these patches, the innermost first."""
    found = SameBranches()
    while True:
        fresh = [b for b in _equal(view, [*patches, *found.patches]) if b not in found.staying]
        if not fresh:
            return found
        for branch in fresh:
            patch = _without_condition(view, branch)
            if patch is None:
                found.staying.append(branch)
            else:
                found.patches.append(patch)


def _equal(view: FileView, patches: Sequence[Patch]) -> list[ast.If]:
    """Conditions with branches that were different, and no longer are; none inside another one."""
    found: list[ast.If] = []
    for branch in reversed(view.nodes(ast.If)) if patches else ():
        if any(branch in ast.walk(other) or other in ast.walk(branch) for other in found):
            continue
        other = _other_way(view, branch)
        if other and _stays_around(view, branch, other, patches):
            spans = [_span(view, block) for block in (branch.body, other)]
            before = [_dump(view.source, span, ()) for span in spans]
            imports = {ast.dump(statement) for statement in _old_imports(view, branch.body)}
            after = [_dump(view.source, span, patches, imports) for span in spans]
            if after[0] and after[0] == after[1] and before[0] != before[1]:
                found.append(branch)
    return found


def _other_way(view: FileView, branch: ast.If) -> list[ast.stmt]:
    """The statements that run where a condition is false: those behind it, too, where its branch leaves for good."""
    if branch.orelse:
        is_chained = len(branch.orelse) == 1 and view.text(branch.orelse[0]).startswith("elif")
        return [] if is_chained else branch.orelse
    if not leaves(branch.body):
        return []
    block, place = view.block_of(branch)
    return block[place + 1 : place + 1 + len(branch.body)]


def _stays_around(view: FileView, branch: ast.If, other: list[ast.stmt], patches: Sequence[Patch]) -> bool:
    """Whether patches change one of two branches, and nothing around them but the condition."""
    blocks = [_span(view, block) for block in (branch.body, other)]
    test = view.source.span(branch.test)
    near = [p for p in patches if p.end > view.line_start(branch) and p.start < blocks[1][1] and not _is_inside(p, test)]
    own_lines = all(view.stands_alone(statement) for statement in (*branch.body, *other))
    return own_lines and bool(near) and all(any(_is_inside(p, block) for block in blocks) for p in near)


def _span(view: FileView, block: list[ast.stmt]) -> tuple[int, int]:
    return view.line_start(block[0]), view.line_end(block[-1])


def _is_inside(patch: Patch, block: tuple[int, int]) -> bool:
    """Whether a patch changes a block: what is inserted in front of the next line does not."""
    return block[0] <= patch.start < block[1] and patch.end <= block[1]


def _old_imports(view: FileView, block: list[ast.stmt]) -> list[ast.ImportFrom]:
    """Imports of old symbols alone whose names only this block mentions."""
    scope = view.function(block[0])
    if scope is None:
        return []
    inside = {id(node) for statement in block for node in ast.walk(statement)}
    outside = {n.id for n in ast.walk(scope) if isinstance(n, ast.Name) and id(n) not in inside}
    return [
        statement
        for statement in block
        if isinstance(statement, ast.ImportFrom)
        and all(is_old(f"{statement.module}.{alias.name}") for alias in statement.names)
        and outside.isdisjoint(alias.asname or alias.name for alias in statement.names)
    ]


def _without_unread(block: ast.Module, imports: Collection[str]) -> ast.Module:
    """A block without those of the imports that nothing in it reads any more: they go when imports are mended."""
    read = {node.id for node in ast.walk(block) if isinstance(node, ast.Name)}
    block.body = [
        statement
        for statement in block.body
        if ast.dump(statement) not in imports
        or not isinstance(statement, ast.ImportFrom)
        or not read.isdisjoint(alias.asname or alias.name for alias in statement.names)
    ]
    return block


def _dump(source: Source, span: tuple[int, int], patches: Sequence[Patch], imports: Collection[str] = ()) -> str:
    """What a block does once the patches are applied, without its layout; empty where that cannot be told."""
    reached, end = span
    pieces: list[str] = []
    for edit in flatten(source, [p for p in patches if _is_inside(p, span)]):
        pieces += source.text[reached : edit.start], edit.text
        reached = edit.end
    try:
        block = ast.parse(textwrap.dedent("".join([*pieces, source.text[reached:end]])))
        return ast.dump(_without_unread(block, imports))
    except SyntaxError:
        return ""


def _without_condition(view: FileView, branch: ast.If) -> Patch | None:
    """The branch without its condition; None where that would be noticed."""
    if not is_harmless(view, branch.test) or view.text(branch).startswith("elif") or not view.stands_alone(branch):
        return None
    if any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.walk(branch)):
        return _other_branch(view, branch)  # imports are mended where they stand
    source = view.source
    if not branch.orelse:
        start, end = view.line_start(branch), view.line_start(_other_way(view, branch)[0])
        return None if "#" in source.text[start:end] else Patch(view.path, start, end, (), SAME_BRANCHES)
    end = view.line_end(branch.orelse[-1])
    if "#" in source.text[view.line_end(branch.body[-1]) : end] or not can_unwrap(view, branch):
        return None
    inner = unwrapped(view, branch, SAME_BRANCHES)
    return Patch(view.path, inner.start, end, inner.parts, SAME_BRANCHES)


def _other_branch(view: FileView, branch: ast.If) -> Patch | None:
    """The other branch in the place of a condition, if nothing but imports and remarks about wrappers goes with this one."""
    imports = [node for node in ast.walk(branch) if isinstance(node, (ast.Import, ast.ImportFrom))]
    if not branch.orelse or len(imports) > len(_old_imports(view, branch.body)):
        return None
    source, (start, end) = view.source, _span(view, branch.orelse)
    head = view.line_start(branch)
    leaving = source.text[head:start]
    blocks = re.findall(r"(?:^[ \t]*#.*\n)+", leaving, re.M)
    if leaving.count("#") > sum(block.count("#") for block in blocks) or not all(map(ABOUT_WRAPPERS.search, blocks)):
        return None
    if "#" in source.text[start:end] or any(holds_long_strings(view, statement) for statement in branch.orelse):
        return None
    indent = view.indent(branch)
    return Patch(view.path, head, end, (Old(start, end, indent),), SAME_BRANCHES)
