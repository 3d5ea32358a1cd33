"""Where helpers go: into the file that alone uses a short one, else into one module that all who use it can import."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from ..queries.program import Program
from ..text.generated import HELPER_MODULE, MARK, is_generated, is_helper_module
from .helper_source import BESIDE_CODE, beside_code, defined_names, definitions, features_of, import_lines, with_needs
from .import_styles import ImportStyle, ImportStyles

_PRESENT = "# Made for code with: "
_LONGEST_INSIDE = 45
"""A helper of more lines than this would bury the code of the file that uses it."""


@dataclass
class Placement:
    """For each file: the helpers that are defined in it, and the module that it imports the others from."""

    inside: dict[str, list[str]] = field(default_factory=dict)
    imported_from: dict[str, str] = field(default_factory=dict)
    """Module name as the file spells it."""
    modules: dict[str, str] = field(default_factory=dict)
    """Path and text of modules, new ones and those that hold more than before."""


def place_helpers(
    program: Program, used: Mapping[str, Collection[str]], folder: str = "", absent: frozenset[str] = frozenset()
) -> Placement:
    """Places for the helpers that files use, given by path.

    ``folder`` is where the user wants their module; files that cannot import it from there get another one. What helpers
    need for features that are ``absent`` from the repository is left out.
    """
    placement = Placement()
    used = {path: sorted(names) for path, names in used.items() if names}
    modules = {PurePosixPath(path).parent: program.text(path) for path in program.paths if is_helper_module(path)}
    there = {parent: text for parent, text in modules.items() if is_generated(text)}
    taken = modules.keys() - there.keys()
    preferred = ({PurePosixPath(folder)} if folder else set(there)) - taken
    for path in [path for path in used if _is_installed_alone(program, path)]:
        if _beside(program, path, used[path], absent) is not None:
            placement.inside[path] = used.pop(path)
    if len(used) == 1 and not preferred:
        ((path, names),) = used.items()
        length = _beside(program, path, names, absent)
        if length is not None and length <= _LONGEST_INSIDE:
            placement.inside[path] = names
            return placement
    if used:
        _share(program, used, there, preferred, taken, absent, placement)
    return placement


def _beside(program: Program, path: str, names: Collection[str], absent: frozenset[str]) -> int | None:
    """How many lines helpers and their needs have inside of a file; None where it has their names already."""
    beside = with_needs(names, absent - BESIDE_CODE)
    is_free = program.file(program.index(path)).names.isdisjoint(definition.name for definition in beside)
    return len(beside_code(beside).splitlines()) if is_free else None


def _is_installed_alone(program: Program, path: str) -> bool:
    """Whether a module is installed without what lies beside it: by ``py_modules`` of the ``setup.py`` there."""
    pure = PurePosixPath(path)
    setup = program.all_texts.get(str(pure.with_name("setup.py")), "")
    listed = re.search(r"\bpy_modules\s*=\s*\[([^\]]*)\]", setup)
    return listed is not None and pure.stem in re.findall(r"\w+", listed[1])


def _share(
    program: Program,
    used: dict[str, list[str]],
    there: Mapping[PurePosixPath, str],
    preferred: Set[PurePosixPath],
    taken: Set[PurePosixPath],
    absent: frozenset[str],
    placement: Placement,
) -> None:
    """One module for as many files as can import it; those left over get one in their own way."""
    imports = ImportStyles(program)
    styles = {path: imports.of(path) for path in used}
    left = dict(used)
    for link, path in program.links.items():
        style = styles.get(path)
        if style is not None and style.spelling(style.folder) == HELPER_MODULE:  # the link's own folder is on the path then
            folder = PurePosixPath(link).parent
            styles[link], left[link] = replace(style, folder=folder, root=folder), used[path]
    asked: dict[PurePosixPath, frozenset[str]] = {}
    while left:
        folder, served = _best_folder({path: styles[path] for path in left}, preferred, taken)
        if not served:
            placement.inside.update(left)
            return
        wanted = asked[folder] = asked.get(folder, frozenset()).union(*(left[path] for path in served))
        old = there.get(folder, "")
        held, left_out = held_names(old), features_left_out(old)
        if not (wanted <= held and left_out <= absent):
            # Files that are not looked at now may use what is there: it keeps what it has.
            less = absent & left_out if held else absent
            placement.modules[str(folder / f"{HELPER_MODULE}.py")] = module_text(wanted | held, less)
        is_root = _is_on_path(program, folder) and any(styles[path].spelling(folder) == HELPER_MODULE for path in served)
        for path in served:
            spelled = styles[path].spelling(folder)
            assert spelled is not None
            ends_below = is_root and spelled.startswith("..") and not _climbs_as_far(program, path, spelled)
            placement.imported_from[path] = HELPER_MODULE if ends_below else spelled
            del left[path]


def _is_on_path(program: Program, folder: PurePosixPath) -> bool:
    """Whether a script is run in a folder, which is no package then whatever lies in it: relative imports end below it."""
    return any(file.is_run and PurePosixPath(file.path).parent == folder for file in program.facts)


def _climbs_as_far(program: Program, path: str, spelled: str) -> bool:
    """Whether a file has relative imports from as far up as a new one would be."""
    facts = program.facts[program.index(path)]
    modules = {item.module for item in facts.imports} | set(facts.stars)
    return any(_level(module) >= _level(spelled) for module in modules)


def _level(module: str) -> int:
    return len(module) - len(module.lstrip("."))


def _best_folder(
    styles: Mapping[str, ImportStyle], preferred: Set[PurePosixPath], taken: Set[PurePosixPath]
) -> tuple[PurePosixPath, list[str]]:
    """The folder from which most files can import a module, a preferred one if any can, and those files.

    An import of a kind that was not there counts only where no folder can do without: a library that imports from its tests
    or examples breaks where it is installed. Of equal folders it is the one from which most files import already, or which
    lies above them, for that is imported before them; then the one with most of them in it, then the lowest. In ``taken``
    ones something else bears the module's name.
    """
    folders = {folder for style in styles.values() for folder in (style.folder, *style.folder.parents)}
    folders |= {folder for style in styles.values() for folder in style.reachable}
    ranked = []
    for folder in (folders | preferred) - taken:
        able = [path for path, style in styles.items() if style.spelling(folder) is not None]
        served = [path for path in able if not styles[path].is_strange(folder)]
        near = [styles[path] for path in served if styles[path].folder.is_relative_to(folder)]
        outside = [styles[path] for path in served if not styles[path].folder.is_relative_to(folder)]
        depends = sum(any(other.is_relative_to(folder) for other in style.imported) for style in outside)
        inside = sum(style.folder == folder for style in near)
        order = bool(able) and folder in preferred, len(served), depends + len(near), inside, len(folder.parts), str(folder)
        served = served or able
        ranked.append((order, folder, sorted(served)))
    return max(ranked, default=((), PurePosixPath(), []), key=lambda entry: entry[0])[1:]


def features_left_out(text: str) -> frozenset[str]:
    """What a generated module does without, by what it says of itself."""
    said = next((line for line in text.splitlines()[:5] if line.startswith(_PRESENT)), _PRESENT)
    return features_of(held_names(text)) - frozenset(said.removeprefix(_PRESENT).split(", "))


def held_names(text: str) -> frozenset[str]:
    """The helpers that a generated module holds; none in one that is no Python any more."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return frozenset()
    return frozenset(name for node in body for name in defined_names(node)) & definitions().keys()


def is_current(text: str) -> bool:
    """Whether a generated module is what this version of the tool would write."""
    return module_text(held_names(text), features_left_out(text)) == text


def is_untouched(text: str) -> bool:
    """Whether nobody has changed a generated module since it was written, by the hash that it bears."""
    borne = re.search(r"\(hash (\w+)\)", "\n".join(text.splitlines()[:5]))
    return borne is not None and borne[1] == _digest(text.partition("\n\n\n")[2])


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()[:12]


def module_text(names: Collection[str], absent: frozenset[str] = frozenset()) -> str:
    """The text of a helper module: what it is, its imports, its definitions without what absent features need."""
    definitions = with_needs(names, absent)
    code = "\n\n\n".join(definition.text for definition in definitions) + "\n"
    lines = ["from __future__ import annotations", "", *_by_kind(import_lines(definitions))]
    head = [
        "# SPDX-License-Identifier: MIT",
        f"# {MARK} (hash {_digest(code)}).",
        f"{_PRESENT}{', '.join(sorted(features_of(names) - absent)) or 'nothing special'}",
        '"""What FSDP2 and Distributed Checkpoint have no single call for; every function leaves other objects alone."""',
        "",
    ]
    return "\n".join([*head, *lines]) + "\n\n\n" + code


def _by_kind(lines: list[str]) -> list[str]:
    """Import lines with a blank line between the standard library and torch."""
    lines = [line for line in lines if "__future__" not in line]
    standard = [line for line in lines if not line.split()[1].startswith("torch")]
    torch = [line for line in lines if line.split()[1].startswith("torch")]
    return [*standard, "", *torch] if standard and torch else [*standard, *torch]
