"""The options that scan, diff, apply and check share, and what they mean together with the configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..transforms.engine import Options
from ..transforms.findings import Level, UserError
from ..transforms.rule import all_rules
from .config import (
    Configuration,
    find_pyproject,
    format_version,
    parse_torch_version,
    read_configuration,
    required_torch,
)
from .ignore import exclude_rules
from .workspace import Workspace, open_workspace

Format = Literal["text", "json", "markdown", "sarif", "html"]
Ddp = Literal["shard", "replicate", "keep"]
Checkpoint = Literal["keep", "dcp"]
Highest = Literal["safe", "review"]

Paths = Annotated[list[str] | None, typer.Argument(metavar="PATH", help="Files, folders or globs. Default: .")]
FormatOption = Annotated[Format, typer.Option("--format", help="Format of the report on stdout.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the report here.")]
LevelOption = Annotated[
    Highest | None, typer.Option("--level", help="Rewrite groups of at most this level. Default: review.")
]
Select = Annotated[
    list[str] | None,
    typer.Option("--select", metavar="RULES", help="Only groups with these rules, as FS301 or FS3,FS4; repeatable."),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="RULES", help="Leave groups with these rules alone; repeatable."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="GLOB", help="Skip files, as in a .gitignore; repeatable."),
]
Jobs = Annotated[int | None, typer.Option("--jobs", "-j", min=1, metavar="N", help="Processes. Default: one per core.")]
TargetTorch = Annotated[
    str | None,
    typer.Option(
        "--target-torch",
        metavar="X.Y",
        help="The oldest torch the new code must run on. Default: the project's own requirement, else 2.6.",
    ),
]
DdpOption = Annotated[Ddp | None, typer.Option("--ddp", help="What DistributedDataParallel becomes. Default: shard.")]
CheckpointOption = Annotated[
    Checkpoint | None,
    typer.Option("--checkpoint", help="keep: files keep their format. (dcp, DCP folders instead, is refused so far.)"),
]
Annotate = Annotated[
    bool, typer.Option("--annotate", help="Write a `# TODO(to-fsdp2: ID)` comment at every manual site.")
]


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
    annotate: bool = False
    show_ok: bool = False


@dataclass
class Run:
    """A request made definite."""

    workspace: Workspace
    options: Options
    jobs: int

    @property
    def target_torch(self) -> str:
        """As reports show it."""
        return format_version(self.options.target_torch)


def resolve(request: Request) -> Run:
    """Join a request with the configuration of its target. Raises UserError."""
    paths = request.paths or ["."]
    pyproject = find_pyproject(Path(os.path.realpath(paths[0])))
    configuration = read_configuration(pyproject) if pyproject else Configuration()
    exclude = [exclude_rules(Path.cwd(), request.exclude or [])]
    if pyproject and configuration.exclude:
        exclude.append(exclude_rules(pyproject.parent, configuration.exclude))
    if (request.checkpoint or configuration.checkpoint) == "dcp":
        raise UserError(
            "--checkpoint dcp: no rule writes DCP folders yet; files keep their format, and "
            "torch.distributed.checkpoint.format_utils.torch_save_to_dcp converts them"
        )
    workspace = open_workspace(paths, exclude)
    options = Options(
        target_torch=_target_torch(request, configuration, pyproject.parent if pyproject else workspace.root),
        ddp=request.ddp or configuration.ddp or "shard",
        select=_rule_ids("select", request.select or configuration.select),
        ignore=_rule_ids("ignore", request.ignore or configuration.ignore),
        level=Level(request.level or configuration.level or "review"),
        annotate=request.annotate or configuration.annotate,
    )
    return Run(workspace, options, request.jobs or available_cores())


def available_cores() -> int:
    """The cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _target_torch(request: Request, configuration: Configuration, project: Path) -> tuple[int, int]:
    if request.target_torch is None:
        return configuration.target_torch or required_torch(project)
    try:
        return parse_torch_version(request.target_torch)
    except ValueError as error:
        raise UserError(f"--target-torch: {error}") from error


def _rule_ids(option: str, values: list[str]) -> frozenset[str]:
    """Rule ids from ids or their beginnings (`FS4`: all of that family); empty when nothing is given."""
    if not values:
        return frozenset()
    known = [rule.id for rule in all_rules()]
    chosen: set[str] = set()
    for prefix in (part.strip() for value in values for part in value.split(",")):
        matching = {rule for rule in known if prefix and rule.startswith(prefix)}
        if not matching:
            raise UserError(f"--{option}: no rule is called {prefix!r}; `to-fsdp2 rules` lists them")
        chosen |= matching
    return frozenset(chosen)
