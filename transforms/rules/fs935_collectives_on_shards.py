"""FS935: collectives of `torch.distributed` on sharded parameters or gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..rule import ContractRule, Example

_COLLECTIVES = tuple(f"torch.distributed.{name}" for name in ("all_reduce", "broadcast", "reduce", "all_gather_into_tensor"))

_TENSORS = ("parameters", "gradients", "statistic")


def on_shards(contract: Contract) -> Iterator[Breach]:
    """Collectives that are given DTensors."""
    for file, call, symbol in contract.calls(*_COLLECTIVES):
        calls = contract.sharded_parts(file, call.args[0], *_TENSORS) if call.args else ()
        if calls and contract.is_after(file, call, calls):
            name = symbol.rpartition(".")[2]
            is_number = not contract.sharded_parts(file, call.args[0], "parameters", "gradients")
            if is_number and contract.gives_plain_numbers(calls):
                continue
            instead = "add up p.grad.to_local(), or take full_tensor()" if is_number else "FSDP2 has reduced it already"
            message = f"{ast.unparse(call.args[0])[:60]} is a DTensor, which {name} does not take: {instead}"
            yield Breach(file, call, message, symbol, model=call.args[0])


RULE = ContractRule(
    id="FS935",
    title="collectives on shards",
    why="Parameters and gradients of a sharded model are DTensors, each rank's another part: collectives on them raise.",
    advice="drop it: gradients are averaged by backward; broadcast weights in front of fully_shard",
    breaches=on_shards,
    examples=(
        Example(
            before=(
                "import torch.distributed as dist\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model, x):\n"
                "    fully_shard(model)\n"
                "    model(x).sum().backward()\n"
                "    for p in model.parameters():\n"
                "        dist.all_reduce(p.grad)\n"
            ),
            after=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model, x):\n"
                "    fully_shard(model)\n"
                "    model(x).sum().backward()\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
