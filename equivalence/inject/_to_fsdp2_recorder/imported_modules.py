"""Where the modules that a training process imported came from."""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import Any


class ImportedModules:
    """Collects the files of modules; one that was seen once is kept, also if the script takes it out of sys.modules."""

    def __init__(self) -> None:
        self._standard = tuple(_folder(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
        self._installed = tuple(_folder(sysconfig.get_path(name)) for name in ("purelib", "platlib"))
        self._own = _folder(os.path.dirname(os.path.abspath(__file__)))
        self._files: dict[str, str] = {}
        self._packages: dict[str, str] = {}

    def as_fields(self) -> dict[str, Any]:
        """The fields of the `modules` event: files of the repository's own modules, and of installed packages."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and os.path.exists(file):
                self._add(name, os.path.abspath(file))
        return {"files": self._files, "installed": self._packages, "main": self._files.get("__main__")}

    def _add(self, name: str, file: str) -> None:
        if file.startswith(self._own):
            return
        # site-packages lies inside the standard library's folder: ask for it first.
        if file.startswith(self._installed) or "site-packages" in file:
            self._packages.setdefault(name.partition(".")[0], file)
        elif not file.startswith(self._standard):
            self._files.setdefault(name, file)


def _folder(path: str) -> str:
    return os.path.abspath(path) + os.sep
