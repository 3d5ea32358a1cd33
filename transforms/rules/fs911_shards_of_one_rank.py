"""FS911: one rank saves the state dict of a sharded model, or all save theirs under one name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..queries.file import File
from ..queries.one_rank import is_same_on_all_ranks, one_rank_guard
from ..queries.saved_state import SAVES, is_gathered_by_hand, saved_shards
from ..rewrites.helper_source import definitions
from ..rule import ContractRule, Example


def partly_saved(contract: Contract) -> Iterator[Breach]:
    """Files that hold one rank's part of the parameters."""
    for file, call, symbol in contract.calls(*SAVES):
        if not call.args or (not _is_read_there(contract, file, call.args[0]) and _is_gathered(file, call)):
            continue
        found = saved_shards(contract.models, file, call.args[0])
        if found is None or contract.has_whole_states(found[1]) or not contract.is_certain(file, call, found[1]):
            continue
        whose = f"the {found[0]}'s state dict holds this rank's shards"
        guard = one_rank_guard(contract.guards, file, call)
        if guard is not None:
            where = f"line {guard.statement.lineno}" if guard.file is file else f"{guard.file.path}:{guard.statement.lineno}"
            yield Breach(file, call, f"{whose}, and only the ranks that pass the test at {where} save theirs", symbol)
        elif not contract.guards.of(file, call) and _is_one_file(file, call) and not _is_chosen(file, call):
            yield Breach(file, call, f"{whose}: every rank writes the same file, and the last one's part stays", symbol)


def _is_gathered(file: File, call: ast.Call) -> bool:
    """Whether the function around a place makes whole tensors of shards, by itself or by a helper that gives a state."""
    scope = file.function(call) or file.tree
    helped = {n.id for n in ast.walk(scope) if isinstance(n, ast.Name) and "state" in n.id} & definitions().keys()
    return bool(helped) or is_gathered_by_hand(file, call)


def _is_read_there(contract: Contract, file: File, saved: ast.expr) -> bool:
    """Whether the state dict of a sharded model is read where it is saved, so that nothing is done to it in between."""
    parts = saved.values if isinstance(saved, ast.Dict) else [saved]
    read = [p for p in parts if isinstance(p, ast.Call) and isinstance(p.func, ast.Attribute) and p.func.attr == "state_dict"]
    return any(saved_shards(contract.models, file, part) is not None for part in read)


def _is_one_file(file: File, call: ast.Call) -> bool:
    return len(call.args) > 1 and is_same_on_all_ranks(file, call.args[1])


def _is_chosen(file: File, call: ast.Call) -> bool:
    """Whether a flag stands in front of a call, that may be one of ranks."""
    tests = [a.test for a in file.ancestors(call) if isinstance(a, (ast.If, ast.IfExp))]
    return any(not isinstance(test, ast.Compare) for test in tests)


RULE = ContractRule(
    id="FS911",
    title="state dicts of one rank",
    why="state_dict() of a sharded model gathers nothing: what one rank saves of it holds that rank's rows, without an error.",
    advice="save with torch.distributed.checkpoint, or gather on all ranks with get_model_state_dict and full_state_dict=True",
    breaches=partly_saved,
    examples=(
        Example(
            before=(
                "import torch\n"
                "import torch.distributed as dist\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model):\n"
                "    fully_shard(model)\n"
                "    if dist.get_rank() == 0:\n"
                '        torch.save(model.state_dict(), "model.pt")\n'
            ),
            after=(
                "import torch\n"
                "import torch.distributed as dist\n"
                "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model):\n"
                "    fully_shard(model)\n"
                "    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))\n"
                "    if dist.get_rank() == 0:\n"
                '        torch.save(state, "model.pt")\n'
            ),
            level=Level.MANUAL,
        ),
    ),
)
