"""FS932: `.data` of a sharded parameter is assigned."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..rule import ContractRule, Example


def without_effect(contract: Contract) -> Iterator[Breach]:
    """Assignments to ``.data`` of parameters that are DTensors by then."""
    for file in contract.files:
        for node in file.nodes(ast.Attribute):
            if node.attr != "data" or not isinstance(node.ctx, ast.Store) or isinstance(file.parents[node], ast.AugAssign):
                continue
            calls = contract.sharded_parts(file, node.value, "parameters")
            if calls and contract.is_after(file, node, calls) and not contract.gives_plain_numbers(calls):
                text = ast.unparse(node.value)
                message = f"{text} is sharded by now: assigning {text}.data changes nothing"
                yield Breach(file, node, message, "torch.Tensor.data", model=node.value)


RULE = ContractRule(
    id="FS932",
    title=".data of sharded parameters",
    why="`p.data = x` on a sharded parameter is silently without effect.",
    advice="p.copy_(…) of a DTensor under no_grad, or write in front of fully_shard",
    breaches=without_effect,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model):\n"
                "    fully_shard(model)\n"
                "    for p in model.parameters():\n"
                "        p.data = p.data * 0.9\n"
            ),
            after=(
                "import torch\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model):\n"
                "    fully_shard(model)\n"
                "    with torch.no_grad():\n"
                "        for p in model.parameters():\n"
                "            p.mul_(0.9)\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
