"""FS914: `load_state_dict` of a sharded model with whole tensors."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..flow.values import Opaque
from ..queries.assignments import assigned_values
from ..queries.file import File
from ..queries.one_rank import is_same_on_all_ranks
from ..rule import ContractRule, Example

_LOADS = frozenset({"torch.load", "safetensors.torch.load_file"})


def plain_tensors(contract: Contract) -> Iterator[Breach]:
    """Loads of files that hold whole tensors, into shards."""
    for file, call, function in contract.methods("load_state_dict"):
        if not call.args or not _is_of_a_whole_file(contract, file, call.args[0]):
            continue
        calls = contract.sharded(file, function.value)
        if calls and contract.is_after(file, call, calls, function.value) and not contract.has_whole_states(calls):
            message = f"{ast.unparse(function.value)} is sharded, the file holds whole tensors"
            yield Breach(file, call, message, "torch.nn.Module.load_state_dict", model=function.value)


def _is_of_a_whole_file(contract: Contract, file: File, given: ast.expr) -> bool:
    """Whether an expression is, or is read out of, a file that all ranks load."""
    while isinstance(given, ast.Subscript):
        given = given.value
    values = contract.values(file, given)
    if not values or not all(isinstance(v, Opaque) and v.name in _LOADS for v in values):
        return False
    places = [contract.program.call_node(v.site) for v in values if isinstance(v, Opaque)]
    return all(call.args and _is_same(owner, call.args[0]) for owner, call in places)


def _is_same(file: File, path: ast.expr) -> bool:
    known = assigned_values(file, path) if isinstance(path, (ast.Name, ast.Attribute)) else []
    return is_same_on_all_ranks(file, path) or (bool(known) and all(is_same_on_all_ranks(file, value) for value in known))


RULE = ContractRule(
    id="FS914",
    title="whole tensors loaded into shards",
    why="load_state_dict of a sharded model takes DTensors: whole tensors have another shape than the shards, and it raises.",
    advice="set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True)), or load in front of fully_shard",
    breaches=plain_tensors,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model):\n"
                "    fully_shard(model)\n"
                '    model.load_state_dict(torch.load("model.pt"))\n'
            ),
            after=(
                "import torch\n"
                "from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model):\n"
                "    fully_shard(model)\n"
                '    set_model_state_dict(model, torch.load("model.pt"), options=StateDictOptions(full_state_dict=True))\n'
            ),
            level=Level.MANUAL,
        ),
    ),
)
