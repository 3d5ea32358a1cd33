"""Moving the sharding before the optimizer, or the optimizer behind the sharding, where that is provably sound."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis.scopes import dotted_path
from ..groups import Group, Wrap
from ..migration import Migration
from ..text.patches import Old, Part, Patch
from ..view import FileView
from .effects import Effects, effects_of, leaves_model_alone
from .paragraphs import heading_for, is_a_setting, paragraph_of
from .passes import calls_named, leaves_early

_SETS_UP = frozenset({"init_process_group", "init_device_mesh", "set_device", "new_group"})

WHY = "an optimizer has to be built on the sharded parameters"


@dataclass
class Meeting:
    """Where an optimizer and a wrap come together: two statements of one block, the optimizer's first."""

    view: FileView
    block: list[ast.stmt]
    optimizer: int
    wrap: int


def meetings_of(migration: Migration, optimizer: tuple[FileView, ast.AST], wrap: Wrap) -> list[Meeting] | None:
    """Every block in which the optimizer is reached before the wrap; None where they meet in no block."""
    found: list[Meeting] = []
    for view, first, second in migration.order.meetings(optimizer, (wrap.view, wrap.node)):
        other = {id(block): index for block, index in _blocks(view, second)}
        common = next(((block, index) for block, index in _blocks(view, first) if id(block) in other), None)
        if common is None:
            return None
        meeting = Meeting(view, common[0], common[1], other[id(common[0])])
        if meeting.optimizer == meeting.wrap:
            return None
        if meeting.optimizer < meeting.wrap:
            found.append(meeting)
    return found


def _blocks(view: FileView, node: ast.AST) -> list[tuple[list[ast.stmt], int]]:
    """The blocks around a node, innermost first, and which statement of each it is in."""
    found: list[tuple[list[ast.stmt], int]] = []
    statement = view.statement(node)
    while not isinstance(statement, ast.Module):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and found:
            break
        if isinstance(statement, ast.stmt):
            found.append(view.block_of(statement))
        statement = view.parents[statement]  # pyright: ignore[reportAssignmentType]
    return found


def parameters_taken(migration: Migration, view: FileView, call: ast.Call, group: Group) -> list[ast.Call]:
    """Calls in the function of an optimizer that take the parameters it is given off the model."""
    scope = view.function(call) or view.tree
    names = {n.id for n in ast.walk(call) if isinstance(n, ast.Name)}
    statements: list[ast.stmt] = []
    grown = True
    while grown:
        grown = False
        for node in ast.walk(scope):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.For)) and node not in statements:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                written = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
                if written & names and view.function(node) is view.function(call):
                    source = node.iter if isinstance(node, ast.For) else node.value
                    names |= {n.id for n in ast.walk(source) if isinstance(n, ast.Name)}
                    statements.append(node)
                    grown = True
    found: list[ast.Call] = []
    for statement in statements:
        source = statement.iter if isinstance(statement, ast.For) else statement.value  # pyright: ignore[reportAttributeAccessIssue]
        for node in ast.walk(source):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                taken = node.func.attr in ("parameters", "named_parameters")
                if taken and migration.groups.of(view.values(node.func.value)) is group:
                    found.append(node)
    return found


@dataclass
class Move:
    """A change of order that is sound: ``statements`` of ``block`` from ``first`` on, in their new order."""

    view: FileView
    block: list[ast.stmt]
    first: int
    order: list[int]
    message: str
    down: frozenset[int] = frozenset()
    """Those that go behind others, which then follow the line above them."""

    def patch(self) -> Patch:
        """One patch over all the statements, which keeps the text of each with what is rewritten inside."""
        view = self.view
        last = self.first + len(self.order) - 1
        begins = {index: _start(view, self.block[index]) for index in self.order}
        ends = {index: _end(view, self.block[index]) for index in self.order}
        for index in sorted(self.order)[:-1]:
            # Comments between two statements stay with the first unless they stand right above the second.
            between = view.source.text[ends[index] : begins[index + 1]]
            ends[index] += len(between.rstrip()) if "#" in between else 0
        gaps = {index: view.source.text[ends[index - 1] : begins[index]] for index in self.order if index != self.first}
        newline = view.source.newline(ends[last])
        blank = next((gap for gap in gaps.values() if gap.count("\n") > 1), newline)
        parts: list[Part] = []
        opens = self.order[0]
        above = view.source.text[: begins[self.first]]
        if self.down and self.first and gaps[opens].count("\n") > 1 and not above.endswith(newline * 2):
            parts.append(newline)
        for place, index in enumerate(self.order):
            together = paragraph_of(view, self.block, index)
            before = self.order[place - 1] if place else None
            if before is not None:
                gap = newline if before in together else blank
                parts.append(gaps[index] if index - 1 == before else gap)
            heading = heading_for(view, self.block, index, self.down) if before not in together else ""
            if heading:
                parts.append(f"{view.indent(self.block[index])}{heading}{newline}")
            parts.append(Old(begins[index], ends[index]))
        return Patch(view.path, begins[self.first], ends[last], tuple(parts), WHY)


def sound_move(
    migration: Migration, view: FileView, block: list[ast.stmt], first: int, wraps: Sequence[int],
    groups: Sequence[Group],
) -> Move | str:  # fmt: skip
    """The sharding up or the optimizers down, whichever is sound (up if both are); else what stands in the way."""
    last = max(wraps)
    span = block[first : last + 1]
    if not all(view.stands_alone(statement) for statement in span):
        return "statements share a line"
    effects = [effects_of(migration, view, statement) for statement in span]
    moved = sorted(index - first for index in wraps)
    names = _model_names(view, span, groups)
    up = _blocked_up(migration, view, span, effects, moved, names, groups)
    if up is None:
        order = [*moved, *(index for index in range(len(span)) if index not in moved)]
        return Move(view, block, first, [first + index for index in order], "the sharding moves above the optimizer")
    down = _down(migration, view, span, effects, moved, names, groups)
    if isinstance(down, list):
        down = _with_paragraphs(migration, view, span, effects, down, names, groups)
        order = [*(index for index in range(len(span)) if index not in down), *down]
        message = "the optimizer moves below the sharding"
        return Move(view, block, first, [first + i for i in order], message, frozenset(first + i for i in down))
    return f"the sharding cannot move up ({up}), and the optimizer cannot move down ({down})"


def _model_names(view: FileView, span: Sequence[ast.stmt], groups: Sequence[Group]) -> set[str]:
    """Paths that mean a model of the groups and nothing else."""
    members = {value for group in groups for value in group.raw} | {w.value for group in groups for w in group.wraps}
    found: set[str] = set()
    for statement in span:
        for node in ast.walk(statement):
            path = dotted_path(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
            if path is None:
                continue
            values = view.values(node)
            if values and all(value in members for value in values):
                found.add(path)
    return found


def _blocked_up(
    migration: Migration, view: FileView, span: Sequence[ast.stmt], effects: Sequence[Effects], moved: Sequence[int],
    names: set[str], groups: Sequence[Group],
) -> str | None:  # fmt: skip
    for index in moved:
        for other in range(index):
            if other in moved:
                continue
            statement = span[other]
            if leaves_early([statement]):
                return f"line {statement.lineno} may leave before it"
            if calls_named(migration, view, [statement], _SETS_UP):
                return f"line {statement.lineno} sets up what sharding needs"
            if not all(leaves_model_alone(migration, view, [statement], group) for group in groups):
                return f"line {statement.lineno} uses the model as it is before sharding"
            shared = _beside(effects[index].touched_by(effects[other]), names)
            shared |= {path for path in effects[other].writes & names if path in effects[index].reads}
            if shared:
                return f"line {statement.lineno} shares {', '.join(sorted(shared)[:3])} with it"
    return None


def _down(
    migration: Migration, view: FileView, span: Sequence[ast.stmt], effects: Sequence[Effects], moved: Sequence[int],
    names: set[str], groups: Sequence[Group],
) -> list[int] | str:  # fmt: skip
    """The optimizer, and all that depends on it: what goes behind the last wrap; or what forbids it."""
    down = [0]
    for index in range(1, len(span)):
        shared: set[str] = set()
        for other in down:
            shared |= _writes_used(effects[other], effects[index])
        shared = _beside(shared, names)
        if shared:
            if index in moved:
                return f"the sharding uses {', '.join(sorted(shared)[:3])}"
            down.append(index)
    return _blocked_down(migration, view, span, effects, down, names, groups) or down


def _blocked_down(
    migration: Migration, view: FileView, span: Sequence[ast.stmt], effects: Sequence[Effects], down: Sequence[int],
    names: set[str], groups: Sequence[Group],
) -> str | None:  # fmt: skip
    for index in down:
        if leaves_early([span[index]]):
            return f"line {span[index].lineno} may leave"
        if not all(leaves_model_alone(migration, view, [span[index]], group) for group in groups):
            return f"line {span[index].lineno} uses the model as it is before sharding"
        for other in range(index + 1, len(span)):
            if other not in down:
                if effects[index].writes & names & effects[other].reads:
                    return f"line {span[index].lineno} makes the model that line {span[other].lineno} uses"
                shared = _beside(effects[index].touched_by(effects[other]), names)
                if shared:
                    listed = ", ".join(sorted(shared)[:3])
                    return f"line {span[other].lineno} shares {listed} with line {span[index].lineno}"
    return None


def _with_paragraphs(
    migration: Migration, view: FileView, span: Sequence[ast.stmt], effects: Sequence[Effects], down: list[int],
    names: set[str], groups: Sequence[Group],
) -> list[int]:  # fmt: skip
    """What goes down, and the settings that stand in one paragraph with it, where they may come along."""
    block, first = view.block_of(span[0])
    found = down
    for index in down:
        together = [place - first for place in paragraph_of(view, block, first + index)]
        more = [place for place in together if place not in found]
        if not more or min(more) < 0 or max(more) >= len(span) or not all(is_a_setting(view, span[p]) for p in more):
            continue
        wider = sorted([*found, *more])
        if _blocked_down(migration, view, span, effects, wider, names, groups) is None:
            found = wider
    return found


def _beside(paths: set[str], names: set[str]) -> set[str]:
    """Paths that are neither a model nor something of one."""
    return {path for path in paths if not any(path == name or path.startswith(name + ".") for name in names)}


def _writes_used(first: Effects, second: Effects) -> set[str]:
    return Effects(writes=first.writes).touched_by(second)


def _start(view: FileView, statement: ast.stmt) -> int:
    """Offset of the line a statement starts on, or of the first of the comment lines right above it."""
    start = view.line_start(statement)
    line, _ = view.source.position(start)
    while line > 1 and view.source.lines[line - 2].lstrip().startswith("#"):
        line -= 1
    return view.source.line_starts[line - 1]


def _end(view: FileView, statement: ast.stmt) -> int:
    """Offset past the text of a statement's last line, its newline left out."""
    end = view.line_end(statement)
    while end and view.source.text[end - 1] in "\r\n":
        end -= 1
    return end
