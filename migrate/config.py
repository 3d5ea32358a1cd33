"""`[tool.to-fsdp2]` of the target's pyproject.toml, and the torch version its requirements ask for."""

from __future__ import annotations

import difflib
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..equivalence.small_files import read_small_text
from ..transforms.findings import UserError
from .rule_names import rules_called

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

OLDEST_TORCH = (2, 6)
"""The first release whose FSDP2 and checkpoint functions generated code can rely on."""
NEWEST_TORCH = (2, 13)
"""The newest release that the tool knows: generated code has been run on it."""

CHOICES = {
    "ddp": ("shard", "replicate", "keep"),
    "checkpoint": ("keep", "dcp"),
    "level": ("safe", "review", "stop"),
}
_NAME = "to-fsdp2"
_LISTS = ("select", "ignore", "exclude")
_KEYS = (*CHOICES, *_LISTS, "target-torch", "helpers")

_TORCH = re.compile(r"^\s*torch(?![\w.-])\s*(?:\[[^\]]*\])?\s*(?P<bounds>[^;#]*)", re.IGNORECASE)
_LOWER_BOUND = re.compile(r"(?:>=|==|~=|>)\s*(\d+)\.(\d+)")
_UPPER_BOUND = re.compile(r"<\s*(\d+)\.(\d+)")


@dataclass(frozen=True)
class Configuration:
    """Settings that the target repository states; None where it does not."""

    target_torch: tuple[int, int] | None = None
    ddp: str | None = None
    checkpoint: str | None = None
    level: str | None = None
    select: list[str] = field(default_factory=list)
    ignore: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    helpers: str | None = None


def find_pyproject(path: Path) -> Path | None:
    """The nearest pyproject.toml from `path` upwards, not beyond the root of a git repository."""
    for folder in (path, *path.parents):
        if (folder / "pyproject.toml").is_file():
            return folder / "pyproject.toml"
        if (folder / ".git").exists():
            return None
    return None


def read_configuration(file: Path) -> Configuration:
    """The section `[tool.to-fsdp2]`; raises UserError with file and line for what it does not know."""
    document, text = _parse(file)
    _refuse_other_tables(file, document, text)
    section = document.get("tool", {}).get("to-fsdp2", {})
    if not isinstance(section, dict):
        raise UserError(f"{file}: tool.to-fsdp2 is not a table")
    for key, value in section.items():
        problem = _problem(key, value)
        if problem:
            raise UserError(f"{file}:{_line_of(text, key)}: {problem}")
    values = {key.replace("-", "_"): value for key, value in section.items()}
    if "target_torch" in values:
        values["target_torch"] = parse_torch_version(values["target_torch"])
    return Configuration(**values)


def _refuse_other_tables(file: Path, document: dict[str, Any], text: str) -> None:
    """Settings under a name that is nearly ours would be passed over without a word."""
    tools = document.get("tool", {})
    tables = [(name, name) for name, value in document.items() if isinstance(value, dict)]
    if isinstance(tools, dict):
        tables += [(name, f"tool.{name}") for name, value in tools.items() if isinstance(value, dict)]
    for name, path in tables:
        is_close = bool(difflib.get_close_matches(re.sub(r"[\s_.]", "-", name.lower()), [_NAME], 1, 0.8))
        if path != f"tool.{_NAME}" and is_close:
            line = _line_of_table(text, path)
            raise UserError(f"{file}:{line}: the table [{path}] is not read; the settings belong into [tool.{_NAME}]")


def _line_of_table(text: str, path: str) -> int:
    """The line of a table's first header, 1 where it is written in some other way."""
    parts = r"\s*\.\s*".join(rf"[\"']?{re.escape(part)}[\"']?" for part in path.split(".", 1))
    lines = (n for n, line in enumerate(text.splitlines(), start=1) if re.match(rf"\s*\[\s*{parts}\s*[\].]", line))
    return next(lines, 1)


def parse_torch_version(text: str) -> tuple[int, int]:
    """`2.6` → (2, 6); raises ValueError for what is no version or older than generated code can run on."""
    match = re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)?", text.strip())
    if match is None:
        raise ValueError(f"not a torch version: {text!r} (write it like 2.6)")
    version = int(match.group(1)), int(match.group(2))
    if version < OLDEST_TORCH:
        raise ValueError(f"torch {text} is too old: generated code needs at least {format_version(OLDEST_TORCH)}")
    return version


def format_version(version: tuple[int, int]) -> str:
    """(2, 6) → `2.6`."""
    return f"{version[0]}.{version[1]}"


def required_torch(folder: Path) -> tuple[int, int] | None:
    """The oldest torch that the requirements of a project ask for, None where they do not say.

    Looked for in pyproject.toml, then in requirements*.txt. A project that only excludes newer releases asks for the one
    before them.
    """
    requirements = _pyproject_requirements(folder / "pyproject.toml")
    if not any(_TORCH.match(line) for line in requirements):
        files = sorted(folder.glob("requirements*.txt"))
        requirements = [line for file in files for line in (read_small_text(file) or "").splitlines()]
    bounds = [match["bounds"] for line in requirements if (match := _TORCH.match(line))]
    oldest = [_version(found) for text in bounds if (found := _LOWER_BOUND.search(text))]
    if not oldest:
        excluded = [_version(found) for text in bounds if (found := _UPPER_BOUND.search(text))]
        oldest = [(major, minor - 1) for major, minor in excluded if minor and (major, minor) <= NEWEST_TORCH]
    return min(oldest, default=None)


def console_scripts(file: Path) -> frozenset[str]:
    """The modules whose functions a pyproject.toml installs as commands."""
    scripts = _parse(file)[0].get("project", {}).get("scripts", {})
    return frozenset(target.partition(":")[0] for target in scripts.values() if isinstance(target, str))


def _version(match: re.Match[str]) -> tuple[int, int]:
    return int(match.group(1)), int(match.group(2))


def is_package(root: Path, pyproject: Path | None) -> bool:
    """Whether the project says how it is installed, so that code from outside may import it."""
    if any((root / name).is_file() for name in ("setup.py", "setup.cfg")):
        return True
    return pyproject is not None and not {"project", "build-system"}.isdisjoint(_parse(pyproject)[0])


def _pyproject_requirements(file: Path) -> list[str]:
    if not file.is_file():
        return []
    project = _parse(file)[0].get("project", {})
    extras = project.get("optional-dependencies", {}).values()
    return [*project.get("dependencies", []), *(line for extra in extras for line in extra)]


def _parse(file: Path) -> tuple[dict[str, Any], str]:
    try:
        text = file.read_text(encoding="utf-8")
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{file}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read: {error}") from error


def _problem(key: str, value: object) -> str | None:
    """What is wrong with a setting, in words; None when it is right."""
    if key not in _KEYS:
        return f"unknown setting {key!r}; known are {', '.join(sorted(_KEYS))}"
    if key in CHOICES and value not in CHOICES[key]:
        return f"{key} is {value!r}, but must be one of {', '.join(CHOICES[key])}"
    if key in _LISTS and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        return f"{key} must be a list of strings"
    if key in ("select", "ignore"):
        try:
            for item in value:  # type: ignore[attr-defined]
                rules_called(item)
        except UserError as error:
            return f"{key}: {error}"
    if key == "helpers" and not isinstance(value, str):
        return "helpers must be a string, the path of a folder"
    if key == "target-torch":
        if not isinstance(value, str):
            return "target-torch must be a string like '2.6'"
        try:
            parse_torch_version(value)
        except ValueError as error:
            return str(error)
    return None


def _line_of(text: str, key: str) -> int:
    """The line of a key in the section; that of the section where the key is spelled in some other way."""
    section = 1
    inside = False
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("["):
            inside = re.fullmatch(r"\[\s*tool\s*\.\s*[\"']?to-fsdp2[\"']?\s*\].*", stripped) is not None
            section = number if inside else section
        elif inside and re.match(rf"[\"']?{re.escape(key)}[\"']?\s*=", stripped):
            return number
    return section
