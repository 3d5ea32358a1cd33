"""What runs inside a user's training process during `to-fsdp2 verify`.

Loaded through `sitecustomize.py` under a name that no user module has. Imports the standard library at start-up,
torch only once the script has imported it, and nothing of the rest of to-fsdp2. docs/record-format.md describes what
it writes.
"""

from __future__ import annotations

import sys

from .after_import import after_import
from .settings import Settings


def install() -> None:
    """Arrange that torch is prepared as soon as the script has imported it; does nothing for an ordinary process."""
    settings = Settings.from_environment()
    if not settings.anything_to_do:
        return
    if settings.trace:
        from .executed_lines import ExecutedLines

        lines = ExecutedLines(settings.trace)
        lines.start()
    else:
        lines = None
    if settings.observe and settings.root:
        from .observed_calls import ObservedCalls

        observed = ObservedCalls(settings.root)
        observed.start()
    else:
        observed = None

    def prepare() -> None:
        from .prepare import prepare_torch

        prepare_torch(settings, lines, observed)

    after_import("torch", prepare)
    after_import.forget_at_next_import("sitecustomize", sys.modules.get("sitecustomize"))
