"""Type annotations that name the wrappers."""

from __future__ import annotations

import ast

from ..analysis.symbols import DDP, FSDP1
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.conditions import FSDP_MODULE
from ..training.passes import outside_name
from ..training.unwrapping import WRAPPERS
from ..view import FileView

_WHY = "a sharded model is an FSDPModule"


def check(site: Site, migration: Migration) -> Outcome:
    """``FSDP`` becomes ``FSDPModule``; a union of both wrappers becomes the class that they had in common."""
    view, node = site.view, site.node
    union = _union_of_wrappers(view, node)
    symbol = FSDP_MODULE if union is None else "torch.nn.Module"
    outcome = Outcome(Level.SAFE, f"the annotation names {symbol.rpartition('.')[2]}")
    name = migration.use(outcome, view, symbol, node)
    outcome.patches.append(view.replace(node if union is None else union, name, _WHY))
    return outcome


def _union_of_wrappers(view: FileView, node: ast.AST) -> ast.expr | None:
    """``Union[DDP, FSDP]`` or ``DDP | FSDP`` around a name, if nothing else is in it."""
    parent = view.parents[node]
    if isinstance(parent, ast.BinOp):
        both = all(outside_name(view, side) in WRAPPERS for side in (parent.left, parent.right))
        return parent if both else None
    if isinstance(parent, ast.Tuple) and isinstance(view.parents[parent], ast.Subscript):
        subscript = view.parents[parent]
        assert isinstance(subscript, ast.Subscript)
        is_union = outside_name(view, subscript.value) in ("typing.Union", "typing_extensions.Union")
        if is_union and all(outside_name(view, element) in WRAPPERS for element in parent.elts):
            return subscript
    return None


_WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"

RULE = Rule(
    id="FS604",
    title="Annotations name FSDPModule, or nn.Module for both wrappers",
    why="An annotation with a wrapper that no longer exists keeps its import alive and misleads readers and checkers.",
    symbols=(FSDP1, DDP),
    roles=("annotation",),
    check=check,
    proof=("trainer_files",),
    examples=(
        Example(
            _WRAP + "def train(model: FSDP) -> None:\n    model.train()\n",
            "from torch.distributed.fsdp import FSDPModule\n\n\n"
            "def train(model: FSDPModule) -> None:\n    model.train()\n",
        ),
        Example(
            "from torch import nn\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
            + _WRAP
            + "def train(model: DDP | FSDP) -> None:\n    model.train()\n",
            "from torch import nn\n\n\ndef train(model: nn.Module) -> None:\n    model.train()\n",
        ),
    ),
)
