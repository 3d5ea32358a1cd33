"""`to-fsdp2 check`: the gate for CI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...transforms.findings import Finding, UserError
from ...transforms.selection import named
from .. import exits, options, rule_counts
from ..baseline import known, read, render, split
from ..options import Request, Run, resolve
from ..report import Report
from ..reporting import deliver, failed_files, run, save, summarise
from ..terminal import write_stdout

Select = Annotated[
    list[str] | None, typer.Option("--select", metavar="RULES", help="Only these rules, as FS9 or FS301,FS4; repeatable.")
]
Ignore = Annotated[list[str] | None, typer.Option("--ignore", metavar="RULES", help="Not these rules; repeatable.")]
Baseline = Annotated[
    Path | None, typer.Option("--baseline", metavar="FILE", help="Findings that are known: only others are listed and fail.")
]
WriteBaseline = Annotated[bool, typer.Option("--write-baseline", help="Write what is found to the file of --baseline.")]
Statistics = Annotated[bool, typer.Option("--statistics", help="How often each rule speaks, in place of the findings.")]


def check(
    paths: options.Paths = None,
    format: options.FormatOption = "text",
    output: options.Output = None,
    select: Select = None,
    ignore: Ignore = None,
    exclude: options.Exclude = None,
    jobs: options.Jobs = None,
    target_torch: options.TargetTorch = None,
    ddp: options.DdpOption = None,
    checkpoint: options.CheckpointOption = None,
    helpers: options.Helpers = None,
    stdin_filename: options.StdinFilename = None,
    baseline: Baseline = None,
    write_baseline: WriteBaseline = False,
    statistics: Statistics = False,
) -> int:
    """Fail when something remains to be migrated or breaks the FSDP2 contract. Changes nothing.

    A comment `# to-fsdp2: ignore[FS301] reason` takes a finding off the list.

    Exit codes: 0 clean, 1 there are findings, 2 some files could not be processed (3: both), 64 wrong usage,
    70 internal error, 130 interrupted.
    """
    if write_baseline and baseline is None:
        raise UserError("--write-baseline needs --baseline FILE, the file to write")
    if statistics and format not in ("text", "json"):
        raise UserError(f"--statistics: there are none as {format}; --format text or json")
    request = Request(
        paths, format, output, None, select, ignore, exclude, jobs, target_torch, ddp, checkpoint, helpers, show_safe=True,
        stdin_filename=stdin_filename, contract=True,
    )
    resolved = resolve(request)
    _, report = run(request, resolved)
    report.findings = [finding for finding in report.findings if _is_chosen(finding, resolved)]
    if baseline is not None:
        _compare(report, baseline, write_baseline)
    if statistics:
        _count(report, request)
    else:
        deliver(report, request)
    return (exits.REMAINS if report.open else exits.DONE) | failed_files(report)


def _is_chosen(finding: Finding, resolved: Run) -> bool:
    if resolved.select and not named(finding.rule, resolved.select):
        return False
    return not named(finding.rule, resolved.ignore)


def _compare(report: Report, file: Path, write: bool) -> None:
    """Take what a baseline knows out of the report, after making the baseline if that is asked for."""
    entries = known(report.open, [report.fingerprints[finding.id] for finding in report.open], file.absolute().parent)
    if write:
        save(render(entries), file, "--baseline")
    new, gone = split(entries, read(file))
    left_out = {finding.id for finding, is_new in zip(report.open, new, strict=True) if not is_new}
    report.findings = [finding for finding in report.findings if finding.id not in left_out]
    report.notes.append(f"findings that the baseline knows: {len(left_out)}")
    if gone:
        report.notes.append(f"findings of the baseline that are gone: {gone}; --write-baseline takes them out")


def _count(report: Report, request: Request) -> None:
    document = rule_counts.as_json(report) if request.format == "json" else rule_counts.as_text(report)
    if request.output is None:
        write_stdout(document.encode())
    else:
        save(document.encode(), request.output)
    summarise(report)
