"""Where in the user's code something happens."""

from __future__ import annotations

import os
import sys
from types import FrameType

import torch

TORCH = os.path.dirname(torch.__file__) + os.sep
OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


def user_frame(depth: int = 1) -> FrameType | None:
    """The innermost frame of the stack that is neither torch's nor ours nor the interpreter's own."""
    frame = sys._getframe(depth)
    while frame is not None and is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_place(root: str | None) -> str:
    """`file:line`, relative to the root of the repository: of its innermost frame, else of a library's."""
    first = frame = user_frame(2)
    while frame is not None and root and not os.path.realpath(frame.f_code.co_filename).startswith(os.path.realpath(root)):
        frame = frame.f_back
    frame = frame or first
    if frame is None:
        return "?"
    return f"{relative(frame.f_code.co_filename, root)}:{frame.f_lineno}"


def relative(file: str, root: str | None) -> str:
    """A path as it is named in the repository; unchanged outside of it."""
    path = os.path.realpath(file)
    inside = root is not None and path.startswith(os.path.realpath(root) + os.sep)
    return os.path.relpath(path, os.path.realpath(root)) if inside and root else file


def called_by_user() -> bool:
    """Whether the function that asks was called by code that is neither torch's nor ours."""
    frame = sys._getframe(2)
    return frame is not None and not is_foreign(frame.f_code.co_filename)


def called_by_helper() -> bool:
    """Whether a function that the migration wrote called the one that asks: in a module of helpers, or listed beside code."""
    frame = sys._getframe(2)
    module = os.path.basename(frame.f_code.co_filename)
    return module.startswith("fsdp2_helpers") or frame.f_code.co_name in frame.f_globals.get("HELPERS", ())


def is_foreign(file: str) -> bool:
    """Whether a file is torch's, ours, or none at all."""
    return file.startswith((TORCH, OURS, "<")) or os.path.basename(file) == "contextlib.py"
