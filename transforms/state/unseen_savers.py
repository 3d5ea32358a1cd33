"""Functions that save the state of whatever they are handed: where all ranks come to them, they gather what is sharded.

A saver shows it by what it does about ranks itself: it writes behind a guard, under a decorator for the main process,
or through a function that does. One that writes on every rank that calls it is called by one, most likely.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..ranks.front import condition_in_front, left_out
from ..ranks.guards import Guard, GuardFinder
from ..rule import Outcome
from ..sites import Site
from ..text.suppressions import Suppressions
from ..view import FileView
from .arithmetic import is_computed_with
from .behind_decorator import Split, split_of, write_split
from .out_of_sight import is_from_queue, is_out_of_sight, owners
from .plans import gathered_name
from .rank_zero import is_handed_to_rank_zero, rank_zero_alone_reads
from .strangers import (
    is_read,
    is_registered_for_plain,
    is_returned,
    is_written,
    optimizers_of_strangers,
    states_of_strangers,
)
from .whole_states import gather_here, gather_into, is_gathered

_IN_FUNCTION = frozenset({"if", "exit", "expression"})
"""Guards in front of which all ranks still come, once they have called the function."""


@dataclass(frozen=True, eq=False)
class Saving:
    """How a function gathers what it saves; ``problem`` says why it cannot."""

    problem: str = ""
    is_right: bool = False
    """Whether it is right as it stands."""
    alone: bool = False
    """Whether rank 0 alone uses what is gathered."""
    guard: Guard | None = None
    """The guard in front of which the gathering moves."""
    split: Split | None = None
    """Where a decorator keeps all other ranks out."""


def saver_of_strangers(migration: Migration, group: Group) -> Site | None:
    """A function that may save a group's model unseen and cannot be mended: where none is seen to save this one, or where
    it goes through the attributes of an object that has the model, or its optimizer, among them.
    """
    is_saved = is_read(migration, group, "model", "optimizer")
    sites = (site for site in states_of_strangers(migration) if not is_saved or _goes_through(migration, site, group))
    return next((site for site in sites if _stays(migration, site)), None)


def _goes_through(migration: Migration, site: Site, group: Group) -> bool:
    if not isinstance(site.node, ast.Attribute):
        return False
    program = migration.program
    holders = [value for owner in owners(site.view, site.node.value) for value in site.view.values(owner)]
    return any(
        migration.groups.of(values) is group for holder in holders for values in program.attributes(holder).values()
    )


def saver_of_optimizers(migration: Migration, group: Group) -> Site | None:
    """The same for the optimizer of a group."""
    if is_read(migration, group, "optimizer"):
        return None
    return next((site for site in optimizers_of_strangers(migration, "state_dict") if _stays(migration, site)), None)


def _stays(migration: Migration, site: Site) -> bool:
    """Whether something is saved that will not be gathered: it cannot be, or a comment leaves it alone."""
    if not is_written(site):
        return False
    view = site.view
    comments = migration.once("suppressions", view.path, lambda: Suppressions(view.source))
    start, end = (view.source.position(offset)[0] for offset in view.source.span(site.node))
    rule = "FS404" if "Optimizer" in site.symbol else "FS402"
    return bool(saving_of(migration, site).problem) or comments.cover(rule, start, end)


def saving_of(migration: Migration, site: Site) -> Saving:
    """How a read of a stranger's state is mended, decided once."""
    return migration.once("saving of strangers", site.node, lambda: _saving(migration, site))


def _saving(migration: Migration, site: Site) -> Saving:
    view, call = site.view, site.call
    assert call is not None
    if is_gathered(view, call) or is_registered_for_plain(migration, site):
        return Saving(is_right=True)
    assert isinstance(call.func, ast.Attribute)
    out_of_sight = is_out_of_sight(view, call.func.value)
    if out_of_sight and (view.function(call) is None or is_from_queue(view, call.func.value)):
        return Saving("nothing in it shows that all ranks come to it")
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    if finder.callers_guarded(view, call) is not None:
        return Saving("only some ranks call it")
    if is_computed_with(view, call):
        return Saving("it computes with the state")
    guards = finder.around(view, call)
    if guards and out_of_sight:
        return Saving("only some ranks run it, and its model is known behind the guard alone")
    alone = any(finder.passes_only_rank_zero(guard) for guard in guards)
    if any(guard.kind == "decorator" for guard in guards):
        split = split_of(finder, view, call) if len(guards) == 1 else None
        return Saving(alone=alone, split=split) if split is not None else Saving("its decorator lets some ranks in only")
    if any(guard.kind not in _IN_FUNCTION for guard in guards):
        return Saving("only some ranks run it")
    if guards:
        return Saving(alone=alone, guard=guards[0])
    if _rank_zero_alone_uses(finder, view, call):
        return Saving(alone=True)
    return Saving("nothing in it shows that all ranks call it")


def _rank_zero_alone_uses(finder: GuardFinder, view: FileView, call: ast.Call, depth: int = 0) -> bool:
    """Whether all ranks come to a read of which rank 0 alone uses the result, here or where the function returns it to."""
    if rank_zero_alone_reads(finder, view, call) or is_handed_to_rank_zero(finder, view, call):
        return True
    function = view.function(call)
    if function is None or not is_returned(view, call) or depth > 1:
        return False
    callers = finder.program.callers(view, function)
    return bool(callers) and all(_rank_zero_alone_uses(finder, owner, caller, depth + 1) for owner, caller in callers)


def saver_outcome(migration: Migration, site: Site, kind: str) -> Outcome:
    """What becomes of a read of a stranger's state; ``kind``: ``model`` or ``optimizer``."""
    view, call = site.view, site.call
    assert call is not None
    saving = saving_of(migration, site)
    if saving.is_right:
        return Outcome(Level.OK, "what comes here holds no sharded tensors")
    if saving.problem:
        what = "an optimizer, and of one over sharded parameters" if kind == "optimizer" else "a model, and of a sharded one"
        taken = f"get_{kind}_state_dict(model{', optimizer' if kind == 'optimizer' else ''}, options=StateDictOptions("
        whose = "the optimizers of sharded models" if kind == "optimizer" else "sharded models"
        assert isinstance(call.func, ast.Attribute)
        unseen = "shows what this is: it may be" if is_out_of_sight(view, call.func.value) else "calls this function with"
        return Outcome(
            Level.MANUAL,
            f"nothing in these files {unseen} {what} it takes this rank's shards only",
            f"If {whose} come here, take {taken}full_state_dict=True, cpu_offload=True)) on all ranks, and write it on rank 0.",
        )
    outcome = Outcome(Level.REVIEW, _message(migration, site, saving, kind), holds=is_written(site))
    if saving.split is not None:
        write_split(migration, view, call, saving.split, saving.alone, outcome)
    elif saving.guard is not None:
        _write_in_front(migration, site, saving.guard, saving.alone, outcome)
    else:
        gather_here(migration, view, call, saving.alone, outcome)
    return outcome


def _message(migration: Migration, site: Site, saving: Saving, kind: str) -> str:
    message = "what is sharded of whatever is handed in is gathered, for which all ranks have to call this function"
    if saving.split is not None:
        message += ": its decorator stays with what writes"
    elif saving.guard is not None:
        message += ": the guard stays with what writes"
        finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
        dropped = left_out(finder, site.view, saving.guard, site.call) if site.call is not None else []
        if dropped:
            message += f", and all ranks gather also where `{dropped[0]}` does not hold"
    if kind == "optimizer":
        return f"{message}; the file keeps its numbers for names, so that old files and new ones serve both"
    return f"{message}; keys stay, but those of a model that DDP wrapped itself lose its module. prefix"


def _write_in_front(migration: Migration, site: Site, guard: Guard, alone: bool, outcome: Outcome) -> None:
    view, call = site.view, site.call
    assert call is not None and isinstance(call.func, ast.Attribute)
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    condition = condition_in_front(finder, view, guard, call)
    indent = view.indent(guard.statement)
    name = gathered_name(migration, view, call, "any", call.func.value)
    inner = indent + ("    " if condition else "")
    line = gather_into(migration, view, call, alone, name, inner, outcome)
    head = (f"{indent}if {condition}:\n",) if condition else ()
    why = "gathering is collective: it moves in front of the rank guard"
    outcome.patches.append(view.insert_before(guard.statement, (*head, *line), why))
