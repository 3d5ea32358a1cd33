"""The options that scan, diff, apply and check share, and what they mean together with the configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..equivalence.small_files import read_small_text
from ..transforms.engine import Options
from ..transforms.findings import Level, UserError
from ..transforms.rule import contract_rules
from ..transforms.text.generated import HELPER_MODULE, is_generated
from .config import (
    NEWEST_TORCH,
    OLDEST_TORCH,
    Configuration,
    console_scripts,
    find_pyproject,
    format_version,
    is_package,
    parse_torch_version,
    read_configuration,
    required_torch,
)
from .ignore import exclude_rules
from .rule_names import rules_called
from .standard_input import is_stdin, open_stdin
from .trace_file import read_trace
from .workspace import Workspace, open_workspace

Format = Literal["text", "json", "markdown", "sarif", "html", "github"]
Ddp = Literal["shard", "replicate", "keep"]
Checkpoint = Literal["keep", "dcp"]
Highest = Literal["safe", "review", "stop"]

Paths = Annotated[list[str] | None, typer.Argument(metavar="PATH", help="Files, folders or globs; - for stdin. Default: .")]
FormatOption = Annotated[Format, typer.Option("--format", help="Format of the report on stdout.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the report here.")]
LevelOption = Annotated[
    Highest | None, typer.Option("--level", help="Leave programs alone that have anything above this level. Default: stop.")
]
Select = Annotated[
    list[str] | None,
    typer.Option("--select", metavar="RULES", help="Only programs with these rules, as FS301 or FS3,FS4; repeatable."),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="RULES", help="Leave out programs with these rules; repeatable."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="GLOB", help="Skip files, as in a .gitignore; repeatable."),
]
StdinFilename = Annotated[
    str | None,
    typer.Option("--stdin-filename", metavar="FILE", help="With `-` as PATH: the name of the file that stdin holds."),
]
Jobs = Annotated[int | None, typer.Option("--jobs", "-j", min=1, metavar="N", help="Processes. Default: one per core.")]
TargetTorch = Annotated[
    str | None,
    typer.Option(
        "--target-torch",
        metavar="X.Y",
        help="The oldest torch the new code must run on. Default: the project's own requirement, else the newest known.",
    ),
]
DdpOption = Annotated[Ddp | None, typer.Option("--ddp", help="What DistributedDataParallel becomes. Default: shard.")]
CheckpointOption = Annotated[
    Checkpoint | None,
    typer.Option("--checkpoint", help="keep: files keep their format. (dcp, DCP folders instead, is refused so far.)"),
]

Helpers = Annotated[
    Path | None,
    typer.Option("--helpers", metavar="DIR", help="Folder for the module of helpers. Default: where all can import it."),
]

TraceOption = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="What a run has shown, as `to-fsdp2 trace` wrote it.")
]

_LEVELS = {"safe": Level.SAFE, "review": Level.REVIEW, "stop": Level.MANUAL}


@dataclass
class Request:
    """The shared options as given; None where the configuration or the default decides."""

    paths: list[str] | None
    format: Format = "text"
    output: Path | None = None
    level: Highest | None = None
    select: list[str] | None = None
    ignore: list[str] | None = None
    exclude: list[str] | None = None
    jobs: int | None = None
    target_torch: str | None = None
    ddp: Ddp | None = None
    checkpoint: Checkpoint | None = None
    helpers: Path | None = None
    show_safe: bool = False
    show_ok: bool = False
    stdin_filename: str | None = None
    trace: Path | None = None
    contract: bool = False
    """Whether the FSDP2 contract is asked about. Rules then choose findings, not programs."""


@dataclass
class Run:
    """A request made definite."""

    workspace: Workspace
    options: Options
    jobs: int
    notes: list[str] = field(default_factory=list)
    """Lines for the user on what was decided."""
    warnings: list[str] = field(default_factory=list)
    """Lines for the user in any case."""
    from_stdin: bool = False
    """Whether the workspace is what came from stdin."""
    select: frozenset[str] = frozenset()
    """Rules whose findings alone are wanted; empty for all. Of commands that write, the options choose programs."""
    ignore: frozenset[str] = frozenset()
    """Rules whose findings are not wanted."""

    @property
    def target_torch(self) -> str:
        """As reports show it."""
        return format_version(self.options.target_torch)


def resolve(request: Request) -> Run:
    """Join a request with the configuration of its target. Raises UserError."""
    from_stdin = is_stdin(request.paths, request.stdin_filename)
    paths = request.paths or ["."]
    pyproject = find_pyproject(Path(os.path.realpath(request.stdin_filename or "." if from_stdin else paths[0])))
    configuration = read_configuration(pyproject) if pyproject else Configuration()
    exclude = [exclude_rules(Path.cwd(), request.exclude or [])]
    if pyproject and configuration.exclude:
        exclude.append(exclude_rules(pyproject.parent, configuration.exclude))
    if (request.checkpoint or configuration.checkpoint) == "dcp":
        raise UserError(
            "--checkpoint dcp: no rule writes DCP folders yet; files keep their format, and "
            "torch.distributed.checkpoint.format_utils.torch_save_to_dcp converts them"
        )
    workspace = open_stdin(request.stdin_filename) if from_stdin else open_workspace(paths, exclude)
    stated = _stated_torch(request, configuration)
    required = None if stated else required_torch(pyproject.parent if pyproject else workspace.root)
    notes = []
    if required and required < OLDEST_TORCH:
        asked, needed = format_version(required), format_version(OLDEST_TORCH)
        notes.append(f"the project asks for torch>={asked}, the new code needs {needed}: torch.load takes weights only there")
    select = _rule_ids("select", request.select or configuration.select)
    ignore = _rule_ids("ignore", request.ignore or configuration.ignore)
    traced = read_trace(request.trace, workspace) if request.trace is not None else None
    options = Options(
        target_torch=stated or max(required or NEWEST_TORCH, OLDEST_TORCH),
        ddp=request.ddp or configuration.ddp or "shard",
        select=frozenset() if request.contract else _of_programs(select),
        ignore=frozenset() if request.contract else ignore,
        contract=request.contract,
        helpers=_helpers_folder(workspace, request, configuration, pyproject),
        scripts=console_scripts(pyproject) if pyproject else frozenset(),
        is_package=is_package(workspace.root, pyproject),
        level=_LEVELS[request.level or configuration.level or "stop"],
        trace=traced.trace if traced is not None else None,
    )
    warnings = traced.notes if traced is not None else []
    return Run(workspace, options, request.jobs or available_cores(), notes, warnings, from_stdin, select, ignore)


def _of_programs(select: frozenset[str]) -> frozenset[str]:
    """The rules that choose programs to migrate: not those of the contract, which rewrite nothing."""
    chosen = select - {rule.id for rule in contract_rules()}
    if select and not chosen:
        raise UserError(f"--select {min(select)}: is about the FSDP2 contract, which `to-fsdp2 check` alone looks at")
    return chosen


def available_cores() -> int:
    """The cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _stated_torch(request: Request, configuration: Configuration) -> tuple[int, int] | None:
    if request.target_torch is None:
        return configuration.target_torch
    try:
        return parse_torch_version(request.target_torch)
    except ValueError as error:
        raise UserError(f"--target-torch: {error}") from error


def _helpers_folder(workspace: Workspace, request: Request, configuration: Configuration, pyproject: Path | None) -> str:
    """The label of the folder for the module of helpers; empty when nothing is said."""
    if request.helpers is not None:
        name, folder = f"--helpers {request.helpers}", Path(os.path.realpath(request.helpers))
    elif configuration.helpers is not None and pyproject is not None:
        name, folder = f"helpers = {configuration.helpers!r}", Path(os.path.realpath(pyproject.parent / configuration.helpers))
    else:
        return ""
    if not folder.is_dir():
        raise UserError(f"{name}: there is no such folder")
    if not folder.is_relative_to(workspace.root):
        raise UserError(f"{name}: lies outside of {workspace.root}")
    module = folder / f"{HELPER_MODULE}.py"
    if os.path.lexists(module) and not is_generated(read_small_text(module) or ""):
        raise UserError(f"{name}: the folder has a {module.name} that this tool has not written")
    return folder.relative_to(workspace.root).as_posix()


def _rule_ids(option: str, values: list[str]) -> frozenset[str]:
    """Rule ids from ids or their beginnings (`FS4`: all of that family); empty when nothing is given."""
    if not values:
        return frozenset()
    chosen: set[str] = set()
    for name in (part for value in values for part in value.split(",")):
        try:
            chosen |= {rule.id for rule in rules_called(name)}
        except UserError as error:
            raise UserError(f"--{option}: {error}") from error
    return frozenset(chosen)
