"""FS991: a module of helpers that another version of the tool wrote."""

from __future__ import annotations

from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..rewrites.helper_place import is_current, is_untouched
from ..rule import ContractRule, Example
from ..text.generated import MARK, is_generated

_OLD = (
    "# SPDX-License-Identifier: MIT\n"
    "# Written by to-fsdp2 (hash 7cefa4e75376).\n"
    "# Made for code with: nothing special\n\n"
    "from __future__ import annotations\n\n"
    "import torch.distributed as dist\n\n\n"
    "def is_main():\n"
    "    return dist.get_rank() == 0\n"
)


def written_before(contract: Contract) -> Iterator[Breach]:
    """Modules that nobody has changed, and that this version would write otherwise."""
    for facts in contract.program.facts:
        text = contract.program.text(facts.path)
        if MARK in text and is_generated(text) and is_untouched(text) and not is_current(text):
            file = contract.program.file(facts.path)
            if file.tree.body:
                yield Breach(file, file.tree.body[0], "another version of to-fsdp2 wrote these helpers", level=Level.REVIEW)


RULE = ContractRule(
    id="FS991",
    title="helpers of another version",
    why="Helpers are copies: what was mended in them since then does not come by itself.",
    advice="to-fsdp2 apply writes the module anew, where this version has all of its functions",
    breaches=written_before,
    examples=(
        Example(
            before=_OLD,
            after=_OLD.replace("get_rank() == 0", "get_rank() == 0  # our own now"),
            level=Level.REVIEW,
            note="A module that somebody has changed is theirs.",
        ),
    ),
)
