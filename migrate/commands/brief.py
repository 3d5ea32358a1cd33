"""`to-fsdp2 brief`: what is left, for whoever does it."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from ...transforms.findings import Level
from .. import brief as page
from .. import exits, git, options
from ..options import Request, resolve
from ..reporting import failed_files, run, save, summarise
from ..revision import look_at
from ..terminal import write_stdout

Old = Annotated[
    str | None, Option("--old", metavar="REF", help="The commit before the migration. Default: HEAD, or the files as they are.")
]


def brief(
    paths: options.Paths = None,
    output: options.Output = None,
    old: Old = None,
    select: options.Select = None,
    ignore: options.Ignore = None,
    exclude: options.Exclude = None,
    jobs: options.Jobs = None,
    target_torch: options.TargetTorch = None,
    ddp: options.DdpOption = None,
) -> int:
    """Print what is left to a person or a coding agent, as a page of Markdown. Changes nothing.

    The migration may have been applied already, as long as --old is a commit from before it: each place is shown as it was
    and as it is. Per stop: the lines, the evidence, what to write and why, and the `verify` command that judges the result.

    Exit codes: 0 nothing is left, 1 there are stops or places to read, 2 some files could not be processed (3: both),
    64 wrong usage, 70 internal error, 130 interrupted.
    """
    request = Request(
        paths, output=output, select=select, ignore=ignore, exclude=exclude, jobs=jobs, target_torch=target_torch, ddp=ddp
    )
    resolved = resolve(request)
    workspace = resolved.workspace
    if old is not None or (workspace.in_repository and git.files_at(workspace.root, "HEAD") is not None):
        look_at(workspace, old or "HEAD")
    migration, report = run(request, resolved)
    text = page.render(migration, report).encode("utf-8", "surrogateescape")
    if output is not None:
        save(text, output)
    else:
        write_stdout(text)
    summarise(report)
    remains = any(finding.level in (Level.REVIEW, Level.MANUAL) for finding in report.open)
    return (exits.REMAINS if remains else exits.DONE) | failed_files(report)
