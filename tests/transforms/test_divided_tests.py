"""Guards that ask for the rank and for something that all ranks know: that is asked first, and the model held behind it."""

from __future__ import annotations

import textwrap

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """import torch.distributed as dist


def save(model, optimizer, path):
    torch.save([model.state_dict(), optimizer.state_dict()], path)


def main(net, epochs, every, path):
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
{guard}
"""
)
SAVE = "    # for later\n    save(model, optimizer, path)  # whole"


def becomes(guard: str) -> str:
    text = migrated(train=PROGRAM.format(guard=textwrap.indent(guard, "        ")))["train"]
    return textwrap.dedent(text.partition("range(epochs):\n")[2]).rstrip()


@pytest.mark.parametrize(
    ("test", "outer", "inner"),
    [
        ("dist.get_rank() == 0 and epoch % every == 0", "epoch % every == 0", "dist.get_rank() == 0"),
        ("epoch > 1 and epoch % every == 0 and not dist.get_rank()", "epoch > 1 and epoch % every == 0", "not dist.get_rank()"),
        ("dist.get_rank() == 0 and (epoch % every == 0 or every < 3)", "epoch % every == 0 or every < 3", "dist.get_rank() == 0"),
        ("(dist.get_rank() == 0\n        and epoch % every == 0)", "epoch % every == 0", "dist.get_rank() == 0"),
    ],
)
def test_what_all_ranks_know_is_asked_once(test: str, outer: str, inner: str) -> None:
    body = textwrap.indent(SAVE, "        ")
    expected = f"# now and then\nif {outer}:\n    with whole_on_each_rank(model, optimizer):\n        if {inner}:\n{body}"
    assert becomes(f"# now and then\nif {test}:\n{SAVE}") == expected


@pytest.mark.parametrize(
    "guard",
    [
        f"if dist.get_rank() == 0 and epoch % every == 0:\n{SAVE}\nelse:\n    print(epoch)",
        f"if dist.get_rank() == 0 or epoch % every == 0:\n{SAVE}",
        f"if (dist.get_rank() == 0  # the first\n        and epoch % every == 0):\n{SAVE}",
        f"if dist.get_rank() == 0:\n    if epoch % every == 0:\n    {SAVE.replace(chr(10), chr(10) + '    ')}",
    ],
)
def test_other_guards_stay_as_they_are(guard: str) -> None:
    assert textwrap.indent(guard, "    ") in becomes(guard) or guard in becomes(guard)
