"""FS931: gradients that are never reduced."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..rule import ContractRule, Example

_SWITCHES = ("set_requires_gradient_sync", "set_is_last_backward")


def never_on_again(contract: Contract) -> Iterator[Breach]:
    """Calls that switch the reduction off where none switches it on."""
    found = list(contract.methods(*_SWITCHES))
    if contract.program.mentions(r"getattr\([^)]*set_requires_gradient_sync"):
        return
    if all(function.attr == "set_requires_gradient_sync" and _is_off(call) for _, call, function in found):
        for file, call, function in found:
            if contract.sharded(file, function.value):
                message = "gradients are not reduced from here on, and nothing switches that on again: p.grad stays None"
                yield Breach(file, call, message, "torch.distributed.fsdp.FSDPModule.set_requires_gradient_sync")


def _is_off(call: ast.Call) -> bool:
    given = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "requires_gradient_sync"), None)
    return isinstance(given, ast.Constant) and given.value is False


RULE = ContractRule(
    id="FS931",
    title="gradients that are never reduced",
    why="Without the reduction p.grad stays None: the optimizer steps over nothing, and no error says so.",
    advice="model.set_requires_gradient_sync(is_last) in front of each backward",
    breaches=never_on_again,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model, batches):\n"
                "    fully_shard(model)\n"
                "    for i, x in enumerate(batches):\n"
                "        if i + 1 < len(batches):\n"
                "            model.set_requires_gradient_sync(False)\n"
                "        model(x).sum().backward()\n"
            ),
            after=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model, batches):\n"
                "    fully_shard(model)\n"
                "    for i, x in enumerate(batches):\n"
                "        model.set_requires_gradient_sync(i + 1 == len(batches))\n"
                "        model(x).sum().backward()\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
