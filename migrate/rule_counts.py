"""How often each rule speaks: `check --statistics`."""

from __future__ import annotations

import json
from collections import Counter

from ..transforms.rule import all_rules
from .report import Report


def as_text(report: Report) -> str:
    """One line a rule, the most frequent first."""
    width = max((len(f"{count:,}") for _, _, count in _counted(report)), default=0)
    return "".join(f"{count:>{width},}  {rule}  {title}\n" for rule, title, count in _counted(report))


def as_json(report: Report) -> str:
    """The same as JSON."""
    rules = [{"rule": rule, "title": title, "count": count} for rule, title, count in _counted(report)]
    return json.dumps({"tool": "to-fsdp2", "schema": 2, "kind": "statistics", "rules": rules}, indent=2) + "\n"


def _counted(report: Report) -> list[tuple[str, str, int]]:
    titles = {rule.id: rule.title for rule in all_rules()}
    counts = Counter(finding.rule for finding in report.open)
    return [(rule, titles.get(rule, "stops in the code"), n) for rule, n in sorted(counts.items(), key=lambda c: (-c[1], c[0]))]
