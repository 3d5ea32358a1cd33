"""`to-fsdp2 scan`: what is here, what will happen to each site and why."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import exits, options
from ..options import Request, resolve
from ..reporting import deliver, failed_files, run


def scan(
    paths: options.Paths = None,
    format: options.FormatOption = "text",
    output: options.Output = None,
    show_ok: Annotated[bool, typer.Option("--all", help="Also list sites that are right as they stand.")] = False,
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
    """Show every FSDP1 and DDP site, what will happen to it and why. Changes nothing.

    Exit codes: 0 done, 2 some files could not be processed, 64 wrong usage, 70 internal error, 130
    interrupted.
    """
    request = Request(
        paths,
        format,
        output,
        level,
        select,
        ignore,
        exclude,
        jobs,
        target_torch,
        ddp,
        checkpoint,
        helpers,
        show_ok=show_ok,
        stdin_filename=stdin_filename,
        trace=trace,
    )
    _, report = run(request, resolve(request))
    deliver(report, request)
    return exits.DONE | failed_files(report)
