"""Where a new import stands among sorted ones, as isort would have it."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
from libcst.helpers import get_full_name_for_node


def place_in_order(module: cst.Module, name: str) -> int | None:
    """The index for ``from name import …`` in the block of sorted imports with others of its package; None without one."""
    for block in _blocks(module.body):
        names = {index: _module_of(module.body[index]) for index in block}
        found = {index: each for index, each in names.items() if each is not None}
        kept = [each for each in found.values() if _package(each) == _package(name)]
        if not kept or list(found.values()) != sorted(found.values(), key=_key) or len(found) < 2:
            continue
        behind = [index for index, each in found.items() if _key(each) < _key(name)]
        return max(behind) + 1 if behind else min(found)
    return None


def put_in_order(module: cst.Module, name: str, line: cst.SimpleStatementLine) -> cst.Module | None:
    """The module with ``from name import …``, which ``line`` is, at its place; what heads a block heads it still."""
    place = place_in_order(module, name)
    if place is None:
        return None
    body = list(module.body)
    following = body[place] if place < len(body) else None
    if isinstance(following, cst.SimpleStatementLine) and isinstance(following.body[0], (cst.Import, cst.ImportFrom)):
        is_first = place == 0 or bool(following.leading_lines)
        if is_first and _key(_module_of(following) or "") > _key(name):
            line = line.with_changes(leading_lines=following.leading_lines)
            body[place] = following.with_changes(leading_lines=[])
    return module.with_changes(body=[*body[:place], line, *body[place:]])


def _blocks(body: Sequence[cst.BaseStatement]) -> list[list[int]]:
    """The indices of import statements that follow each other without a blank line or a comment between them."""
    blocks: list[list[int]] = []
    for index, statement in enumerate(body):
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            break
        if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], (cst.Import, cst.ImportFrom)):
            continue
        if blocks and blocks[-1][-1] == index - 1 and not statement.leading_lines:
            blocks[-1].append(index)
        else:
            blocks.append([index])
    return blocks


def _module_of(statement: cst.BaseStatement) -> str | None:
    """What ``from … import`` names, with its dots; None for ``import …``."""
    assert isinstance(statement, cst.SimpleStatementLine)
    line = statement.body[0]
    if not isinstance(line, cst.ImportFrom):
        return None
    return "." * len(line.relative) + (get_full_name_for_node(line.module) or "" if line.module is not None else "")


def _package(name: str) -> str:
    return "." if name.startswith(".") else name.partition(".")[0]


def _key(name: str) -> tuple[int, str]:
    """Relative imports from further up come first."""
    dots = len(name) - len(name.lstrip("."))
    return (-dots, name[dots:].lower())
