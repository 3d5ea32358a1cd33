"""`to-fsdp2 demo`: a bundled repository, migrated and verified."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ...transforms.findings import UserError
from .. import exits, report_text
from ..options import Request, resolve
from ..report import Report
from ..reporting import rendered, run, save
from ..terminal import Terminal, say
from ..writer import write_all

Folder = Annotated[
    Path | None,
    typer.Option("--directory", metavar="DIR", help="Where to put it. Default: a new temporary folder."),
]


def demo(directory: Folder = None) -> int:
    """Migrate a bundled repository, run old against new on two CPU ranks, and say where the report is.

    Exit codes: 0 equivalent, 1 different, 2 not judged (torch is missing, or a run failed), 64 wrong usage,
    70 internal error, 130 interrupted.
    """
    folder = _empty_folder(directory)
    old, new = folder / "old", folder / "new"
    _copy_repository(old)
    _copy_repository(new)
    report = _migrate(new)
    save(b"".join(patch for _, patch in report.patches), folder / "migration.patch")
    save(rendered(report, "html").encode(), folder / "migration.html")
    say("")
    say(report.summary)
    say(f"The migration: {folder / 'migration.patch'}, explained in {folder / 'migration.html'}")
    say("")
    if any(importlib.util.find_spec(name) is None for name in ("torch", "numpy")):
        say("To run old against new, install torch: pip install 'to-fsdp2[verify]'")
        return exits.FAILED_FILES
    return _verify(old, new, folder / "verdict")


def _empty_folder(directory: Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="to-fsdp2-demo-"))
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"--directory {directory}: exists and is not an empty folder")
    directory.mkdir(parents=True, exist_ok=True)
    return directory.resolve()


def _copy_repository(target: Path) -> None:
    from ...corpus.cases import DEMO_FOLDER

    shutil.copytree(DEMO_FOLDER, target, ignore=shutil.ignore_patterns("__pycache__"))


def _migrate(folder: Path) -> Report:
    """Rewrite the repository in place; its report goes to stdout."""
    os.chdir(folder)  # reports show paths from the working directory
    request = Request(["."], show_safe=True)
    migration, report = run(request, resolve(request))
    write_all(migration.changes, folder)
    report.written = True
    report_text.render(report, Terminal())
    return report


def _verify(old: Path, new: Path, report: Path) -> int:
    from ...equivalence import command
    from ...equivalence.options import VerifyOptions

    options = VerifyOptions(command=["train.py"], old=str(old), new=str(new), nproc=2, device="cpu", report=report)
    return command.verify(options)
