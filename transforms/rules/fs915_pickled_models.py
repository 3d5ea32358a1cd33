"""FS915: a sharded model that is pickled or copied as an object."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..queries.saved_state import SAVES
from ..rule import ContractRule, Example

_COPIES = ("copy.deepcopy", "torch.optim.swa_utils.AveragedModel", "torch.optim.swa_utils.get_ema_avg_fn")


def as_objects(contract: Contract) -> Iterator[Breach]:
    """Copies and files of sharded models themselves."""
    for file, call, symbol in contract.calls(*SAVES, *_COPIES):
        given = call.args[0] if call.args else None
        if not isinstance(given, (ast.Name, ast.Attribute, ast.Subscript)):
            continue
        calls = contract.sharded(file, given)
        if calls and contract.is_after(file, call, calls, given) and not (symbol in _COPIES and contract.is_copied_plain(calls)):
            what = "pickled" if symbol in SAVES else "copied"
            yield Breach(file, call, f"{ast.unparse(given)} is sharded by now, and cannot be {what}", symbol, model=given)


RULE = ContractRule(
    id="FS915",
    title="sharded models copied or pickled",
    why="A sharded model is no object that can be copied: deepcopy, AveragedModel and torch.save of it raise.",
    advice="copy in front of fully_shard and shard both; save state dicts",
    breaches=as_objects,
    examples=(
        Example(
            before=(
                "import copy\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model):\n"
                "    fully_shard(model)\n"
                "    return model, copy.deepcopy(model)\n"
            ),
            after=(
                "import copy\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model):\n"
                "    average = copy.deepcopy(model)\n"
                "    fully_shard(model)\n"
                "    fully_shard(average)\n"
                "    return model, average\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
