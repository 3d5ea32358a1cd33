"""Old names that a module gave on (``ShardedGradScaler = ShardedGradScaler``) and that nothing reads any more."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from ..judge import Judgement
from ..migration import Migration
from ..text.generated import removed
from ..text.imports import used_names
from ..text.patches import Patch, flatten
from ..text.rewrite import parse_edited
from ..text.spelling import all_imports
from ..view import FileView

_WHY = "nothing reads the old name any more"


def unread_names(
    migration: Migration, judgements: Sequence[Judgement], patches: Mapping[str, Sequence[Patch]]
) -> list[Patch]:
    """Removes assignments at module level that keep an old symbol's name for what took its place."""
    found: list[Patch] = []
    for judgement in judgements:
        site = judgement.site
        if not judgement.applied or site.role != "reference" or not judgement.outcome.patches:
            continue
        view, statement = site.view, site.view.parents[site.node]
        if not isinstance(statement, ast.Assign) or view.parents[statement] is not view.tree:
            continue
        if [target.id for target in statement.targets if isinstance(target, ast.Name)] != [site.member]:
            continue
        if len(statement.targets) == 1 and not _is_read(migration, view, site.member, patches):
            found.append(_taken_out(view, statement))
    return found


def _taken_out(view: FileView, statement: ast.stmt) -> Patch:
    """Without the statement, and at the end of a file without the blank lines in front of it."""
    text = view.source.text
    start, end = view.source.span(statement)
    if text[end:].strip() or not text[:start].endswith("\n"):
        return removed(view, statement, _WHY)
    kept = text[:start].rstrip()
    newline = view.source.newline(len(kept)) if kept else ""
    return Patch(view.path, len(kept) + len(newline), len(text), (), _WHY)


def _is_read(migration: Migration, view: FileView, name: str, patches: Mapping[str, Sequence[Patch]]) -> bool:
    """Whether the rewritten repository reads a name of a module: in it, off it, or through an import of it."""
    program = migration.program
    if name in _used(view, patches):
        return True
    for index, file in enumerate(program.files):
        if any(program.flow.modules.find(index, star) == view.index for star in file.stars):
            return True
        taken = [item for item in file.imports if program.flow.modules.find(index, item.module) == view.index]
        if any(item.name is None for item in taken) or _imports_whole(migration, index, view):
            return True
        if any(item.name == name for item in taken) and _goes_on(migration, program.view(file.path), name, patches):
            return True
    return False


def _imports_whole(migration: Migration, index: int, view: FileView) -> bool:
    """Whether a file imports the module itself from its package (``from package import module``)."""
    find = migration.program.flow.modules.find
    items = migration.program.files[index].imports
    return any(item.name is not None and find(index, _joined(item.module, item.name)) == view.index for item in items)


def _joined(module: str, name: str) -> str:
    return f"{module}.{name}" if module.strip(".") else f"{module}{name}"


def _goes_on(migration: Migration, importer: FileView, name: str, patches: Mapping[str, Sequence[Patch]]) -> bool:
    """Whether an importer of a name still has it once it is rewritten: it uses it, gives it on, or never used it."""
    program = migration.program
    for other, file in enumerate(program.files):
        if any(i.name == name and program.flow.modules.find(other, i.module) == importer.index for i in file.imports):
            return True
    aliases = [alias for statement in all_imports(importer) for alias in statement.names if alias.name == name]
    bound = {alias.asname or name for alias in aliases}
    return not bound <= used_names(importer.tree) or bool(bound & _used(importer, patches))


def _used(view: FileView, patches: Mapping[str, Sequence[Patch]]) -> set[str]:
    return used_names(parse_edited(view, flatten(view.source, patches.get(view.path, ()))))
