"""`to-fsdp2 verify`: an old and a new script, run and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from ...transforms.findings import Finding, UserError

Script = Annotated[
    list[str] | None,
    Argument(
        metavar="-- SCRIPT ARG",
        help="The script (or -m module) and its arguments, relative to each side's root. Only the arguments "
        "when --old and --new are files.",
    ),
]
Old = Annotated[str, Option("--old", metavar="PATH|REF", help="The old side: a path, else a git ref.")]
New = Annotated[str, Option("--new", metavar="PATH|REF", help="The new side.")]
Ranks = Annotated[int, Option("--nproc", min=1, help="Ranks; powers of two compare bit by bit.")]
Machines = Annotated[str, Option("--nnodes", help="Machines, handed to torchrun.")]
NodeRank = Annotated[int | None, Option("--node-rank", help="Handed to torchrun.")]
Rendezvous = Annotated[str | None, Option("--rdzv-endpoint", metavar="HOST:PORT", help="Handed to torchrun.")]
Launcher = Annotated[
    Literal["auto", "torchrun", "python"],
    Option("--launcher", help="python: the script starts its own ranks."),
]
ReportFolder = Annotated[Path | None, Option("--report", metavar="DIR", help="Keep reports, records and logs.")]
VerdictFormat = Annotated[Literal["text", "json"], Option("--format", help="Format of the verdict on stdout.")]
SaveReference = Annotated[
    Path | None, Option("--save-reference", metavar="DIR", help="Run the old side alone, and keep its run here.")
]
Reference = Annotated[
    Path | None, Option("--reference", metavar="DIR", help="Take the old side's run from here; it is not run again.")
]
Bisect = Annotated[
    bool, Option("--bisect", help="Where the verdict fails, find the fewest changes that make it so, by further runs.")
]
Timeout = Annotated[float, Option("--timeout", min=1, help="Seconds after which a run counts as hung.")]
Mode = Annotated[
    Literal["auto", "exact", "noise"],
    Option("--mode", help="exact: bit by bit. noise: within the scatter of the old side."),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    Option("--device", help="cpu also runs scripts that are written for CUDA."),
]
Record = Annotated[
    str, Option("--record", metavar="STEPS", help="Recorded steps: auto, full, every:N, first:N or loss.")
]
Resume = Annotated[bool, Option("--resume", help="Also resume each side from the other's checkpoint.")]
ResumeArguments = Annotated[
    str,
    Option("--resume-arguments", metavar="ARGS", help="Added to a resumed run; {checkpoint} is the path."),
]
Control = Annotated[
    str,
    Option(
        "--control",
        metavar="ARGS",
        help="Added to a further pair of runs, where an intended difference vanishes.",
    ),
]
Untracked = Annotated[
    Literal["copy", "link", "none"], Option("--untracked", help="What the sides see of untracked files.")
]
InPlace = Annotated[bool, Option("--in-place", help="Run where the files are, not in a copy.")]


def verify(
    command: Script = None,
    old: Old = "HEAD",
    new: New = ".",
    nproc: Ranks = 2,
    nnodes: Machines = "1",
    node_rank: NodeRank = None,
    rdzv_endpoint: Rendezvous = None,
    launcher: Launcher = "auto",
    report: ReportFolder = None,
    save_reference: SaveReference = None,
    reference: Reference = None,
    bisect: Bisect = False,
    format: VerdictFormat = "text",
    timeout: Timeout = 1800.0,
    mode: Mode = "auto",
    device: Device = "auto",
    record: Record = "auto",
    resume: Resume = False,
    resume_arguments: ResumeArguments = "",
    control: Control = "",
    untracked: Untracked = "copy",
    in_place: InPlace = False,
) -> int:
    """Run the old and the new script under torchrun and say whether training is the same.

    Needs torch: pip install 'to-fsdp2[verify]'.

    Exit codes: 0 equivalent, 1 different, 2 not judged (a run failed, hung, or did not run the code that
    changed), 64 wrong usage, 70 internal error, 130 interrupted.
    """
    from ...equivalence import command as verification
    from ...equivalence.options import UsageError, VerifyOptions

    options = VerifyOptions(
        command=command or [],
        old=old,
        new=new,
        nproc=nproc,
        nnodes=nnodes,
        node_rank=node_rank,
        rdzv_endpoint=rdzv_endpoint,
        launcher=launcher,
        report=report,
        save_reference=save_reference,
        reference=reference,
        bisect=bisect,
        format=format,
        timeout=timeout,
        mode=mode,
        device=device,
        record=record,
        resume=resume,
        resume_arguments=resume_arguments,
        control=control,
        untracked=untracked,
        in_place=in_place,
    )
    try:
        return verification.verify(options, _findings_of)
    except UsageError as error:
        raise UserError(str(error)) from error


def _findings_of(root: Path) -> list[Finding]:
    from ..api import scan

    return scan([root]).findings
