"""Whether code imports or finds, by names at run time, what no statement shows. What it has from elsewhere does not count.

``import_module(f"torchvision.models.{name}")`` gives nothing of a repository that has no ``torchvision``.
"""

from __future__ import annotations

import re

from .program import Program

_IMPORTED = (
    r"\b(import_module|__import__|spec_from_file_location|load_source|runpy|pydoc|walk_packages|iter_modules|hydra\.utils)\b"
    r"|\binstantiate\("
)
_FOUND = _IMPORTED + r"|\bglobals\(\)\s*(\[[^]]*\](?!\s*=[^=])|\.get\b)|\b(__subclasses__|__init_subclass__|hydra)\b"
_FROM_A_PACKAGE = re.compile(
    r"""\b(?:import_module|__import__)\s*\(\s*f?["'](?P<module>\w+)\."""
    r"""|\b(?:walk_packages|iter_modules)\s*\(\s*(?P<walked>\w+)[\w.]*\.__path__\s*\)"""
    r"""|^[ \t]*(?:from\s+(?:importlib|pkgutil)\s+import)\b(?![^\n]*\bas\b)[^\n(]*$""",
    re.MULTILINE,
)


def imports_by_name(program: Program, text: str) -> bool:
    """Whether a text imports what no import statement shows, and what the repository may have."""
    return re.search(_IMPORTED, text) is not None and re.search(_IMPORTED, of_repository(program, text)) is not None


def finds_by_name(program: Program, text: str) -> bool:
    """Whether a text imports, or finds, what no import statement and no name shows."""
    return re.search(_FOUND, text) is not None and re.search(_FOUND, of_repository(program, text)) is not None


def of_repository(program: Program, text: str) -> str:
    """A text without the imports by name of what the repository does not have."""
    own = program.once(_own_names)

    def kept(match: re.Match[str]) -> str:
        root = match["module"] or match["walked"]
        return match[0] if root in own else ""

    return _FROM_A_PACKAGE.sub(kept, text)


def _own_names(program: Program) -> frozenset[str]:
    """The names of all folders and files, each of which imports may begin with."""
    return frozenset(part.partition(".")[0] for path in program.paths for part in path.split("/"))
