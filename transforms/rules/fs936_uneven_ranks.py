"""FS936: `join` of the helpers around a loop whose ranks do not wait for each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..queries.file import File
from ..rule import ContractRule, Example

_WAITS = "until_all_ranks_finish"


def nobody_waits(contract: Contract) -> Iterator[Breach]:
    """Contexts of programs in which no loop keeps finished ranks company for the others."""
    files = [contract.program.file(index) for index in range(len(contract.program.facts))]
    waiting = {file.path for file in files if any(_calls_helper(contract, file, _WAITS))}
    for file in files:
        for call in _calls_helper(contract, file, "join"):
            if waiting.isdisjoint(contract.programs.sharing_entries(file.path)):
                yield Breach(file, call, f"no loop over {_WAITS} is in it: ranks with more batches wait for the others for ever")


def _calls_helper(contract: Contract, file: File, name: str) -> Iterator[ast.Call]:
    """The calls of a function that the tool wrote, by its own code left out."""
    for call in file.nodes(ast.Call) if name in file.source.text else ():
        if isinstance(call.func, ast.Name) and call.func.id == name and not contract.is_of_helpers(file, call):
            owners = map(contract.program.function_node, contract.program.callees(file, call))
            if any(contract.is_of_helpers(owner, node) for owner, node in owners):
                yield call


RULE = ContractRule(
    id="FS936",
    title="ranks with unequal numbers of batches",
    why="Every rank takes part in each gather: one that has run out of batches has to go on for the others, or they hang.",
    advice="for batch in until_all_ranks_finish(loader, model), and skip what counts where repeats_batch(model)",
    breaches=nobody_waits,
    examples=(
        Example(
            before=(
                "from contextlib import nullcontext\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def join(joinables):\n"
                "    return nullcontext(joinables)\n\n\n"
                "def f(model, loader):\n"
                "    fully_shard(model)\n"
                "    with join([model]):\n"
                "        for batch in loader:\n"
                "            model(batch).sum().backward()\n"
            ),
            after=(
                "from contextlib import nullcontext\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def join(joinables):\n"
                "    return nullcontext(joinables)\n\n\n"
                "def until_all_ranks_finish(batches, model):\n"
                "    return batches\n\n\n"
                "def f(model, loader):\n"
                "    fully_shard(model)\n"
                "    with join([model]):\n"
                "        for batch in until_all_ranks_finish(loader, model):\n"
                "            model(batch).sum().backward()\n"
            ),
            level=Level.MANUAL,
            note="The two functions stand for the helpers of these names.",
        ),
    ),
)
