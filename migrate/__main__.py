"""The command `to-fsdp2`."""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from ..transforms.findings import UserError
from . import exits
from .commands.apply import apply
from .commands.brief import brief
from .commands.check import check
from .commands.demo import demo
from .commands.diff import diff
from .commands.rules import rules
from .commands.scan import scan
from .commands.trace import trace
from .commands.verify import verify
from .signals import Ended, raise_on_signals
from .terminal import say

app = typer.Typer(
    name="to-fsdp2",
    help="Move PyTorch training code from FSDP1 and DDP to FSDP2, and prove that training is the same.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # `[verify]` in a help text is no markup
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (scan, diff, apply, brief, check, rules, demo):
    app.command()(command)
for command in (trace, verify):
    app.command(context_settings={"allow_interspersed_args": False})(command)

# typer brings its own copy of click from 0.26 on; this is the base of usage errors in either.
_UsageError: Any = typer.BadParameter.__base__


def _show_version(value: bool) -> None:
    if value:
        print(f"to-fsdp2 {version('to-fsdp2')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True)] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with the code that `--help` documents."""
    raise_on_signals()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a console's encoding must not end a run
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run the command line; returns the exit code."""
    try:
        code = app(arguments or ["--help"], prog_name="to-fsdp2", standalone_mode=False)
        return code if isinstance(code, int) else exits.DONE
    except _UsageError as error:
        _complain(error.format_message())
        if error.ctx is not None:
            say(f"`{error.ctx.command_path} --help` lists the options")
        return exits.USAGE
    except UserError as error:
        _complain(str(error))
        return exits.USAGE
    except Ended as ended:
        what = "interrupted" if ended.number == signal.SIGINT else f"ended by {signal.Signals(ended.number).name}"
        _complain(f"{what}; {ended.done}" if ended.done else what)
        return 128 + ended.number  # as a shell gives it
    except (KeyboardInterrupt, EOFError, typer.Abort):
        _complain("interrupted")
        return exits.INTERRUPTED
    except Exception as error:  # the last line of defence, for one line in place of a traceback
        if os.environ.get("TO_FSDP2_TRACEBACK"):
            raise
        _complain(
            f"internal error: {type(error).__name__}: {error}. Please report it, with the traceback that "
            "TO_FSDP2_TRACEBACK=1 shows"
        )
        return exits.INTERNAL


def _complain(message: str) -> None:
    say(f"to-fsdp2: {message}")


if __name__ == "__main__":
    main()
