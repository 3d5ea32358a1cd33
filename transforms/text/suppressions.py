"""Comments that speak for a site: `# to-fsdp2: ignore[FS301] reason`."""

from __future__ import annotations

import re

from .source import Source

_COMMENT = re.compile(r"#\s*to-fsdp2:\s*ignore\b(?:\[(?P<rules>[^\]]*)\])?")


class Suppressions:
    """The suppression comments of one file."""

    MARK = "to-fsdp2:"
    """A text without it has none."""

    def __init__(self, source: Source) -> None:
        self._rules: dict[int, frozenset[str]] = {}
        """Line → rule ids; an empty set stands for all rules."""
        if self.MARK not in source.text:
            return
        for number, line in enumerate(source.lines, start=1):
            comment = _COMMENT.search(line)
            if comment is None:
                continue
            rules = frozenset(filter(None, re.split(r"[\s,]+", comment["rules"] or "")))
            self._rules[number] = rules
            if not line[: comment.start()].strip():
                # A comment on a line of its own is about the line that follows it.
                self._rules.setdefault(number + 1, rules)

    def cover(self, rule: str, line: int, end_line: int) -> bool:
        """Whether a comment on a line of the site (1-based, both ends included) or right above it names the rule."""
        return any(
            not rules or rule in rules for number, rules in self._rules.items() if line <= number <= end_line
        )
