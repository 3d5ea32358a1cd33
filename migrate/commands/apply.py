"""`to-fsdp2 apply`: writes the migration."""

from __future__ import annotations

from typing import Annotated

import typer

from ...transforms.findings import FileError, Level, UserError
from .. import exits, git, options
from ..git_commits import branch_of, move_branch, write_commits
from ..in_commits import half_migrated, in_commits
from ..interactive import choose
from ..options import Request, Run, resolve
from ..pipeline import Migration
from ..report import Report
from ..reporting import deliver, failed_files, run, summarise
from ..signals import Ended
from ..terminal import announce, say, write_stdout
from ..tidy import take_out_unused
from ..undo import ReversePatch, settle_unfinished
from ..writer import Change, WriteError, write_all

Interactive = Annotated[bool, typer.Option("--interactive", "-i", help="Ask about each change, with its reason.")]
Commits = Annotated[
    bool, typer.Option("--commits", help="Commit it: first what works under both wrappers, then one commit for each program.")
]
Tidy = Annotated[bool, typer.Option("--tidy", help="Also take helpers out that no code uses any more.")]
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
    helpers: options.Helpers = None,
    stdin_filename: options.StdinFilename = None,
    trace: options.TraceOption = None,
    interactive: Interactive = False,
    commits: Commits = False,
    tidy: Tidy = False,
    allow_dirty: AllowDirty = False,
) -> int:
    """Write the migration, and say how to undo it. Refuses a git tree with uncommitted changes.

    All files are written or none: the next run undoes what one that was killed has left. The reverse patch is kept, and
    named first. With `-`, the file comes from stdin and goes to stdout.

    Exit codes: 0 nothing is left to do, 1 review or manual findings remain to be looked at, 2 some files
    could not be processed (3: both), 64 wrong usage or a dirty tree, 70 internal error, 130 interrupted.
    """
    request = Request(
        paths, format, output, level, select, ignore, exclude, jobs, target_torch, ddp, checkpoint, helpers,
        stdin_filename=stdin_filename, trace=trace,
    )  # fmt: skip
    resolved = resolve(request)
    if resolved.from_stdin:
        return _apply_to_stdin(request, resolved)
    if settled := settle_unfinished(resolved.workspace.root):
        for line in settled:
            say(line)
        resolved = resolve(request)
    if commits and interactive:
        raise UserError("--interactive and --commits exclude each other: choose first, then commit")
    if tidy and (commits or interactive):
        raise UserError("--tidy goes alone: commit or choose first")
    if commits:
        _require_repository(resolved, allow_dirty)
    _require_clean_tree(resolved, allow_dirty)
    migration, report = run(request, resolved)
    if interactive:
        choose(migration, report)
    if tidy:
        take_out_unused(migration, report)
    undo = _commit(request, migration, report) if commits else _write(migration, report)
    deliver(report, request)
    for line in undo:
        say(line)
    return _exit_code(report)


def _exit_code(report: Report) -> int:
    remains = any(finding.level in (Level.REVIEW, Level.MANUAL) for finding in report.open)
    return (exits.REMAINS if remains else exits.DONE) | failed_files(report)


def _apply_to_stdin(request: Request, resolved: Run) -> int:
    """The new text on stdout, or the old one where nothing changes; nothing is written."""
    migration, report = run(request, resolved)
    texts = resolved.workspace.given | {change.label: change.new for change in migration.changes}
    for label in resolved.workspace.given:
        write_stdout(texts.pop(label))
    report.notes += [f"the text needs {resolved.workspace.display(label)}: `diff -` shows it" for label in texts]
    if request.output is not None:
        deliver(report, request)
    else:
        summarise(report)
    return _exit_code(report)


def _require_clean_tree(resolved: Run, allow_dirty: bool) -> None:
    """Edits must not be mixed up with the user's own; checked before any work is done."""
    workspace = resolved.workspace
    if allow_dirty or not workspace.in_repository:
        return
    changed = git.changed_files(workspace.root, map(workspace.path, workspace.files))
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise UserError(
            f"uncommitted changes in {workspace.display(changed[0])}{more}: commit or stash them first, so "
            "that the migration can be undone, or use --allow-dirty"
        )


def _require_repository(resolved: Run, allow_dirty: bool) -> None:
    if allow_dirty or not resolved.workspace.in_repository:
        raise UserError("--commits needs a git repository without uncommitted changes")
    branch_of(resolved.workspace.root)


def _commit(request: Request, migration: Migration, report: Report) -> list[str]:
    """Write and commit all changes; returns the commits and how to undo them, in lines."""
    root = migration.workspace.root
    resolved = resolve(request)
    half, _ = run(request, Run(resolved.workspace, half_migrated(resolved.options), resolved.jobs))
    commits, final = in_commits(half, migration)
    old = {change.label: change.old for change in (*half.changes, *migration.changes)}
    strange = [label for label in final if (root / label).is_symlink() or git.repository_of((root / label).parent) != root]
    if strange:
        raise UserError(f"--commits: {migration.workspace.display(strange[0])} is a link, or of another repository")
    branch = branch_of(root)
    made = write_commits(root, commits)
    migration.changes = [Change(label, root / label, old[label], new) for label, new in sorted(final.items())]
    undo = _write(migration, report)
    if not report.written:
        return []
    move_branch(root, branch, made[-1])
    lines = [f"{name[:12]} {commit.message.partition(chr(10))[0]}" for name, commit in zip(made, commits, strict=True)]
    if len(made) > 1:
        sides = f"--old HEAD~{len(made)} --new HEAD~{len(made) - 1}"
        lines.append(f"to see that the first changes nothing: to-fsdp2 verify {sides} -- SCRIPT")
    return [*lines, f"to undo: git revert, or {undo[0].removeprefix('to undo: ')}"]


def _write(migration: Migration, report: Report) -> list[str]:
    """Write all changes; returns how to undo them, in lines."""
    if not migration.changes:
        return []
    root = migration.workspace.root
    patch = ReversePatch(root, migration.changes)
    try:
        announce(f"the reverse patch is {patch.path}")  # first, for whatever comes
        write_all(migration.changes, root)
    except WriteError as error:
        patch.drop()
        file = migration.workspace.display(error.label)
        report.errors.append(FileError(file, None, f"{error.reason}; nothing was written"))
        report.patches.clear()
        return []
    except Ended as ended:
        if not ended.done:
            patch.drop()
        raise
    except BaseException:
        patch.drop()
        raise
    report.written = True
    return [f"to undo: {patch.command}"]
