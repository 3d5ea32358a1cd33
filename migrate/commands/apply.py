"""`to-fsdp2 apply`: writes the migration."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ...transforms.findings import FileError, Level, UserError
from .. import exits, git, options
from ..options import Request, Run, resolve
from ..pipeline import Migration
from ..report import Report
from ..reporting import deliver, failed_files, run, say
from ..writer import WriteError, write_all

AllowDirty = Annotated[bool, typer.Option("--allow-dirty", help="Write although git has uncommitted changes.")]


def apply(
    paths: options.Paths = None,
    format: options.FormatOption = "text",
    output: options.Output = None,
    level: options.LevelOption = None,
    select: options.Select = None,
    ignore: options.Ignore = None,
    exclude: options.Exclude = None,
    jobs: options.Jobs = None,
    target_torch: options.TargetTorch = None,
    ddp: options.DdpOption = None,
    checkpoint: options.CheckpointOption = None,
    annotate: options.Annotate = False,
    allow_dirty: AllowDirty = False,
) -> int:
    """Write the migration, and say how to undo it. Refuses a git tree with uncommitted changes.

    Every file is old or new at any moment, and a group (a model, its optimizers, its checkpoints) is
    written whole or not at all.

    Exit codes: 0 nothing is left to do, 1 review or manual findings remain to be looked at, 2 some files
    could not be processed (3: both), 64 wrong usage or a dirty tree, 70 internal error, 130 interrupted.
    """
    request = Request(
        paths, format, output, level, select, ignore, exclude, jobs, target_torch, ddp, checkpoint, annotate
    )
    resolved = resolve(request)
    clean = _require_clean_tree(resolved, allow_dirty)
    migration, report = run(request, resolved)
    undo = _write(migration, report, clean)
    deliver(report, request)
    for line in undo:
        say(line)
    remains = any(finding.level in (Level.REVIEW, Level.MANUAL) for finding in report.open)
    return (exits.REMAINS if remains else exits.DONE) | failed_files(report)


def _require_clean_tree(resolved: Run, allow_dirty: bool) -> bool:
    """Whether git can take the edits back; checked before any work is done."""
    workspace = resolved.workspace
    if not workspace.in_repository:
        return False
    if allow_dirty:
        return False
    changed = git.changed_files(workspace.root, workspace.paths)
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise UserError(
            f"uncommitted changes in {workspace.display(changed[0])}{more}: commit or stash them first, so "
            "that the migration can be undone, or use --allow-dirty"
        )
    return True


def _write(migration: Migration, report: Report, clean: bool) -> list[str]:
    """Write all changes; returns how to undo them, in lines."""
    if not migration.changes:
        return []
    undo = _undo_with_git(migration) if clean else _undo_with_patch(migration, report)
    try:
        write_all(migration.changes)
    except WriteError as error:
        file = migration.workspace.display(error.label)
        report.errors.append(FileError(file, None, f"{error.reason}; nothing was written"))
        report.patches.clear()
        return []
    return undo


def _undo_with_git(migration: Migration) -> list[str]:
    root = migration.workspace.root
    display = migration.workspace.display
    changed = [display(change.label) for change in migration.changes if change.old is not None]
    added = [display(change.label) for change in migration.changes if change.old is None]
    commands = []
    if changed:
        # The tree was clean, so everything that now differs is the migration's.
        commands.append(f"git -C {shlex.quote(str(root))} restore .")
    if added:
        commands.append("rm " + shlex.join(added))
    return ["to undo: " + " && ".join(commands)]


def _undo_with_patch(migration: Migration, report: Report) -> list[str]:
    """Without a clean tree to go back to, the patch itself is kept."""
    folder = Path(tempfile.mkdtemp(prefix="to-fsdp2-"))
    patch = folder / "migration.patch"
    patch.write_bytes(b"".join(patch for _, patch in report.patches))
    root = migration.workspace.root
    reason = "the tree was not checked" if migration.workspace.in_repository else "this is not a git repository"
    return [f"{reason}; to undo: cd {shlex.quote(str(root))} && git apply -R {shlex.quote(str(patch))}"]
