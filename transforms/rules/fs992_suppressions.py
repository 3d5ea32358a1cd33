"""FS992: comments that are meant to leave a finding out, and do not."""

from __future__ import annotations

from ..findings import Level
from ..rule import Example, Rule

_WRONG = (
    "from torch.nn.parallel import DistributedDataParallel\n\n\n"
    "def f(model):\n"
    "    return isinstance(model, str)  # to-fsdp2: ignore[FS12O] never trained\n"
)

RULE = Rule(
    id="FS992",
    title="suppressions that say nothing",
    why="A comment of an unknown rule, in another form, or for what is not there any more hides nothing, and misleads.",
    advice="write `# to-fsdp2: ignore[FS120] reason`, `# to-fsdp2: sharded` or `plain` where a name is bound, or take it out",
    examples=(Example(before=_WRONG, after=_WRONG, level=Level.REVIEW),),
)
