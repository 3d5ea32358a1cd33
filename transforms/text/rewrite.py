"""The edits of every file, imports included, checked by parsing the result."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from ..migration import Migration
from ..rule import Need
from ..view import FileView
from .edits import Edit, apply_edits
from .imports import mend_imports, used_names
from .patches import Patch, flatten
from .spelling import all_imports


class RewriteError(Exception):
    """The new text of a file would not be Python: a defect of a rule, never written to disk."""

    def __init__(self, file: str, error: SyntaxError) -> None:
        super().__init__(f"the rewritten file would not parse: {error.msg} (line {error.lineno} of {file})")
        self.file = file


def rewrite(
    migration: Migration, patches: Mapping[str, Sequence[Patch]], needs: Sequence[Need]
) -> dict[str, list[Edit]]:
    """Edits of all files that any patch changes, with the imports that follow from them.

    Raises PatchConflict where two patches want the same text.
    """
    edits = {path: flatten(migration.program.view(path).source, wanted) for path, wanted in sorted(patches.items())}
    exported = _exported(migration, edits)
    complete: dict[str, list[Edit]] = {}
    for path in sorted({*migration.sites, *edits}):
        view = migration.program.view(path)
        if path not in edits and view.index not in _taken_by_file(migration):
            continue
        removable = old_import_names(migration, path) - exported.get(path, set())
        if removable:
            removable &= _had_use(migration, view)
        if path in edits:
            removable |= _own_uses(migration, view)
        if path in edits or removable:
            local_needs = [need for need in needs if need.view is view]
            complete[path] = _mended(view, edits.get(path, []), local_needs, removable)
    return {path: wanted for path, wanted in complete.items() if wanted}


def _mended(view: FileView, edits: list[Edit], needs: list[Need], removable: set[str]) -> list[Edit]:
    complete = mend_imports(view, parse_edited(view, edits), edits, needs, removable)
    parse_edited(view, complete)
    return complete


def parse_edited(view: FileView, edits: Sequence[Edit]) -> ast.Module:
    """The tree of a file with edits made; raises RewriteError if it is not Python."""
    if not edits:
        return view.tree
    try:
        return ast.parse(apply_edits(view.source, edits))
    except SyntaxError as error:
        raise RewriteError(view.path, error) from error


def old_import_names(migration: Migration, path: str) -> set[str]:
    """Names that a file's imports of old symbols bind, and those that only checkpoint code of old needs."""
    return {
        site.node.asname or site.node.name.partition(".")[0]
        for site in migration.sites.get(path, ())
        if site.role == "import" and isinstance(site.node, ast.alias) and site.node.name != "*"
    }


def _own_uses(migration: Migration, view: FileView) -> set[str]:
    """Names of other imports that the file itself used before (``functools`` for a policy) and no other takes from it."""
    bound = {alias.asname or alias.name.partition(".")[0] for s in all_imports(view) for alias in s.names}
    return (bound & used_names(view.tree)) - _taken(migration, view)


def _had_use(migration: Migration, view: FileView) -> set[str]:
    """Names that the file itself or another one used before: an import that never served anything is left alone."""
    return used_names(view.tree) | _taken(migration, view)


def _taken(migration: Migration, view: FileView) -> set[str]:
    """Names that other files import from this one."""
    return _taken_by_file(migration).get(view.index, set())


def _taken_by_file(migration: Migration) -> dict[int, set[str]]:
    """Names that other files import from each one, by its index."""

    def find() -> dict[int, set[str]]:
        program = migration.program
        found: dict[int, set[str]] = {}
        for index, file in enumerate(program.files):
            for item in file.imports:
                target = program.flow.modules.find(index, item.module) if item.name is not None else None
                if target is not None and item.name is not None:
                    found.setdefault(target, set()).add(item.name)
        return found

    return migration.once("names taken from files", None, find)


def _exported(migration: Migration, edits: Mapping[str, list[Edit]]) -> dict[str, set[str]]:
    """Per file, the old names that another file still imports from it once everything is rewritten."""
    program = migration.program
    imported: list[tuple[int, str, int, str]] = []
    for index, file in enumerate(program.files):
        for item in file.imports:
            target = program.flow.modules.find(index, item.module) if item.name is not None else None
            if target is not None and target != index and item.name is not None:
                imported.append((index, item.name, target, program.files[target].path))
    still_used: dict[int, set[str]] = {}

    def keeps(index: int, name: str) -> bool:
        if index not in still_used:
            path = program.files[index].path
            view = program.view(path)
            still_used[index] = used_names(parse_edited(view, edits.get(path, [])))
        aliases = [a for s in all_imports(program.view(program.files[index].path)) for a in s.names if a.name == name]
        return any((alias.asname or name) in still_used[index] for alias in aliases)

    exported: dict[str, set[str]] = {}
    old = {path: old_import_names(migration, path) for path in migration.sites}
    changed = True
    while changed:
        changed = False
        for index, name, _, path in imported:
            if name not in old.get(path, ()) or name in exported.get(path, set()):
                continue
            importer = program.files[index].path
            passed_on = name in exported.get(importer, set()) or name not in old.get(importer, set())
            if passed_on or keeps(index, name):
                exported.setdefault(path, set()).add(name)
                changed = True
    return exported
