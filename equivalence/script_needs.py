"""What a script wants from its launcher, read from its source and from the modules of its repository it imports."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

SPAWNERS = frozenset(
    (
        "torch.multiprocessing.spawn",
        "torch.multiprocessing.spawn.spawn",
        "torch.multiprocessing.start_processes",
        "torch.distributed.launcher.api.elastic_launch",
        "torch.distributed.launcher.elastic_launch",
    )
)
LOCAL_RANK = re.compile(r"""["'](--local[-_]rank)["']""")
CUDA = re.compile(r"\bcuda\b|\bnccl\b|\btorch\.accelerator\b|\bcurrent_accelerator\b|import accelerator\b", re.IGNORECASE)


@dataclass(frozen=True)
class Needs:
    """`spawns`: it starts its own ranks. `local_rank_flag`: the option it expects the launcher to pass, as
    torch.distributed.launch does. `cuda`: it names CUDA or NCCL somewhere, or asks
    torch.accelerator for its device."""

    spawns: bool
    local_rank_flag: str | None
    cuda: bool


def read_needs(script: Path, root: Path) -> Needs:
    """The needs of `script`; its imports are followed below `root` and below its own directory."""
    sources = [path.read_text(encoding="utf-8", errors="replace") for path in _reachable(script, root)]
    flags = {flag for source in sources for flag in LOCAL_RANK.findall(source)}
    return Needs(
        spawns=any(_spawns(source) for source in sources),
        # argparse makes one attribute of both spellings, so a script that takes both takes either.
        local_rank_flag=min(flags, default=None),
        cuda=any(CUDA.search(source) for source in sources),
    )


def module_file(name: str, roots: tuple[Path, ...]) -> Path | None:
    """The source file of a dotted module name below one of the roots (`__main__.py` of a package not included)."""
    for root in roots:
        path = root.joinpath(*name.split("."))
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def _reachable(script: Path, root: Path) -> list[Path]:
    roots = (script.parent, root, root / "src")
    seen: dict[Path, None] = {}
    pending = [script]
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen[path] = None
        for name in _imported(path, root):
            found = module_file(name, roots)
            if found is not None:
                pending.append(found)
    return list(seen)


def _imported(path: Path, root: Path) -> list[str]:
    """Dotted names that a file imports; `from a import b` gives a and a.b. Relative ones are made absolute."""
    tree = _parse(path.read_text(encoding="utf-8", errors="replace"))
    package = path.relative_to(root).parent.parts if path.is_relative_to(root) else ()
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *([node.module] if node.module else [])))
            names += [name for name in (base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)) if name]
    return names


def _spawns(source: str) -> bool:
    """Whether a function that starts ranks is called, under whatever name it was imported."""
    tree = _parse(source)
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            known.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            first, dot, rest = ast.unparse(node.func).partition(".")
            if f"{known.get(first, first)}{dot}{rest}" in SPAWNERS:
                return True
    return False


def _parse(source: str) -> ast.Module:
    # A file with an error in it is the script's own problem and shows up when it runs.
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])
