"""What goes wrong on sharded models without an error, noticed where it happens: in the user's file, on its line.

Each kind tests values, so that code which does such a thing rightly is left alone.
"""

from __future__ import annotations

import re
import sys
import traceback
from typing import TYPE_CHECKING, Any

from .places import is_foreign, relative, user_place

if TYPE_CHECKING:
    from .recorder import Recorder

RULE = re.compile(r"\bFS\d{3}\b")


class Tripwires:
    """Writes each thing once: a kind, a rule of the codemod, a sentence, a place."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.root = recorder.settings.root
        self._written: set[tuple[str, str]] = set()

    def fire(self, kind: str, rule: str, text: str, place: str | None = None, **fields: Any) -> None:
        """`text` goes on after the place: "train.py:12 reads …". The record holds it even if the process dies next."""
        place = place or user_place(self.root)
        if (kind, place) in self._written:
            return
        self._written.add((kind, place))
        self.recorder.event("tripwire", kind=kind, rule=rule, text=text, place=place, **fields)
        self.recorder.journal.flush()

    def at_end(self) -> None:
        """A check that the codemod has put into the code has raised."""
        error = getattr(sys, "last_value", None)
        rule = RULE.search(str(error)) if isinstance(error, (RuntimeError, NotImplementedError)) else None
        if error is None or rule is None:
            return
        places = [
            f"{relative(frame.f_code.co_filename, self.root)}:{line}"
            for frame, line in traceback.walk_tb(error.__traceback__)
            if not is_foreign(frame.f_code.co_filename)
        ]
        self.fire("stop", rule[0], f"stops: {error}", places[-1] if places else "?")


def install(recorder: Recorder) -> Tripwires:
    """Watch DTensors, units, hooks and ranks, once the script imports what it takes to shard a model."""
    from . import tripwire_hooks, tripwire_ranks, tripwire_reads, tripwire_units

    wires = Tripwires(recorder)
    for module in (tripwire_hooks, tripwire_ranks, tripwire_reads, tripwire_units):
        module.install(wires)
    return wires
