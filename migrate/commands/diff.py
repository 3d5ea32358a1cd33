"""`to-fsdp2 diff`: the patch."""

from __future__ import annotations

import sys

from .. import exits, options, report_text
from ..options import Request, resolve
from ..report import Report
from ..reporting import deliver, failed_files, run, save, summarise
from ..terminal import Terminal, say, write_stdout


def diff(
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
) -> int:
    """Print the patch on stdout, for `git apply`; the summary goes to stderr. Changes nothing.

    Exit codes: 0 the patch is empty, 1 it is not, 2 some files could not be processed (3: both), 64 wrong
    usage, 70 internal error, 130 interrupted.
    """
    request = Request(
        paths, format, output, level, select, ignore, exclude, jobs, target_torch, ddp, checkpoint, helpers,
        stdin_filename=stdin_filename, trace=trace,
    )  # fmt: skip
    resolved = resolve(request)
    _, report = run(request, resolved)
    if format == "text":
        _deliver_patch(report, request)
    else:
        deliver(report, request)
    return (exits.REMAINS if report.patches else exits.DONE) | failed_files(report)


def _deliver_patch(report: Report, request: Request) -> None:
    patch = b"".join(patch for _, patch in report.patches)
    if request.output is not None:
        save(patch, request.output)
    elif sys.stdout.isatty():
        report_text.render_patch(patch, Terminal())
    else:
        write_stdout(patch)
    for error in report.errors:
        say(f"{error.file}{f':{error.line}' if error.line else ''}: {error.message}")
    summarise(report)
