"""FS903: `fully_shard` on a model before its blocks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..queries.file import File
from ..queries.shard_units import holders, unit_of
from ..queries.sharded_models import FULLY_SHARD
from ..queries.textual_order import precedes
from ..rule import ContractRule, Example


def behind_root(contract: Contract) -> Iterator[Breach]:
    """Calls on parts of a model that stand behind the call on the model."""
    for call in contract.models.calls:
        unit = unit_of(call)
        if unit is None:
            continue
        wholes = {ast.unparse(holder) for holder in holders(unit.model)}
        for root in contract.models.calls:
            if root.file is call.file and root.model is not None and ast.unparse(root.model) in wholes:
                if precedes(root.file, root.node, call.node) and not _is_new_model(call.file, root.model, call.node):
                    message = f"{ast.unparse(root.model)} is sharded at line {root.line} already, with all that this call is for"
                    yield Breach(call.file, call.node, message, FULLY_SHARD)
                    break


def _is_new_model(file: File, model: ast.expr, node: ast.AST) -> bool:
    """Whether the name of the model may hold another one by then: it is assigned more than once."""
    names = {n.id for n in ast.walk(model) if isinstance(n, ast.Name)}
    scope = file.function(node) or file.tree
    return sum(isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id in names for n in ast.walk(scope)) > 1


RULE = ContractRule(
    id="FS903",
    title="the root before its blocks",
    why="fully_shard takes all parameters that no unit has yet: behind the root's call nothing is left, and backward fails.",
    advice="shard from the bottom up: the blocks first, the model last",
    breaches=behind_root,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def shard(model):\n"
                "    fully_shard(model)\n"
                "    for block in model.blocks:\n"
                "        fully_shard(block)\n"
            ),
            after=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def shard(model):\n"
                "    for block in model.blocks:\n"
                "        fully_shard(block)\n"
                "    fully_shard(model)\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
