"""FS913: all ranks save a full state dict that only rank 0 has."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..queries.assignments import assigned_values
from ..queries.conditions import is_rank_condition
from ..queries.file import File
from ..queries.one_rank import is_same_on_all_ranks
from ..queries.saved_state import SAVES, made_by
from ..rule import ContractRule, Example

_STATE = "torch.distributed.checkpoint.state_dict"
_GETS = frozenset(f"{_STATE}.get_{what}state_dict" for what in ("", "model_", "optimizer_"))


def overwritten(contract: Contract) -> Iterator[Breach]:
    """Files that every rank writes, all but one of them nothing."""
    for file, call, symbol in contract.calls(*SAVES):
        if len(call.args) < 2 or contract.guards.of(file, call) or not is_same_on_all_ranks(file, call.args[1]):
            continue
        if any(_may_tell_ranks(file, a.test) for a in file.ancestors(call) if isinstance(a, (ast.If, ast.IfExp))):
            continue
        made = list(made_by(contract.models, file, call.args[0], _GETS))
        if made and all(_is_on_rank_0_alone(*place) for place in made):
            message = "the full state is empty on all ranks but 0, and every rank writes this file"
            yield Breach(file, call, message, symbol)


def _may_tell_ranks(file: File, test: ast.expr) -> bool:
    return is_rank_condition(file, test) or not isinstance(test, ast.Compare)


def _is_on_rank_0_alone(file: File, call: ast.Call) -> bool:
    """Whether a state dict is asked for whole and offloaded: the other ranks then get none of it."""
    options = next((k.value for k in call.keywords if k.arg == "options"), None)
    choices = [options] if isinstance(options, ast.Call) else []
    if isinstance(options, (ast.Name, ast.Attribute)):
        choices = [v for v in assigned_values(file, options) if isinstance(v, ast.Call)]
    return bool(choices) and all(_is_true(c, "full_state_dict") and _is_true(c, "cpu_offload") for c in choices)


def _is_true(call: ast.Call, name: str) -> bool:
    return any(k.arg == name and isinstance(k.value, ast.Constant) and k.value.value is True for k in call.keywords)


RULE = ContractRule(
    id="FS913",
    title="full state that all ranks save",
    why="With full_state_dict and cpu_offload rank 0 alone has the state: a rank that writes it too leaves an empty file.",
    advice="let rank 0 alone write it",
    breaches=overwritten,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model):\n"
                "    fully_shard(model)\n"
                "    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))\n"
                '    torch.save(state, "model.pt")\n'
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
