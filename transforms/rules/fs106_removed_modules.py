"""FS106: modules of torch that no version with fully_shard has any more."""

from __future__ import annotations

import ast

import libcst as cst

from ..findings import Form, Level
from ..migration import Migration
from ..rewrites.changes import replace, replace_statement
from ..rewrites.templates import argument, statements, with_argument
from ..rule import Example, Outcome, Rule
from ..sites import Site

_GONE = "torch._six"
_FOREACH = "torch.optim._multi_tensor"
_STILL_THERE = frozenset({"inf", "nan"})
"""Names that torch itself has, before and after."""


def moved(site: Site, migration: Migration) -> Outcome | None:
    """Numbers are imported from torch itself, which old versions have too; what else was in there is told."""
    if not site.symbol.startswith(f"{_GONE}."):
        return _by_argument(site)
    imports = [n for n in site.file.nodes(ast.ImportFrom) if n.module == _GONE]
    uses = [s for s in migration.sites[site.file.path] if s.symbol.startswith(f"{_GONE}.")]
    if uses[0] is not site:
        return Outcome("told at the first use", level=Level.OK)
    if not imports or any(alias.name not in _STILL_THERE for node in imports for alias in node.names):
        return Outcome(_TOLD, level=Level.MANUAL, form=Form.NOTE, advice=_ADVICE)

    def build(node: cst.CSTNode) -> list[cst.CSTNode]:
        assert isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], cst.ImportFrom)
        (line,) = statements("from torch import inf")
        assert isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[0], cst.ImportFrom)
        return [node.with_changes(body=[node.body[0].with_changes(module=line.body[0].module)])]

    return Outcome(_TOLD, [replace_statement(site.file, node, build) for node in imports], Level.REVIEW)  # type: ignore[arg-type]


def _by_argument(site: Site) -> Outcome | None:
    """Optimizers that became an argument of torch's own; who imports their module by its name still finds it."""
    imported = {alias.name for node in site.file.nodes(ast.Import, ast.ImportFrom) for alias in node.names}
    imported |= {node.module for node in site.file.nodes(ast.ImportFrom) if node.module}
    if site.call is None or imported & {_FOREACH, _FOREACH.rpartition(".")[2]}:
        return None

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and isinstance(node.func.value, cst.Attribute)
        function = node.func.with_changes(value=node.func.value.value)
        return with_argument(node.with_changes(func=function), argument("True", "foreach"))

    return Outcome("torch.optim has no _multi_tensor any more: its optimizers take foreach=True",
                   [replace(site.file, site.call, build)])  # fmt: skip


_TOLD = "torch._six is gone since torch 2.0, and fully_shard came later: where it is imported the program does not start"
_ADVICE = "container_abcs is collections.abc, string_classes (str, bytes), int_classes int."

RULE = Rule(
    id="FS106",
    title="modules that are gone",
    symbols=(f"{_GONE}.*", f"{_FOREACH}.*"),
    roles=("call", "value", "test", "annotation", "base"),
    why="A program that was written for a torch without fully_shard may not even be imported under one that has it.",
    fallback=moved,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                "    return model, torch.optim._multi_tensor.AdamW(model.parameters(), lr=1e-3)\n"
            ),
            after=(
                "import torch\n"
                "\n"
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)\n"
            ),
            level=Level.REVIEW,
        ),
        Example(
            before=(
                "from torch import nn\n"
                "from torch._six import inf\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, norm_type):\n"
                "    return DDP(net, **options) if norm_type == inf else nn.Identity()\n"
            ),
            after=(
                "from torch import nn\n"
                "from torch import inf\n"
                "\n"
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, norm_type):\n"
                "    return shard_like_ddp(net, **options) if norm_type == inf else nn.Identity()\n"
            ),
            level=Level.REVIEW,
        ),
        Example(
            before=(
                "from torch._six import string_classes\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    return DDP(net, **options) if isinstance(options, string_classes) else net\n"
            ),
            after=(
                "from torch._six import string_classes\n"
                "\n"
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    return shard_like_ddp(net, **options) if isinstance(options, string_classes) else net\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
