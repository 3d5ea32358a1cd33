"""`to-fsdp2 verify`: runs the old and the new script, compares, and says what follows from it."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from ..transforms.findings import Finding
from .options import UsageError, VerifyOptions
from .verdict import Verdict

__all__ = ["UsageError", "VerifyOptions", "verify"]

RECORD_LEVEL = re.compile(r"auto|full|loss|(?:every|first):[1-9]\d*")


def verify(options: VerifyOptions, findings_of: Callable[[Path], list[Finding]] = lambda root: []) -> int:
    """Runs a verification and prints its verdict to stdout (progress goes to stderr).

    `findings_of` says what the codemod finds in a directory, for `bisect` to name the rules of changes.

    Returns 0 equivalent, 1 different, 2 not judged. Raises UsageError for a request that makes no sense (exit code
    64) and KeyboardInterrupt when interrupted, by Ctrl-C, SIGTERM or SIGHUP (130); in every case nothing that it
    started is left: no process, no worktree, no temporary file. (After SIGKILL the next call clears up.)
    """
    check_options(options)
    from .launch import end_by_signal

    end_by_signal()
    from .workspace import open_workspace

    with open_workspace() as workspace:
        if options.save_reference is not None:
            return _save_reference(options, options.save_reference, workspace)
        verdict = _judge(options, workspace, findings_of)
        if verdict is not None and options.report is not None:
            from . import report

            report.write(verdict, options.report)
    if verdict is None:
        print("judged on the machine of rank 0", file=sys.stderr)
        return 0
    _print(verdict, options)
    return verdict.exit_code


def check_options(options: VerifyOptions) -> None:
    """Raises UsageError for what can be seen to be wrong before anything runs."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "numpy")):
        raise UsageError("verify runs training scripts and needs torch, with numpy: pip install 'to-fsdp2[verify]'")
    if not RECORD_LEVEL.fullmatch(options.record):
        raise UsageError(f"--record {options.record}: one of auto, full, loss, every:N, first:N")
    if options.nproc < 1:
        raise UsageError(f"--nproc {options.nproc}: at least one rank")
    if options.timeout <= 0:
        raise UsageError(f"--timeout {options.timeout:g}: seconds, more than 0")
    if options.nnodes != "1" and options.report is None:
        raise UsageError("--nnodes needs --report DIR, a directory that all machines share: the records go there")
    if options.resume and options.mode == "noise":
        raise UsageError("--resume compares bit by bit and needs --mode exact")
    if options.save_reference is not None and (options.reference is not None or options.resume or options.control):
        raise UsageError("--save-reference runs the old side alone: without --reference, --resume and --control")
    if options.bisect and (options.save_reference is not None or options.in_place or options.nnodes != "1"):
        raise UsageError("--bisect makes copies of the new side: without --in-place, --nnodes and --save-reference")
    if options.nnodes != "1" and (options.save_reference or options.reference):
        raise UsageError("--save-reference and --reference are for one machine")
    for name, text in (("--control", options.control), ("--resume-arguments", options.resume_arguments)):
        try:
            shlex.split(text)
        except ValueError as error:
            raise UsageError(f"{name} {text}: {error}") from error


def _judge(options: VerifyOptions, workspace: Path, findings_of: Callable[[Path], list[Finding]]) -> Verdict | None:
    # Everything below reads checkpoints, and with them imports torch.
    from .bisection import bisect
    from .judge import judge, open_session
    from .partial import read_texts
    from .sides import open_sides
    from .terminal import Progress

    if options.report is not None:
        options.report.mkdir(parents=True, exist_ok=True)
    with open_sides(options, workspace) as places:
        session = open_session(options, places, workspace, Progress())
        # What a run writes is no change.
        texts = read_texts(session.changes, places[1]) if options.bisect else []
        verdict = judge(session, workspace)
        if options.bisect and verdict is not None:
            verdict.bisection = bisect(session, verdict, texts, findings_of, workspace)
        return verdict


def _save_reference(options: VerifyOptions, directory: Path, workspace: Path) -> int:
    from . import reference
    from .judge import open_session
    from .sides import open_sides
    from .terminal import Progress

    with open_sides(options, workspace) as places:
        run = reference.save(open_session(options, places, workspace, Progress()), directory)
    if run.failure is not None:
        print(f"not saved: the old run failed: {run.failure}")
        return 2
    if not run.steps:
        print("not saved: the old side never stepped an optimizer")
        return 2
    print(f"reference: {directory}, {run.steps} steps on {run.ranks} ranks")
    return 0


def _print(verdict: Verdict, options: VerifyOptions) -> None:
    if options.format == "json":
        json.dump(verdict.to_json(), sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    from .terminal import print_verdict

    # Without a terminal rich would wrap at 80 columns; a log has no width.
    console = Console(highlight=False, force_terminal=options.color, no_color=options.color is False or None)
    print_verdict(verdict, console)
    if options.report is not None:
        console.print(f"report: {options.report / 'report.html'}", soft_wrap=True)
