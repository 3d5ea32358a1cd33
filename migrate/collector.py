"""Python's cycle collector, paused where it only costs time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause it while many objects without cycles are made.

    Syntax trees and facts hold no cycles and are freed by their counts; the collector would walk the millions of
    living ones again and again, a fifth of the time of reading files. It leaves them alone afterwards, too: a run
    comes once in a process.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            gc.enable()
