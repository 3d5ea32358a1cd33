"""FS904: `model.forward(x)`, and layers of a sharded model that are called by themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..flow.values import Opaque
from ..queries.file import File
from ..rule import ContractRule, Example

_LAYERS = tuple(f"torch.nn.{name}" for name in ("Linear", "Embedding", "LayerNorm", "RMSNorm", "Conv", "Bilinear", "GroupNorm"))


def past_the_hooks(contract: Contract) -> Iterator[Breach]:
    """Calls that compute with parameters and run none of the hooks that gather them."""
    for file in contract.files:
        for call in file.nodes(ast.Call):
            function = call.func
            if not isinstance(function, ast.Attribute) or _is_of_self(function.value):
                continue
            if function.attr == "forward":
                if contract.sharded(file, function.value):
                    text = ast.unparse(function.value)
                    message = f"{text}.forward runs without the hooks that gather parameters: call {text} itself"
                    yield Breach(file, call, message, "torch.nn.Module.forward", model=function.value)
            elif _is_layer(contract, file, call) and (calls := contract.sharded(file, function.value)):
                if contract.gathers_for_parts(calls):
                    continue
                message = f"{ast.unparse(function)} is a layer of a sharded model: nothing gathers its parameters here"
                yield Breach(file, call, message, "torch.nn.Module.forward", model=function.value)


def _is_of_self(receiver: ast.expr) -> bool:
    """Whether a class works on itself: whoever called the method around has gathered, or has not."""
    return (isinstance(receiver, ast.Name) and receiver.id in ("self", "cls")) or (
        isinstance(receiver, ast.Call) and getattr(receiver.func, "id", "") == "super"
    )


def _is_layer(contract: Contract, file: File, call: ast.Call) -> bool:
    """Whether what is called is a layer of torch's, of the model that it is an attribute of, and no unit of its own."""
    values = file.called_values(call)
    if not values or not all(isinstance(v, Opaque) and v.name.startswith(_LAYERS) for v in values):
        return False
    return not any(contract.models.of_values([value]) for value in values)


RULE = ContractRule(
    id="FS904",
    title="forward by its name",
    why="Parameters are gathered by hooks that only the call of a sharded module runs: forward by name meets shards, and raises.",
    advice="call the model: model(x)",
    breaches=past_the_hooks,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model, x):\n"
                "    fully_shard(model)\n"
                "    return model.forward(x)\n"
            ),
            after=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model, x):\n"
                "    fully_shard(model)\n"
                "    return model(x)\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
