"""FS902: `fully_shard` on the blocks of a model, and never on the model itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..queries.shard_units import holders, unit_of
from ..queries.sharded_models import FULLY_SHARD, ShardCall, known_values
from ..rule import ContractRule, Example


def without_root(contract: Contract) -> Iterator[Breach]:
    """Calls on units of which no part of the repository is seen to shard the whole."""
    for call in contract.models.calls:
        unit = unit_of(call)
        if unit is None or not unit.is_selection:
            continue
        if not any(_may_be_root(contract, call, other) for other in contract.models.calls if other is not call):
            whole = ast.unparse(unit.model)
            message = f"the blocks are sharded, {whole} itself is not: the parameters outside of the blocks are never reduced"
            yield Breach(call.file, call.node, message, FULLY_SHARD)


def _may_be_root(contract: Contract, unit: ShardCall, other: ShardCall) -> bool:
    """Whether a call may shard what holds the units of another one."""
    made = unit_of(unit)
    assert made is not None
    if other.model is None or (unit.file.function(unit.node) is not None and _is_library(contract, unit)):
        return True
    theirs = set(known_values(other.file, other.model))
    same_function = other.file is unit.file and other.file.function(other.node) is unit.file.function(unit.node)
    for holder in holders(made.model):
        if same_function and ast.unparse(holder) == ast.unparse(other.model):
            return True
        if theirs & set(known_values(unit.file, holder)):
            return True
    is_unit = unit_of(other) is not None
    return not is_unit and not theirs and not same_function


def _is_library(contract: Contract, unit: ShardCall) -> bool:
    """Whether code out of sight may call the function around a call, and shard the whole itself."""
    function = unit.file.function(unit.node)
    return function is not None and not contract.program.callers(unit.file, function) and unit.file.index not in (
        contract.programs.entries
    )


RULE = ContractRule(
    id="FS902",
    title="no call for the root",
    why="What no unit holds stays plain: its gradients are not reduced, and the ranks drift apart without an error.",
    advice="call fully_shard(model) behind the loop over the blocks",
    breaches=without_root,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def shard(model):\n"
                "    for block in model.blocks:\n"
                "        fully_shard(block)\n\n\n"
                'if __name__ == "__main__":\n    shard(build())\n'
            ),
            after=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def shard(model):\n"
                "    for block in model.blocks:\n"
                "        fully_shard(block)\n"
                "    fully_shard(model)\n\n\n"
                'if __name__ == "__main__":\n    shard(build())\n'
            ),
            level=Level.MANUAL,
        ),
    ),
)
