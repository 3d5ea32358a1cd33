"""`to-fsdp2 check`: the gate for CI."""

from __future__ import annotations

from .. import exits, options
from ..options import Request, resolve
from ..reporting import deliver, failed_files, run


def check(
    paths: options.Paths = None,
    format: options.FormatOption = "text",
    output: options.Output = None,
    select: options.Select = None,
    ignore: options.Ignore = None,
    exclude: options.Exclude = None,
    jobs: options.Jobs = None,
    target_torch: options.TargetTorch = None,
    ddp: options.DdpOption = None,
    checkpoint: options.CheckpointOption = None,
    helpers: options.Helpers = None,
    stdin_filename: options.StdinFilename = None,
) -> int:
    """Fail when something remains to be migrated or breaks the FSDP2 contract. Changes nothing.

    A comment `# to-fsdp2: ignore[FS301] reason` takes a finding off the list.

    Exit codes: 0 clean, 1 there are findings, 2 some files could not be processed (3: both), 64 wrong usage,
    70 internal error, 130 interrupted.
    """
    request = Request(
        paths, format, output, None, select, ignore, exclude, jobs, target_torch, ddp, checkpoint, helpers, show_safe=True,
        stdin_filename=stdin_filename,
    )
    _, report = run(request, resolve(request))
    deliver(report, request)
    return (exits.REMAINS if report.open else exits.DONE) | failed_files(report)
