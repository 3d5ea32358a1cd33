"""FS906: an optimizer that is built before `fully_shard`."""

from __future__ import annotations

from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..flow.values import Optimizer
from ..rule import ContractRule, Example


def built_too_early(contract: Contract) -> Iterator[Breach]:
    """Optimizers over parameters that are replaced later, and that nobody gives the new ones."""
    if not contract.models.calls or contract.program.mentions(r"rebind|\[[\"']params[\"']\]\s*(\[[^\]]*\])?\s*="):
        return
    for value in list(contract.program.flow.values):
        if not isinstance(value, Optimizer) or value.site < 0:
            continue
        calls = contract.models.of_optimizer(value)
        file, node = contract.program.call_node(value.site)
        if calls and contract.order.is_before(file, node, calls) and contract.modes.agree(file, node, calls):
            place = f"{calls[0].file.path}:{calls[0].line}" if calls[0].file is not file else f"line {calls[0].line}"
            yield Breach(file, node, f"the optimizer keeps the parameters from before fully_shard at {place}", value.name)


RULE = ContractRule(
    id="FS906",
    title="optimizers built before sharding",
    why="fully_shard replaces parameters: an optimizer that was built before it steps over the old ones, and trains nothing.",
    advice="build the optimizer behind the last call of fully_shard",
    breaches=built_too_early,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model):\n"
                "    optimizer = torch.optim.AdamW(model.parameters())\n"
                "    fully_shard(model)\n"
                "    return model, optimizer\n"
            ),
            after=(
                "import torch\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model):\n"
                "    fully_shard(model)\n"
                "    optimizer = torch.optim.AdamW(model.parameters())\n"
                "    return model, optimizer\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
