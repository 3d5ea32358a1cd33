"""Programs in folders of another form than the corpus: `NAME/case.toml`, `NAME/old/`, `NAME/reference/`.

`case.toml` has `entry` (the script), optionally `launcher` ("torchrun" or "python"), `optim_id_names` (names behind the numbers
of an optimizer's state) and `ignore_ckpt` (patterns of checkpoint entries), and for each `[[run]]` a `name`, `nproc`, `args` or
`stages`, `env`, and the tolerances `tol_loss`, `tol_metric`, `tol_ckpt` (absolute) and `tol_grad_norm` (relative).

The programs print `step I loss X grad_norm Y` and `metric NAME X`, and write checkpoints below the folder that `OUT` names.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from to_fsdp2.equivalence import checkpoint_files, checkpoint_names

from .comparison import different
from .programs import Program, Run

if TYPE_CHECKING:
    from .launch import Outcome

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

STEP = re.compile(r"step (?P<step>\d+) loss (?P<loss>\S+)(?: grad_norm (?P<norm>\S+))?")
METRIC = re.compile(r"metric (?P<name>\S+) (?P<value>\S+)")
CHECKPOINTS = (".pt", ".pth", ".bin", ".ckpt", ".tar", ".safetensors")


def folder_cases(folder: Path) -> list[Program]:
    """The programs of a folder, by name. Raises KeyError where a `case.toml` lacks an entry."""
    return [_program(path.parent) for path in sorted(folder.glob("*/case.toml"))]


def _program(folder: Path) -> Program:
    case: dict[str, Any] = tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))
    tolerances = {entry["name"]: entry for entry in case["run"]}

    def compare(run: Run, old: Outcome, new: Outcome, exact: bool) -> str:
        return _compare(case, {} if exact else tolerances[run.name], old, new)

    runs = tuple(
        Run(
            name=entry["name"],
            launcher=case.get("launcher", "torchrun"),
            nproc=entry["nproc"],
            script=case["entry"],
            stages=tuple(tuple(map(str, args)) for args in entry.get("stages") or [entry.get("args", [])]),
            environment=tuple(entry.get("env", {}).items()),
        )
        for entry in case["run"]
    )
    return Program(folder.name, folder / "old", folder / "reference", runs, (), compare)


def _compare(case: dict[str, Any], within: dict[str, Any], old: Outcome, new: Outcome) -> str:
    one, other = _figures(old), _figures(new)
    if one.keys() != other.keys():
        return f"figures on one side only: {sorted(one.keys() ^ other.keys())[:4]}"
    tolerances = {"loss": within.get("tol_loss", 0.0), "metric": within.get("tol_metric", within.get("tol_loss", 0.0))}
    for key, value in one.items():
        difference = abs(value - other[key])
        tolerance = within.get("tol_grad_norm", 0.0) * max(abs(value), 1e-12) if key[0] == "norm" else tolerances[key[0]]
        if not difference <= tolerance and not (math.isnan(value) and math.isnan(other[key])):
            return f"{' '.join(map(str, key))} is {other[key]!r}, not {value!r}"
    return _compare_checkpoints(case, within, old.out, new.out)


def _figures(outcome: Outcome) -> dict[tuple[str, str, int], float]:
    """Printed numbers by kind, name and how often that one was printed before (a resumed run repeats steps)."""
    found: dict[tuple[str, str, int], float] = {}
    seen: Counter[tuple[str, str]] = Counter()

    def note(kind: str, name: str, value: str) -> None:
        found[kind, name, seen[kind, name]] = float(value)
        seen[kind, name] += 1

    for line in "".join(outcome.printed).splitlines():
        if match := METRIC.match(line.strip()):
            note("metric", match["name"], match["value"])
        elif match := STEP.match(line.strip()):
            note("loss", match["step"], match["loss"])
            if match["norm"] is not None:
                note("norm", match["step"], match["norm"])
    return found


def _compare_checkpoints(case: dict[str, Any], within: dict[str, Any], old: Path, new: Path) -> str:
    ignored = [re.compile(pattern) for pattern in within.get("ignore_ckpt", case.get("ignore_ckpt", []))]
    entries = (dict(_entries(side, case.get("optim_id_names", []))) for side in (old, new))
    one, other = ({name: value for name, value in side.items() if not any(p.search(name) for p in ignored)} for side in entries)
    if one.keys() != other.keys():
        return f"checkpoint entries on one side only: {sorted(one.keys() ^ other.keys())[:4]}"
    tolerance = within.get("tol_ckpt", 0.0)
    for name, value in one.items():
        if difference := "" if tolerance < 0 else different(value, other[name], tolerance):
            return f"{name} {difference}"
    return ""


def _entries(out: Path, optimizer_names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Everything in the checkpoints below a folder, by file, kind and canonical name."""
    folders = {path.parent for path in out.rglob(".metadata")}
    files = {path for path in out.rglob("*") if path.suffix in CHECKPOINTS and path.is_file() and path.parent not in folders}
    for path in sorted(folders | files):
        tree = checkpoint_files.read(path)[1]
        stem = path.relative_to(out).with_suffix("").as_posix()
        found = checkpoint_names.take_apart(tree, list(_orders(tree, optimizer_names)))
        for place, model in found.models.items():
            yield from _leaves(model.tensors, f"{stem}/{place}/model/")
        for place, optimizer in found.optimizers.items():
            for parameter in optimizer.state:
                yield from _leaves(optimizer.state[parameter], f"{stem}/{place}/optim/{parameter}.")
            for parameter in optimizer.hyperparameters:
                yield from _leaves(optimizer.hyperparameters[parameter], f"{stem}/{place}/group/{parameter}.")
        yield from _leaves(found.values, f"{stem}/")


def _orders(tree: Any, names: list[str]) -> Iterator[checkpoint_names.Order]:
    """For each optimizer in a checkpoint, the names of its parameters group by group."""
    if isinstance(tree, dict):
        if names and isinstance(groups := tree.get("param_groups"), list):
            left = iter(names)
            yield [list(islice(left, len(group["params"]))) for group in groups]
        for value in tree.values():
            yield from _orders(value, names)


def _leaves(value: Any, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{prefix}{key}" if prefix.endswith(("/", ".")) else f"{prefix}.{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{prefix}.{number}")
    elif isinstance(value, checkpoint_files.Shards):
        whole = value.join()
        if whole is None:
            raise checkpoint_files.UnreadableCheckpoint(f"{prefix} is not whole")
        yield prefix, whole
    elif isinstance(value, torch.Tensor):
        yield prefix, value
    elif isinstance(value, str):
        yield prefix, torch.tensor(list(value.encode()) or [0], dtype=torch.uint8)
    elif isinstance(value, bool | int | float):
        yield prefix, torch.tensor(value, dtype=torch.float64)
