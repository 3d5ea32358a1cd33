"""FS909: a mesh or a precision that some units of a model have, and others do not."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..queries.file import File
from ..queries.shard_units import holders, unit_of
from ..queries.sharded_models import FULLY_SHARD, ShardCall
from ..rule import ContractRule, Example

_SHARED = {
    "mesh": "is sharded over all ranks, the other units over their mesh",
    "mp_policy": "computes and reduces in full precision",
}


def unlike(contract: Contract) -> Iterator[Breach]:
    """Calls in one function, for one model, that lack what the others are given."""
    groups: dict[tuple[File, ast.AST | None], list[ShardCall]] = defaultdict(list)
    for call in contract.models.calls:
        groups[call.file, call.file.function(call.node)].append(call)
    for calls in groups.values():
        if any(len(call.node.args) != 1 or any(k.arg is None for k in call.node.keywords) for call in calls):
            continue  # what is given is not written there
        for root in calls:
            if root.model is None or unit_of(root) is not None:
                continue
            units = [call for call in calls if _is_part_of(call, ast.unparse(root.model))]
            given = {k.arg for k in root.node.keywords}
            for name, effect in _SHARED.items():
                if name not in given and units and all(name in {k.arg for k in unit.node.keywords} for unit in units):
                    message = f"the units get {name}, {ast.unparse(root.model)} itself does not: it {effect}"
                    yield Breach(root.file, root.node, message, FULLY_SHARD, Level.REVIEW)
                    break


def _is_part_of(call: ShardCall, model: str) -> bool:
    unit = unit_of(call)
    return unit is not None and any(ast.unparse(holder) == model for holder in holders(unit.model))


RULE = ContractRule(
    id="FS909",
    title="units that differ from their root",
    why="fully_shard hands no setting down or up: the root's own parameters follow its own call alone.",
    advice="give the root the same mesh and mp_policy",
    breaches=unlike,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def shard(model, mesh):\n"
                "    for block in model.blocks:\n"
                "        fully_shard(block, mesh=mesh)\n"
                "    fully_shard(model)\n"
            ),
            after=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def shard(model, mesh):\n"
                "    for block in model.blocks:\n"
                "        fully_shard(block, mesh=mesh)\n"
                "    fully_shard(model, mesh=mesh)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
