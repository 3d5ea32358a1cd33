"""Stops in the code: what an earlier run left to a person, and nobody has done since."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .findings import Finding, Form, Level
from .queries.file import File
from .text.suppressions import Suppressions

STOP_MARK = "to-fsdp2 FS"
"""A text without it has no stop."""
_STOP = re.compile(r"to-fsdp2 (FS\d{3}): (.*)", re.DOTALL)


def written_stops(file: File) -> Iterator[tuple[ast.Raise, str, str]]:
    """Statements like ``raise NotImplementedError("to-fsdp2 FS413: …")`` with the rule and the message of each."""
    for node in file.nodes(ast.Raise):
        if isinstance(node.exc, ast.Call) and node.exc.args and isinstance(node.exc.args[0], ast.Constant):
            stop = _STOP.match(str(node.exc.args[0].value))
            if stop is not None:
                yield node, stop.group(1), stop.group(2)


def stop_findings(file: File, programs: tuple[str, ...]) -> Iterator[Finding]:
    """A finding for each stop in a file."""
    suppressions = Suppressions(file.source)
    for node, rule, message in written_stops(file):
        start, end = (file.source.position(offset) for offset in file.source.span(node))
        suppressed = suppressions.cover(rule, start[0], end[0])
        yield Finding(
            rule, Level.MANUAL, file.path, *start, *end, "", message, form=Form.STOP, programs=programs, suppressed=suppressed
        )
