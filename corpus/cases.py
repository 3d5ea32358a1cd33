"""The corpus: training programs before and after the migration, each with a `case.toml`.

A case is a folder `cases/<name>/` with the program as people write it (`before/`), the same program as
an expert migrates it (`after/`), and what both have to agree on when they run. This module only reads
the folder; it runs nothing and needs no torch.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Launcher = Literal["torchrun", "python"]

CASES_FOLDER = Path(__file__).parent / "cases"
DEMO_FOLDER = Path(__file__).parent / "demo"


@dataclass(frozen=True)
class Run:
    """One way to run a case; the same for both of its sides.

    `args` holds one argument list per invocation, executed in order in the same working directory, so
    that a later one can resume what an earlier one saved. `parameters` names the `torch.save`d files
    with full parameters that are compared tensor by tensor, `files` what merely has to be written.
    With `cross_resume` the later invocations of `after` also continue from what `before` saved.
    """

    name: str
    launcher: Launcher
    nproc: int
    script: str
    args: tuple[tuple[str, ...], ...]
    parameters: tuple[str, ...]
    files: tuple[str, ...]
    cross_resume: bool


@dataclass(frozen=True)
class Comparison:
    """How close the two sides have to be: largest absolute difference, 0.0 for bitwise.

    `reason` says why the figures cannot be bitwise equal; it is empty where they are.
    """

    losses: float
    parameters: float
    reason: str


@dataclass(frozen=True)
class Case:
    """A program before and after its migration."""

    name: str
    folder: Path
    title: str
    description: str
    idiom: str
    runs: tuple[Run, ...]
    compare: Comparison
    options: dict[str, str]
    rules: tuple[str, ...]
    symbols: tuple[str, ...]

    @property
    def before(self) -> Path:
        return self.folder / "before"

    @property
    def after(self) -> Path:
        return self.folder / "after"

    def sources(self, side: Path) -> list[str]:
        """POSIX paths of a side's files, relative to it, sorted."""
        return sorted(
            path.relative_to(side).as_posix()
            for path in side.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        )


def load_cases(folder: Path = CASES_FOLDER) -> list[Case]:
    """All cases of a folder, by name.

    Raises KeyError when a `case.toml` lacks an entry and ValueError when one has an unknown value.
    """
    return [load_case(path.parent) for path in sorted(folder.glob("*/case.toml"))]


def load_case(folder: Path) -> Case:
    """One case from its folder; errors as for `load_cases`."""
    data = tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))
    compare = data["compare"]
    return Case(
        name=folder.name,
        folder=folder,
        title=data["title"],
        description=data["description"].strip(),
        idiom=data["idiom"],
        runs=tuple(_run(entry) for entry in data["run"]),
        compare=Comparison(
            losses=_tolerance(compare["losses"]),
            parameters=_tolerance(compare["parameters"]),
            reason=compare.get("reason", ""),
        ),
        options=dict(data.get("options", {})),
        rules=tuple(data["rules"]),
        symbols=tuple(data["symbols"]),
    )


def _run(entry: dict[str, Any]) -> Run:
    launcher = entry.get("launcher", "torchrun")
    if launcher not in ("torchrun", "python"):
        raise ValueError(f"unknown launcher {launcher!r}")
    return Run(
        name=entry["name"],
        launcher=launcher,
        nproc=entry.get("nproc", 2 if launcher == "torchrun" else 1),
        script=entry["script"],
        args=tuple(tuple(args) for args in entry.get("args", [[]])),
        parameters=tuple(entry["parameters"]),
        files=tuple(entry.get("files", [])),
        cross_resume=entry.get("cross_resume", False),
    )


def _tolerance(value: str | float) -> float:
    if value == "bitwise":
        return 0.0
    if isinstance(value, float) and value > 0:
        return value
    raise ValueError(f"a tolerance is 'bitwise' or a positive float, not {value!r}")
