"""From the changes that rules ask for to the new texts of files, with their imports and helpers."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

import libcst as cst

from .helper_features import absent_features
from .migration import Migration
from .queries.file import File
from .rewrites.changes import Change
from .rewrites.helper_place import place_helpers
from .rewrites.helper_source import BESIDE_CODE, Definition, beside_code, with_needs
from .rewrites.imports import Wanted, mend_imports, read_names, wanted_symbols, with_definitions
from .rewrites.one_pass import apply_changes
from .rewrites.printed import Printed
from .text.splice import splice


@dataclass
class Written:
    """New texts by path."""

    texts: dict[str, str] = field(default_factory=dict)
    """Of files that change."""
    new_files: dict[str, str] = field(default_factory=dict)
    """Of helper modules; one that is there already is replaced by what it holds and what is wanted now."""
    failures: dict[str, str] = field(default_factory=dict)
    """Files whose rewrite failed, and why; nothing that was to be written with them is right without them."""


def write(migration: Migration, changes: Mapping[str, Sequence[Change]]) -> Written:
    """The new texts of all files that change, given the changes of each."""
    written = Written()
    trees: dict[str, tuple[Printed, cst.Module]] = {}
    read: dict[str, set[str]] = {}
    for path, own in sorted(changes.items()):
        source = migration.program.file(path).source
        try:
            printed, new = apply_changes(source, own)
            offered = migration.names(migration.program.file(path)).offered
            read[path] = read_names(ast.walk(ast.parse(printed.code(new)))) | offered
            printed.forget_spans()
            trees[path] = printed, new
        except Exception as error:  # one file never ends the run
            written.failures[path] = described(error)
    used = {}
    for path in trees:
        table = migration.names(migration.program.file(path)).helpers
        used[path] = {helper for name, helper in table.items() if name in read[path]}
    names = frozenset[str]().union(*used.values())
    absent = absent_features(migration, names) if names else frozenset()
    placement = place_helpers(migration.program, used, migration.options.helpers, absent)
    for path, (printed, new) in trees.items():
        file = migration.program.file(path)
        try:
            inside = with_needs(placement.inside.get(path, ()), absent - BESIDE_CODE)
            mended = _with_imports(migration, file, new, read[path], inside, placement.imported_from.get(path), printed)
            text = splice(file.source.text, printed.text, printed.code(mended))
            ast.parse(text)
        except Exception as error:
            written.failures[path] = described(error)
            continue
        if text != file.source.text:
            written.texts[path] = text
    written.new_files = placement.modules if written.texts else {}
    return written


def described(error: Exception) -> str:
    """An error in one line, with the place that it comes from."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message} ({PurePath(frame.filename).name}:{frame.lineno})"


def _with_imports(
    migration: Migration, file: File, new: cst.Module, read: set[str], inside: Sequence[Definition], module: str | None,
    printed: Printed,
) -> cst.Module:  # fmt: skip
    names = migration.names(file)
    if inside:
        definitions = beside_code(inside)
        new = with_definitions(new, definitions)
        read = read | read_names(ast.walk(ast.parse(definitions)))
    wanted = wanted_symbols(names.symbols)
    if module is not None:
        wanted += [Wanted(module, helper, name) for name, helper in names.helpers.items()]
    wanted += [_parsed(line) for line in sorted({line for helper in inside for line in helper.imports})]
    present = file.module_names & file.imported_names
    wanted = [want for want in dict.fromkeys(wanted) if want.name not in present]
    kept = {name for name in file.imported_names if migration.paths_importing(file.path, name)}
    if file.path.endswith("__init__.py"):
        kept |= file.imported_names
    without = {statement for statement in new.body if "import" not in printed.of(new, statement)}
    return mend_imports(read_names(ast.walk(file.tree)), read, new, wanted, kept, without)


def _parsed(line: str) -> Wanted:
    words = line.split()
    if words[0] == "import":
        return Wanted("", words[1], words[-1])
    return Wanted(words[1], words[3], words[-1])
