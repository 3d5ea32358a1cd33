"""``save_state_dict`` and ``load_state_dict`` of early Distributed Checkpoint."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ..findings import Level
from ..migration import Migration
from ..ranks.guards import GuardFinder
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..text.generated import replaced_call
from ..text.imports import used_names
from ..text.patches import Part, Patch
from ..view import FileView

_DCP = "torch.distributed.checkpoint"
_FIRST_PLACE = "torch.distributed._shard.checkpoint"
_WHY_PLACE = "the first place of Distributed Checkpoint is deprecated"
_NEW = {f"{_DCP}.save_state_dict": "save", f"{_DCP}.load_state_dict": "load"}
_PARAMETERS = {
    "save": ("state_dict", "storage_writer", "process_group", "coordinator_rank", "no_dist", "planner"),
    "load": ("state_dict", "storage_reader", "process_group", "coordinator_rank", "no_dist", "planner"),
}


def _gone(migration: Migration) -> tuple[str, ...]:
    """Parameters that save and load of the target version do not have; 2.7 brought no_dist back."""
    return ("coordinator_rank",) if migration.torch_has(2, 7) else ("coordinator_rank", "no_dist")


def check(site: Site, migration: Migration) -> Outcome:
    """The call gets its new name; arguments that were positional get theirs."""
    if site.role == "keyword":
        return Outcome(Level.SAFE, "part of its call", silent=True)
    view, call = site.view, site.call
    new = _NEW.get(site.symbol)
    if call is None or new is None:
        return Outcome(
            Level.REVIEW if new else Level.MANUAL,
            f"{site.member} is handed on as a function",
            f"Hand on torch.distributed.checkpoint.{new or 'save'}; its storage argument is a keyword.",
        )
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return Outcome(Level.MANUAL, "the arguments are unpacked", f"Call dcp.{new}(state_dict, …) with keywords.")
    if "no_dist" in _gone(migration) and _is_of_some_ranks(migration, view, call, new):
        return Outcome(
            Level.OK,
            f"{site.member} keeps its deprecated name: some ranks alone make this call, by no_dist, which {new} has from "
            "torch 2.7 on",
        )
    outcome = Outcome(Level.SAFE, f"{site.member} is now called {new}: same files")
    if isinstance(call.func, ast.Attribute):
        name = f"{view.text(call.func.value)}.{new}"
        outcome.patches.extend(_from_its_place(view))
    else:
        name = migration.use(outcome, view, f"{_DCP}.{new}", call)
    absent = _gone(migration)
    gone = [keyword for keyword in call.keywords if keyword.arg in absent]
    if len(call.args) <= 1 and not gone:
        outcome.patches.append(view.replace(call.func, name, "deprecated names of Distributed Checkpoint"))
        return outcome
    arguments = _arguments(site, new, outcome, absent)
    outcome.patches.append(
        view.replace(call, replaced_call(view, call, name, arguments), "deprecated names of Distributed Checkpoint")
    )
    return outcome


def _is_of_some_ranks(migration: Migration, view: FileView, call: ast.Call, new: str) -> bool:
    """Whether a call stands behind a rank guard and is told that it is made without the other ranks."""
    place = _PARAMETERS[new].index("no_dist")
    given = [*call.args[place : place + 1], *(k.value for k in call.keywords if k.arg == "no_dist")]
    if all(isinstance(value, ast.Constant) and not value.value for value in given):
        return False
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    return bool(finder.around(view, call)) or finder.callers_guarded(view, call) is not None


def _from_its_place(view: FileView) -> Iterator[Patch]:
    """Imports by the first place of Distributed Checkpoint, which is a deprecated second name of it, take the one it has."""
    for statement in view.nodes(ast.Import, ast.ImportFrom):
        if isinstance(statement, ast.ImportFrom):
            old_calls = {alias.asname or alias.name for alias in statement.names if f"{_DCP}.{alias.name}" in _NEW}
            start = view.source.span(statement)[0] + len("from ")
            is_there = statement.module == _FIRST_PLACE and view.source.text.startswith(_FIRST_PLACE, start)
            if is_there and old_calls.isdisjoint(used_names(view.tree)):
                yield Patch(view.path, start, start + len(_FIRST_PLACE), (_DCP,), _WHY_PLACE)
            continue
        for alias in statement.names:
            if alias.name == _FIRST_PLACE and alias.asname is not None:
                start = view.source.span(alias)[0]
                yield Patch(view.path, start, start + len(_FIRST_PLACE), (_DCP,), _WHY_PLACE)


def _arguments(site: Site, new: str, outcome: Outcome, absent: tuple[str, ...]) -> list[Sequence[Part]]:
    """All arguments but the first by keyword, without those that save and load no longer have."""
    view, call = site.view, site.call
    assert call is not None
    arguments: list[Sequence[Part]] = []
    named = [(None if i == 0 else _PARAMETERS[new][i], value) for i, value in enumerate(call.args)]
    named += [(keyword.arg, keyword.value) for keyword in call.keywords]
    for parameter, value in named:
        if parameter not in absent:
            arguments.append((f"{parameter}=", view.keep(value)) if parameter else (view.keep(value),))
        elif not (isinstance(value, ast.Constant) and not value.value):
            outcome.level = Level.REVIEW
            if parameter == "coordinator_rank":
                outcome.message += "; coordinator_rank goes: rank 0 of the group coordinates"
                continue
            outcome.message += (
                f"; no_dist goes, which {new} has from torch 2.7 on: without a process group the call is local by itself, "
                "with one it is collective, and hangs where one rank alone makes it"
            )
            outcome.advice = "Where a process group may exist, make the call on all ranks, or target torch 2.7."
    return arguments


RULE = Rule(
    id="FS411",
    title="dcp.save and dcp.load",
    why=(
        "save_state_dict and load_state_dict of torch.distributed.checkpoint are deprecated; save and load write and "
        "read the same files, and do not need a process group where there is none."
    ),
    symbols=tuple(name + end for name in _NEW for end in ("", "(*")),
    roles=("call", "keyword", "reference"),
    check=check,
    sources=(
        "https://docs.pytorch.org/docs/stable/distributed.checkpoint.html#torch.distributed.checkpoint.state_dict_saver.save",
    ),
    examples=(
        Example(
            before="""\
import torch.distributed.checkpoint as dcp


def save(state, writer):
    dcp.save_state_dict(state, writer)


def load(state, reader, planner):
    dcp.load_state_dict(
        state_dict=state,
        storage_reader=reader,
        planner=planner,
    )
""",
            after="""\
import torch.distributed.checkpoint as dcp


def save(state, writer):
    dcp.save(state, storage_writer=writer)


def load(state, reader, planner):
    dcp.load(
        state_dict=state,
        storage_reader=reader,
        planner=planner,
    )
""",
        ),
        Example(
            before="""\
from torch.distributed.checkpoint import load_state_dict


def resume(state, reader):
    load_state_dict(state, reader, no_dist=True)
""",
            after="""\
from torch.distributed.checkpoint import load


def resume(state, reader):
    load(state, storage_reader=reader)
""",
            level=Level.REVIEW,
            note="save and load find out by themselves whether there is a process group",
        ),
    ),
    proof=("finetuning_package",),
)
