"""What a user can ask of `to-fsdp2 verify`. The command line fills this in; tests do so directly."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


class UsageError(Exception):
    """The request itself is wrong (exit code 64); the message says what to write instead."""


@dataclass
class VerifyOptions:
    """Every option of the command, with its default.

    `command` is what follows `--`: the script (or `-m module`) and its arguments, relative to the root of each
    side; only the arguments when `old` and `new` are files.
    """

    command: list[str] = field(default_factory=list)

    old: str = "HEAD"
    """The old side: an existing path (directory or file), else a git ref."""
    new: str = "."
    """The new side, read the same way."""

    nproc: int = 2
    """Ranks on this machine. Powers of two can be compared bit by bit."""
    nnodes: str = "1"
    """Number of machines, handed to torchrun; the same command runs on each of them."""
    node_rank: int | None = None
    """Handed to torchrun; only needed where the rendezvous does not decide it."""
    rdzv_endpoint: str | None = None
    """host:port of the rendezvous, handed to torchrun; None: a free port of this machine."""
    launcher: Literal["auto", "torchrun", "python"] = "auto"
    """`python` starts the script once and lets it start its own ranks (mp.spawn); `auto` reads the script."""

    report: Path | None = None
    """Directory for report.json, report.html, junit.xml, the records and the logs; None: nothing is kept."""
    format: Literal["text", "json"] = "text"
    """What goes to stdout; progress goes to stderr either way."""
    save_reference: Path | None = None
    """Directory that the old side's run is kept in; nothing else is run then, and nothing compared."""
    reference: Path | None = None
    """Directory that the old side's run is taken from."""
    bisect: bool = False
    """Of a verdict that is not equivalent, also find the fewest changes that make it so, by runs with parts of them."""
    timeout: float = 1800.0
    """Seconds after which a run is ended and counted as hung, with what each rank waited in."""
    mode: Literal["auto", "exact", "noise"] = "auto"
    """`exact`: bit by bit, reductions in rank order. `noise`: tolerance per tensor from a second, perturbed run of
    the old side. `auto`: exact on the CPU with a power-of-two number of ranks, else noise."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`cpu`: a script written for CUDA is run on the CPU; `auto`: that only where there is no GPU."""
    record: str = "auto"
    """Steps at which tensors are recorded: auto, full, every:N, first:N or loss."""
    resume: bool = False
    """Also hand the old run's checkpoint to the new script, and the other way round."""
    resume_arguments: str = ""
    """Arguments added to the command in a resumed run; `{checkpoint}` stands for the path of the checkpoint."""
    control: str = ""
    """Arguments added to both sides in a further pair of runs, in which an intended difference must vanish
    (for instance: `--accumulation 1`)."""

    untracked: Literal["copy", "link", "none"] = "copy"
    """What the sides see of files that git does not track (data, configurations): a copy, links to the large ones,
    or nothing. A directory outside git counts as untracked as a whole."""
    in_place: bool = False
    """Run directories and files where they are instead of in a copy. What the runs write, they write there."""
    color: bool | None = None
    """None: colour where stderr is a terminal and NO_COLOR is not set."""
