"""FS907: parameters that are put into a list before `fully_shard`, and used behind it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..queries.file import File
from ..queries.sharded_models import ShardCalls
from ..queries.textual_order import precedes
from ..rule import ContractRule, Example

_TAKES = frozenset({"parameters", "named_parameters"})
_KEEPS = frozenset({"list", "tuple", "dict", "set", "sorted"})


def kept(contract: Contract) -> Iterator[Breach]:
    """Lists of parameters that are no part of the model any more where they are used."""
    for file, call, function in contract.methods(*_TAKES):
        target = _name_that_keeps(file, call)
        calls = contract.models.of(file, function.value) if target is not None else ()
        if target is None or not calls or not contract.order.is_before(file, call, calls):
            continue
        if contract.modes.agree(file, call, calls) and _is_used_behind(file, call, target, calls):
            message = f"{target} holds the parameters from before fully_shard, which the model has no more where it is used"
            yield Breach(file, file.statement(call), message, "torch.nn.Module.parameters", model=function.value)


def _name_that_keeps(file: File, call: ast.Call) -> str | None:
    """The name that a list, tuple or dict of the parameters is assigned to."""
    statement = file.statement(call)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Name):
        return None
    value = statement.value
    is_made = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _KEEPS and call in value.args
    if isinstance(value, (ast.ListComp, ast.SetComp)):
        is_made = isinstance(value.elt, ast.Name) and value.generators[0].iter is call
    return statement.targets[0].id if is_made else None


def _is_used_behind(file: File, call: ast.Call, name: str, calls: ShardCalls) -> bool:
    """Whether the name, assigned but once, is handed to something behind the sharding, in the same function."""
    scope = file.function(call) or file.tree
    own = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name]
    if sum(isinstance(n.ctx, ast.Store) for n in own) != 1:
        return False
    for use in own:
        given = isinstance(file.parents.get(use), (ast.Call, ast.keyword)) and isinstance(use.ctx, ast.Load)
        if given and _last(file, use) not in ("len", "print") and any(
            shard.file is file and precedes(file, shard.node, use) for shard in calls
        ):
            return True
    return False


def _last(file: File, use: ast.Name) -> str:
    parent = file.parents[use]
    function = parent.func if isinstance(parent, ast.Call) else None
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


RULE = ContractRule(
    id="FS907",
    title="parameters taken before sharding",
    why="fully_shard replaces parameters: a list from before it holds tensors without gradients, and clipping it does nothing.",
    advice="read model.parameters() where it is used, or behind fully_shard",
    breaches=kept,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model, x):\n"
                "    parameters = list(model.parameters())\n"
                "    fully_shard(model)\n"
                "    model(x).sum().backward()\n"
                "    torch.nn.utils.clip_grad_norm_(parameters, 1.0)\n"
            ),
            after=(
                "import torch\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model, x):\n"
                "    fully_shard(model)\n"
                "    parameters = list(model.parameters())\n"
                "    model(x).sum().backward()\n"
                "    torch.nn.utils.clip_grad_norm_(parameters, 1.0)\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
