"""Methods that DDP's wrapper does not have: where they are called on what may be one, the model is plain."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

NET = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))

    def sample(self, x):
        return x @ self.weight


"""
LEARNER = (
    HEAD
    + NET
    + """class Passing(DDP):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


class Learner:
    def __init__(self, rank):
        self.net = Net()
        if rank != -1:
            {wrap}

    def infer(self, x):
        {read}


def main(rank, x):
    return Learner(rank).infer(x)
"""
)
WRAP, READ = "self.net = DDP(self.net)", "return self.net.sample(x)"


@pytest.mark.parametrize(
    ("wrap", "read", "is_plain"),
    [
        (WRAP, READ, True),
        ("self.ddp = DDP(self.net)", READ, False),
        ("self.net = Passing(self.net)", READ, False),
        (f"{WRAP}; self.net = self.net.module", READ, False),
        (WRAP, "return self.net.module.sample(x) if isinstance(self.net, DDP) else self.net.sample(x)", False),
        (WRAP, "return self.net.sample(x) if hasattr(self.net, 'sample') else None", False),
    ],
)
def test_an_attribute_that_the_wrapper_replaces(wrap: str, read: str, is_plain: bool) -> None:
    text = migrated(train=LEARNER.format(wrap=wrap, read=read))["train"]
    assert ("forward_method(" not in text) == is_plain


@pytest.mark.parametrize(("name", "is_plain"), [("net", True), ("plain", False)])
def test_a_local_variable(name: str, is_plain: bool) -> None:
    code = "def main(rank, x):\n    net = plain = Net()\n    if rank != -1:\n        net = DDP(net)\n"
    code += f"    return {name}.sample(x)\n"
    text = migrated(train=HEAD + NET + code)["train"]
    assert ("forward_method(" not in text) == is_plain
