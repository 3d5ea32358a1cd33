"""What went wrong on the new side without an error, with the lines of the script that it happened on."""

from __future__ import annotations

from .record import Record
from .verdict import CheckResult

ORDER = ("stop", "ranks", "edit", "data", "hook", "read")
"""What changes the training first."""


def check_tripwires(*runs: Record) -> CheckResult:
    """Those of one or several runs of the new side, one line for each place; `places` has them with their rules."""
    events = [event for record in runs for _, events in sorted(record.tripwires.items()) for event in events]
    first = {(event["kind"], event["place"]): event for event in reversed(events)}
    found = sorted(first.values(), key=lambda event: (ORDER.index(event["kind"]), event["step"], event["place"]))
    if not found:
        return CheckResult("tripwires", "pass", "no read of a shard, lost edit, dead hook or call of some ranks was noticed")
    texts = [f"{event['place']} {event['text']} ({event['rule']})" for event in found]
    more = f" (and {len(texts) - 1} more places)" if len(texts) > 1 else ""
    step = min(event["step"] for event in found)
    return CheckResult("tripwires", "fail", texts[0] + more, step, places=texts, conclusive=True)
