"""Which checkpoints are written and read: the files are compared later, from disk."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import torch

from .after_import import after_import
from .patching import Function, wrap

if TYPE_CHECKING:
    from .recorder import Recorder

_MOST_KEYS = 100


def install(recorder: Recorder) -> None:
    """Watch torch.save and load and, once they are imported, safetensors and Distributed Checkpoint."""
    watch = _Watch(recorder)
    wrap(torch, "save", watch.around("torch", "save", data=(0, "obj"), path=(1, "f")))
    wrap(torch, "load", watch.around("torch", "load", data=None, path=(0, "f")))

    def safetensors() -> None:
        # While its import is under way the package does not have the attribute yet; the `as` form finds it all the same.
        import safetensors.torch as library  # pyright: ignore[reportMissingImports]

        saving = watch.around("safetensors", "save", data=(0, "tensors"), path=(1, "filename"))
        wrap(library, "save_file", saving)
        wrap(library, "load_file", watch.around("safetensors", "load", data=None, path=(0, "filename")))

    def distributed() -> None:
        import torch.distributed.checkpoint as dcp

        for name in ("save", "async_save", "save_state_dict", "load", "load_state_dict"):
            action = "save" if "save" in name else "load"
            wrapper = watch.around("dcp", action, (0, "state_dict"), (None, "checkpoint_id"), name == "async_save")
            wrap(dcp, name, wrapper)

    after_import("safetensors.torch", safetensors)
    after_import("torch.distributed.checkpoint", distributed)


class _Watch:
    """Wraps the functions; what one of them does inside another one is not an event of its own."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._calls = 0
        self._inside = False

    def around(
        self,
        kind: str,
        action: str,
        data: tuple[int, str] | None,
        path: tuple[int | None, str],
        asynchronous: bool = False,
    ) -> Any:
        """A wrapper for `wrap`; `data` and `path` say where those arguments are, by position and keyword."""

        def wrapper(original: Function) -> Function:
            def call(*args: Any, **kwargs: Any) -> Any:
                # async_save writes from a thread of its own, after it has returned.
                if self._inside or threading.current_thread() is not threading.main_thread():
                    return original(*args, **kwargs)
                self._recorder.before_checkpoint()
                self._inside = True
                try:
                    result = original(*args, **kwargs)
                finally:
                    self._inside = False
                content = _argument(args, kwargs, data) if data is not None else result
                self._recorder.event(
                    "checkpoint",
                    kind=kind,
                    action=action,
                    path=_path(_argument(args, kwargs, path)) or _storage_path([*args, *kwargs.values()]),
                    call=self._calls,
                    asynchronous=asynchronous,
                    keys=_keys(content),
                )
                self._calls += 1
                return result

            return call

        return wrapper


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: tuple[int | None, str]) -> Any:
    position, keyword = place
    if keyword in kwargs or position is None:
        return kwargs.get(keyword)
    return args[position] if position < len(args) else None


def _path(target: Any) -> str | None:
    """The absolute path of a path or an open file; None for a buffer in memory."""
    if not isinstance(target, (str, os.PathLike)):
        target = getattr(target, "name", None)
    return os.path.abspath(target) if isinstance(target, (str, os.PathLike)) else None


def _storage_path(arguments: list[Any]) -> str | None:
    """Where a storage reader or writer of Distributed Checkpoint works."""
    for argument in arguments:
        if hasattr(argument, "read_metadata") or hasattr(argument, "set_up_storage_writer"):
            return _path(getattr(argument, "path", None))
    return None


def _keys(content: Any) -> list[str] | None:
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        return None
    return list(content)[:_MOST_KEYS]
