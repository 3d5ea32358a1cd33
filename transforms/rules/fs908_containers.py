"""FS908: `fully_shard` on a ModuleList or ModuleDict."""

from __future__ import annotations

from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..flow.values import Opaque
from ..queries.sharded_models import FULLY_SHARD
from ..rule import ContractRule, Example

_CONTAINERS = frozenset({"torch.nn.ModuleList", "torch.nn.ModuleDict"})


def containers(contract: Contract) -> Iterator[Breach]:
    """Calls that are given a container."""
    for call in contract.models.calls:
        values = contract.values(call.file, call.model) if call.model is not None else []
        if values and all(isinstance(v, Opaque) and v.name in _CONTAINERS for v in values):
            message = f"fully_shard refuses a {values[0].name.rpartition('.')[2]}, which has no forward"  # type: ignore[union-attr]
            yield Breach(call.file, call.node, message, FULLY_SHARD)


RULE = ContractRule(
    id="FS908",
    title="containers as units",
    why="A unit is gathered by the hooks of its forward; ModuleList and ModuleDict have none, and fully_shard raises.",
    advice="shard each module in it",
    breaches=containers,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(blocks):\n"
                "    layers = torch.nn.ModuleList(blocks)\n"
                "    fully_shard(layers)\n"
                "    return layers\n"
            ),
            after=(
                "import torch\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(blocks):\n"
                "    layers = torch.nn.ModuleList(blocks)\n"
                "    for layer in layers:\n"
                "        fully_shard(layer)\n"
                "    return layers\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
