"""`to-fsdp2 trace`: what a run of the old program shows that its text does not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ...transforms.findings import UserError
from . import verify

Script = Annotated[
    list[str] | None,
    Argument(metavar="-- SCRIPT ARG", help="The script (or -m module) and its arguments, for a few steps of training."),
]
TraceFile = Annotated[Path, Option("--output", "-o", metavar="FILE", help="Write the trace here.")]


def trace(
    command: Script = None,
    output: TraceFile = Path("trace.json"),
    nproc: verify.Ranks = 2,
    launcher: verify.Launcher = "auto",
    timeout: verify.Timeout = 1800.0,
    device: verify.Device = "auto",
    untracked: verify.Untracked = "copy",
    in_place: verify.InPlace = False,
) -> int:
    """Run the program once and write down what `scan --trace FILE` can use: which code registries and plugins chose.

    Needs torch: pip install 'to-fsdp2[verify]'.

    Exit codes: 0 written, 2 the run failed or wrapped no model, 64 wrong usage, 70 internal error, 130 interrupted.
    """
    from ...equivalence import tracing
    from ...equivalence.options import UsageError, VerifyOptions

    options = VerifyOptions(
        command=command or [],
        nproc=nproc,
        launcher=launcher,
        timeout=timeout,
        device=device,
        untracked=untracked,
        in_place=in_place,
    )
    try:
        return tracing.trace(options, output)
    except UsageError as error:
        raise UserError(str(error)) from error
