"""Names that a model has in front of its wrap: they stand for the sharded one, so that nothing has to be said behind it."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = HEAD + """def main(net, args, options, path):
    model = net
    {front}
    if args.resume:
        print(path)
    elif args.distributed:
        model = DDP(model, **options)
        {between}
        bare = model.module
    torch.save(bare.state_dict(), path)
"""


@pytest.mark.parametrize(("front", "between", "goes"), [
    ("bare = model", "print(path)", True), ("bare = model\n    print(bare)", "args.step = 0", True),
    ("bare = net", "print(path)", False), ("bare = model\n    model = model.cpu()", "print(path)", False),
    ("bare = model", "model = torch.compile(model)", False), ("bare = model", "bare = None", False),
    ("bare = model", "# the one inside", False), ("bare = None", "print(path)", False),
])  # fmt: skip
def test_a_name_that_stands_for_it_already_is_not_given_again(front: str, between: str, goes: bool) -> None:
    text = migrated(train=PROGRAM.format(front=front, between=between))["train"]
    behind = text[text.index("shard_like_ddp(model") :]
    assert ("bare =" not in behind.replace("bare = None", "")) == goes
    assert "module" not in behind or "torch.compile" in between
