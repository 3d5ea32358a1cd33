"""Which lines of the changed files were executed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any


class ExecutedLines:
    """Collects the executed lines of a few named files; code elsewhere runs at nearly its usual speed."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.lines: dict[str, set[int]] = {path: set() for path in paths}
        self._by_real_path = {os.path.realpath(path): found for path, found in self.lines.items()}
        self._by_file_name: dict[str, set[int] | None] = {}

    def start(self) -> None:
        """Start tracing in this thread and in those that start later."""
        if sys.version_info >= (3, 12):
            self._monitor()
        else:
            threading.settrace(self._enter)
            sys.settrace(self._enter)

    def as_fields(self) -> dict[str, list[int]]:
        """Path as it was given, with its executed lines in order."""
        return {path: sorted(found) for path, found in self.lines.items()}

    def _of(self, code: CodeType) -> set[int] | None:
        name = code.co_filename
        try:
            return self._by_file_name[name]
        except KeyError:
            found = self._by_real_path.get(os.path.realpath(name))
            self._by_file_name[name] = found
            return found

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        found = self._of(frame.f_code)
        if found is None:
            return None

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            found.add(frame.f_lineno)
            return line

        return line

    def _monitor(self) -> None:
        # sys.monitoring (PEP 669): a line that has been seen once is switched off and costs nothing any more.
        monitoring: Any = getattr(sys, "monitoring")  # noqa: B009 (absent before Python 3.12)
        events, disable = monitoring.events, monitoring.DISABLE
        tool = monitoring.COVERAGE_ID if monitoring.get_tool(monitoring.COVERAGE_ID) is None else 4
        monitoring.use_tool_id(tool, "to-fsdp2")

        def entered(code: CodeType, offset: int) -> Any:
            if self._of(code) is not None:
                monitoring.set_local_events(tool, code, events.LINE)
            return disable

        def line(code: CodeType, number: int) -> Any:
            found = self._of(code)
            if found is not None:
                found.add(number)
            return disable

        monitoring.register_callback(tool, events.PY_START, entered)
        monitoring.register_callback(tool, events.LINE, line)
        monitoring.set_events(tool, events.PY_START)
