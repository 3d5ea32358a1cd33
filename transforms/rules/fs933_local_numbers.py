"""FS933: a number that is read off sharded parameters or gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..queries.file import File
from ..rule import ContractRule, Example

_READS = ("item", "tolist")
_CONVERTS = ("builtins.float", "builtins.bool", "builtins.int")
_RIGHT = frozenset({"std", "var", "median", "argmax", "argmin", "full_tensor", "numel"})
"""Methods whose number is that of the whole tensor."""
_TENSORS = ("statistic", "gradients", "parameters")


def of_this_rank(contract: Contract) -> Iterator[Breach]:
    """Numbers of shards."""
    for file, call, function in contract.methods(*_READS):
        if not call.args:
            yield from _read(contract, file, call, function.value)
    for file, call, _ in contract.calls(*_CONVERTS):
        if len(call.args) == 1 and isinstance(call.args[0], ast.Call):
            yield from _read(contract, file, call, call.args[0], "statistic")


def _read(contract: Contract, file: File, call: ast.Call, tensor: ast.expr, *kinds: str) -> Iterator[Breach]:
    if isinstance(tensor, ast.Call) and isinstance(tensor.func, ast.Attribute) and tensor.func.attr in _RIGHT:
        return
    calls = contract.sharded_parts(file, tensor, *(kinds or _TENSORS))
    if calls and contract.is_after(file, call, calls) and not contract.gives_plain_numbers(calls):
        message = f"{ast.unparse(call)[:140]} is the number of this rank's shard"
        yield Breach(file, call, message, "torch.Tensor.item", model=tensor)


RULE = ContractRule(
    id="FS933",
    title="numbers of shards",
    why="`.item()` of a sum, norm or maximum over a DTensor is the number of this rank's part, without an error.",
    advice="gather first: p.grad.norm().full_tensor().item(), on all ranks",
    breaches=of_this_rank,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model, x):\n"
                "    fully_shard(model)\n"
                "    model(x).sum().backward()\n"
                "    return sum(p.grad.norm().item() ** 2 for p in model.parameters())\n"
            ),
            after=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model, x):\n"
                "    fully_shard(model)\n"
                "    model(x).sum().backward()\n"
                "    return sum(p.grad.norm().full_tensor().item() ** 2 for p in model.parameters())\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
