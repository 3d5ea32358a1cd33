"""What every reporting command does: resolve the request, run it, put the report where it belongs."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from ..transforms.findings import UserError
from ..transforms.rule import all_rules
from . import exits, report_json, report_markdown, report_text
from .collector import paused_collector
from .options import Format, Request, Run
from .pipeline import Migration, migrate
from .progress import progress_on
from .report import Report, build_report
from .writer import WriteError, write_atomically


def run(request: Request, resolved: Run) -> tuple[Migration, Report]:
    """Carry out a resolved request, with a progress bar on stderr where that is a terminal."""
    with paused_collector(), progress_on(Console(stderr=True)) as progress:
        migration = migrate(resolved.workspace, resolved.options, resolved.jobs, progress)
    return migration, build_report(migration, resolved.target_torch, request.show_ok)


def deliver(report: Report, request: Request) -> None:
    """Write the report to stdout or to `--output`, and its summary line to stderr."""
    if request.output is None:
        if request.format == "text":
            report_text.render(report, Console())
        else:
            write_stdout(rendered(report, request.format).encode("utf-8", "surrogateescape"))
    else:
        save(rendered(report, request.format).encode("utf-8", "surrogateescape"), request.output)
    summarise(report)


def summarise(report: Report) -> None:
    """What people want to know beside the document, on stderr."""
    if report.note:
        say(report.note)
    say(report.summary)


def rendered(report: Report, form: Format) -> str:
    """The report as a text of the given format, without colours."""
    if form == "json":
        return report_json.render(report)
    if form == "markdown":
        return report_markdown.render(report)
    if form == "sarif":
        from . import report_sarif

        return report_sarif.render(report, all_rules())
    if form == "html":
        from . import report_html

        return report_html.render(report, all_rules())
    console = Console(color_system=None, force_terminal=False, width=10_000)
    with console.capture() as capture:
        report_text.render(report, console)
    return capture.get()


def save(data: bytes, file: Path) -> None:
    """Write a document, to a file whole or not at all. Raises UserError."""
    try:
        if file.exists() and not file.is_file():
            file.write_bytes(data)  # a pipe or a device must not be replaced by a file
        else:
            write_atomically(file, data)
    except WriteError as error:
        raise UserError(f"--output {file}: {error.reason}") from error
    except OSError as error:
        raise UserError(f"--output {file}: {error.strerror}") from error


def write_stdout(data: bytes) -> None:
    """Bytes as they are: a patch holds every encoding that its files have."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def say(line: str) -> None:
    """A line for people, beside the document."""
    print(line, file=sys.stderr)


def failed_files(report: Report) -> int:
    """The exit bit for files that could not be processed."""
    return exits.FAILED_FILES if report.errors else exits.DONE
