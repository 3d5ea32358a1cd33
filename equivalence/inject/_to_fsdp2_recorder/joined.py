"""Ranks with fewer batches than the others: under torch's Join they go on taking part in the others' collectives.

A loop without Join has all ranks make every step. So that steps of both sides are the same steps, what a rank does after
it has run out is counted as steps as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .after_import import after_import
from .patching import Function, wrap

if TYPE_CHECKING:
    from .recorder import Recorder


def install(recorder: Recorder) -> None:
    """Watch Join, once it is imported."""

    def join() -> None:
        from torch.distributed.algorithms.join import Join

        wrap(Join, "_get_num_nonjoined_procs", _around(recorder))

    after_import("torch.distributed.algorithms.join", join)


def _around(recorder: Recorder) -> Any:
    # A rank that has run out asks before each pass of the others whether there is one.
    under_way = [False]

    def around(original: Function) -> Function:
        def others(context: Any) -> int:
            count = original(context)
            if under_way[0]:
                recorder.joined_pass()
            under_way[0] = count > 0
            return count

        return others

    return around
