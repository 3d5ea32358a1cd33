"""What every reporting command does: resolve the request, run it, put the report where it belongs."""

from __future__ import annotations

import os
from pathlib import Path

from ..transforms.findings import UserError
from ..transforms.rule import all_rules
from . import exits, git, report_json, report_markdown, report_text
from .collector import paused_collector
from .options import Format, Request, Run
from .pipeline import Migration, migrate
from .progress import progress_on
from .report import Report, build_report
from .terminal import Terminal, say, write_stdout
from .undo import note_on_unfinished
from .writer import WriteError, is_inside, write_atomically


def run(request: Request, resolved: Run) -> tuple[Migration, Report]:
    """Carry out a resolved request, with a progress bar on stderr where that is a terminal."""
    with paused_collector(), progress_on(Terminal(stderr=True)) as progress:
        migration = migrate(resolved.workspace, resolved.options, resolved.jobs, progress)
    report = build_report(migration, resolved.target_torch)
    report.show_safe, report.show_ok = request.show_safe or request.show_ok, request.show_ok
    report.notes += resolved.notes if report.patches else []
    report.notes += resolved.warnings
    report.notes += note_on_unfinished(resolved.workspace.root)
    return migration, report


def deliver(report: Report, request: Request) -> None:
    """Write the report to stdout or to `--output`, and its summary line to stderr."""
    if request.output is None:
        if request.format == "text":
            report_text.render(report, Terminal())
        else:
            write_stdout(rendered(report, request.format).encode("utf-8", "surrogateescape"))
    else:
        save(rendered(report, request.format).encode("utf-8", "surrogateescape"), request.output)
    summarise(report)


def summarise(report: Report) -> None:
    """What people want to know beside the document, on stderr."""
    for note in report.notes:
        say(note)
    say(report.summary)


def rendered(report: Report, form: Format) -> str:
    """The report as a text of the given format, without colours."""
    if form == "json":
        return report_json.render(report)
    if form == "markdown":
        return report_markdown.render(report)
    if form == "github":
        from . import report_github

        return report_github.render(report)
    if form == "sarif":
        from . import report_sarif

        return report_sarif.render(report, all_rules())
    if form == "html":
        from . import report_html

        return report_html.render(report, all_rules())
    console = Terminal(color_system=None, force_terminal=False, width=10_000)
    with console.capture() as capture:
        report_text.render(report, console)
    return capture.get()


def save(data: bytes, file: Path, option: str = "--output") -> None:
    """Write a document, to a file whole or not at all. Raises UserError, which names the option that gave the file."""
    try:
        if file.is_symlink() and not _stays_near(file):
            raise UserError(f"{option} {file}: is a link that leads elsewhere; name the file itself")
        if file.exists() and not file.is_file():
            file.write_bytes(data)  # a pipe or a device must not be replaced by a file
        else:
            write_atomically(file, data)
    except WriteError as error:
        raise UserError(f"{option} {file}: {error.reason}") from error
    except OSError as error:
        raise UserError(f"{option} {file}: {error.strerror}") from error


def _stays_near(link: Path) -> bool:
    """Whether a link can be written through: a repository must not choose which of its user's files is replaced."""
    target = Path(os.path.realpath(link))
    root = git.repository_of(Path(os.path.realpath(link.parent)))
    return root is None or is_inside(target, root)


def failed_files(report: Report) -> int:
    """The exit bit for files that could not be processed."""
    return exits.FAILED_FILES if report.errors else exits.DONE
