"""What other programs may call; the command line is made of the same."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .options import Request, resolve
from .report import Report
from .reporting import run

__all__ = ["Report", "scan"]


def scan(paths: Iterable[str | Path] = (".",), **options: Any) -> Report:
    """What `to-fsdp2 scan` finds, and the patches that `diff` prints; nothing is written.

    `options` are those of the command line, with underscores (`target_torch="2.8"`, `ddp="keep"`). A report has
    `findings`, `errors`, `programs`, and `patches`: pairs of a file and the bytes of its patch. Raises
    `to_fsdp2.transforms.findings.UserError` for what the command line answers with exit code 64.
    """
    request = Request([str(path) for path in paths], **options)
    return run(request, resolve(request))[1]
