"""Where the modules that a training process imported came from."""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import Any


def imported_modules() -> dict[str, Any]:
    """The fields of the `modules` event: files of the repository's own modules, and of installed packages."""
    standard = tuple(_folder(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
    installed = tuple(_folder(sysconfig.get_path(name)) for name in ("purelib", "platlib"))
    own = os.path.dirname(os.path.abspath(__file__)) + os.sep
    files: dict[str, str] = {}
    packages: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            continue
        file = os.path.abspath(file)
        # site-packages lies inside the standard library's folder: ask for it first.
        if file.startswith(own):
            continue
        if file.startswith(installed) or "site-packages" in file:
            packages.setdefault(name.partition(".")[0], file)
        elif not file.startswith(standard):
            files[name] = file
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return {"files": files, "installed": packages, "main": os.path.abspath(main) if main else None}


def _folder(path: str) -> str:
    return os.path.abspath(path) + os.sep
