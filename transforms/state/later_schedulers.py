"""Learning-rate schedulers that are built after optimizer state was loaded.

A scheduler adds ``initial_lr`` to the groups of its optimizer, and so to what is saved. ``full_state_dict=True`` loads
only entries that the groups have: others raise ``KeyError: 'param_groups.0.initial_lr'``, and with
``broadcast_from_rank0=True`` they come to rank 0 alone, so that the base rates of a scheduler differ between ranks.
``dcp.load`` reads no entry that its template lacks, and a scheduler takes the rate of the last step for the first one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..analysis.library import is_scheduler
from ..analysis.values import FunctionValue, Instance, Optimizer, Value
from ..migration import Migration
from ..text.patches import Part
from ..text.spelling import quoted
from ..training.passes import called_name, outside_name
from ..view import FileView
from .reads import last_name

_MAKES_ROOM = "is built later, and the initial_lr of the file is loaded only into groups that have one: they get one before; "
KEEPS = "a file without one leaves the learning rate that is configured there"
REFUSES = "a file without one is refused with an error"
_MAY_COME_LATER = (
    "may be built after it: into groups without initial_lr that of the file is not loaded on all ranks, or raises a KeyError; "
    "build the scheduler before"
)


@dataclass(frozen=True, eq=False)
class LaterScheduler:
    """A scheduler that is built behind a load into its optimizer; surely, or as far as can be seen."""

    view: FileView
    call: ast.Call
    is_sure: bool

    def message(self, view: FileView, lacking: str) -> str:
        """What is to be said of it at a load; ``lacking`` tells what becomes of a file without the entry."""
        place = f"line {self.view.line(self.call)}" + (f" of {self.view.path}" if self.view is not view else "")
        return f"; the scheduler of {place} {_MAKES_ROOM + lacking if self.is_sure else _MAY_COME_LATER}"


def makes_room(view: FileView, load: ast.Call, optimizer: Part) -> list[Part]:
    """Groups get the entry of a scheduler that is built later, as that would add it."""
    indent = view.indent(view.statement(load))
    group, key, rate = view.free_name(load, "group"), quoted(view, "initial_lr"), quoted(view, "lr")
    return [
        f"{indent}for {group} in ", optimizer, ".param_groups:\n",
        f"{indent}    # the scheduler is built later, and its entry is only loaded into groups that have one\n",
        f"{indent}    {group}.setdefault({key}, {group}[{rate}])\n",
    ]  # fmt: skip


def later_scheduler(migration: Migration, view: FileView, load: ast.Call, optimizers: Iterable[Value]) -> LaterScheduler | None:
    """The scheduler of an optimizer that is first built behind a load of its state; None where one is built before.

    ``optimizers`` is what the optimizer may be, as far as that is known.
    """
    own = {value for value in optimizers if isinstance(value, Optimizer)}
    found: dict[str, tuple[FileView, ast.Call]] = {}
    for other, call in _schedulers(migration):
        is_own = _is_of(own, other, call)
        relation = migration.order.relation((view, load), (other, call)) if is_own is not False else "unknown"
        if relation != "unknown" or is_own:
            found.setdefault(relation, (other, call))
    if not found or "after" in found:
        return None
    place = found.get("before") or next(iter(found.values()))
    return LaterScheduler(*place, found.keys() == {"before"})


def _schedulers(migration: Migration) -> list[tuple[FileView, ast.Call]]:
    """Every call of the program that builds a scheduler."""

    def find() -> Iterator[tuple[FileView, ast.Call]]:
        for view in migration.program.views_with("ched"):
            yield from ((view, call) for call in view.nodes(ast.Call) if _builds_scheduler(migration, view, call))

    return migration.once("schedulers", None, lambda: list(find()))


def _builds_scheduler(migration: Migration, view: FileView, call: ast.Call) -> bool:
    """Whether a call builds a scheduler: one of torch's, of a subclass, or of outside code, as its name or target says."""
    if not _given_optimizers(call):
        return False
    if is_scheduler(outside_name(view, call.func) or ""):
        return True
    values = view.values(call)
    if values and all(isinstance(value, FunctionValue) for value in values):
        return False  # a function that sets the rate adds no entry
    made = [value.cls for value in values if isinstance(value, Instance)]
    if any(is_scheduler(base) for cls in made for base in view.program.flow.external_bases(cls)):
        return True
    if made:
        return False
    parent = view.parents[call]
    targets = parent.targets if isinstance(parent, ast.Assign) and parent.value is call else []
    names = [last_name(target) for target in targets if isinstance(target, (ast.Name, ast.Attribute))]
    if not migration.program.callees(view, call):
        names.append(called_name(call))
    return any("sched" in name.lower() for name in names)


def _given_optimizers(call: ast.Call) -> list[ast.expr]:
    """The arguments that are called, or hold, an optimizer."""
    given = (*call.args, *(keyword.value for keyword in call.keywords))
    return [node for node in given if isinstance(node, (ast.Name, ast.Attribute)) and "opt" in last_name(node).lower()]


def _is_of(own: set[Optimizer], view: FileView, call: ast.Call) -> bool | None:
    """Whether a scheduler is that of an optimizer; None where what one of them is is not known."""
    given = {value for node in _given_optimizers(call) for value in view.values(node) if isinstance(value, Optimizer)}
    return bool(own & given) if own and given else None
