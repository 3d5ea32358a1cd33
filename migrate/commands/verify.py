"""`to-fsdp2 verify`: an old and a new script, run and compared."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ...transforms.findings import UserError


class VerdictFormat(str, Enum):
    """Formats of the verdict on stdout."""

    TEXT = "text"
    JSON = "json"


class Mode(str, Enum):
    """How equal is equal."""

    AUTO = "auto"
    EXACT = "exact"
    NOISE = "noise"


class Device(str, Enum):
    """Where the scripts run."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Launcher(str, Enum):
    """How the ranks are started."""

    AUTO = "auto"
    TORCHRUN = "torchrun"
    PYTHON = "python"


class Untracked(str, Enum):
    """What becomes of files that git does not track."""

    COPY = "copy"
    LINK = "link"
    NONE = "none"


def verify(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- SCRIPT ARG...]",
            help="The script (or -m module) and its arguments, relative to each side's root; only the arguments when "
            "--old and --new are files.",
        ),
    ] = None,
    old: Annotated[
        str, typer.Option("--old", metavar="PATH|REF", help="The old side: a path, else a git ref.")
    ] = "HEAD",
    new: Annotated[str, typer.Option("--new", metavar="PATH|REF", help="The new side.")] = ".",
    nproc: Annotated[
        int, typer.Option("--nproc", min=1, help="Ranks; powers of two compare bit by bit.")
    ] = 2,
    nnodes: Annotated[str, typer.Option("--nnodes", help="Machines, handed to torchrun.")] = "1",
    node_rank: Annotated[int | None, typer.Option("--node-rank", help="Handed to torchrun.")] = None,
    rdzv_endpoint: Annotated[
        str | None, typer.Option("--rdzv-endpoint", metavar="HOST:PORT", help="Handed to torchrun.")
    ] = None,
    launcher: Annotated[
        Launcher, typer.Option(help="python: the script starts its own ranks.")
    ] = Launcher.AUTO,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="DIR", help="Keep reports, records and logs.")
    ] = None,
    format: Annotated[
        VerdictFormat, typer.Option("--format", help="Format of the verdict on stdout.")
    ] = VerdictFormat.TEXT,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="S", help="Seconds after which a run counts as hung.")
    ] = 1800.0,
    mode: Annotated[
        Mode, typer.Option(help="exact: bit by bit; noise: within the scatter of the old side.")
    ] = Mode.AUTO,
    device: Annotated[
        Device, typer.Option(help="cpu also runs scripts that are written for CUDA.")
    ] = Device.AUTO,
    record: Annotated[
        str,
        typer.Option(metavar="STEPS", help="Steps that are recorded: auto, full, every:N, first:N or loss."),
    ] = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Also resume each side from the other's checkpoint.")
    ] = False,
    resume_arguments: Annotated[
        str, typer.Option(metavar="ARGS", help="Added to a resumed run; {checkpoint} stands for the path.")
    ] = "",
    control: Annotated[
        str,
        typer.Option(
            metavar="ARGS", help="Added to a further pair of runs, where an intended difference vanishes."
        ),
    ] = "",
    untracked: Annotated[
        Untracked, typer.Option(help="What the sides see of untracked files.")
    ] = Untracked.COPY,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Run where the files are, not in a copy.")
    ] = False,
) -> int:
    """Run the old and the new script under torchrun and say whether training is the same.

    Needs torch: pip install 'to-fsdp2[verify]'.

    Exit codes: 0 equivalent, 1 different, 2 not judged (a run failed, hung, or did not run the code that changed),
    64 wrong usage, 70 internal error, 130 interrupted.
    """
    from ...equivalence.options import UsageError, VerifyOptions

    verify_options = VerifyOptions(
        command=command or [],
        old=old,
        new=new,
        nproc=nproc,
        nnodes=nnodes,
        node_rank=node_rank,
        rdzv_endpoint=rdzv_endpoint,
        launcher=launcher.value,
        report=report,
        format=format.value,
        timeout=timeout,
        mode=mode.value,
        device=device.value,
        record=record,
        resume=resume,
        resume_arguments=resume_arguments,
        control=control,
        untracked=untracked.value,
        in_place=in_place,
    )
    try:
        return run_verification(verify_options)
    except UsageError as error:
        raise UserError(str(error)) from error
