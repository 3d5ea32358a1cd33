"""Models that the wrappers of one program get, in the files of another one."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, texts

NETS = HEAD + """

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width))
        self.norm = nn.BatchNorm1d(width)

    def features(self, x):
        return self.norm(x * self.scale)

    def forward(self, x):
        return self.features(x)


class Twice(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(self.net(x))


def first(data):
    return data[0]


def small(width=3):
    return Net(width)
"""
TRAIN = HEAD + """import nets


def main(name):
    run = DDP({model})
    print(run(torch.ones(1, 3)))


if __name__ == "__main__":
    main("small")
"""
PROBE = HEAD + """import nets


def main(name):
    net = nets.__dict__[name]()
    head = DDP(nn.Linear(3, 1))
    print(head(net.features(torch.ones(1, 3))))
    print(sum(p.norm().item() for p in net.parameters()))


if __name__ == "__main__":
    main("small")
"""


@pytest.mark.parametrize("model", ["nets.__dict__[name]()", "nets.Twice(nets.__dict__[name]())"])
def test_a_model_that_another_program_wraps_is_plain(model: str) -> None:
    new = texts({"nets": NETS, "train": TRAIN.replace("{model}", model), "probe": PROBE})["probe"]
    assert "    print(head(net.features(torch.ones(1, 3))))\n" in new
    assert "    print(sum(p.norm().item() for p in net.parameters()))\n" in new


SHOW = """import nets


def show(net):
    print(net.features(torch.ones(1, 3)))


if __name__ == "__main__":
    show(nets.small())
"""
CALLED = HEAD + """import nets
{imported}

def main():
    net = nets.small()
    run = DDP(nets.Twice(net))
    print(run(torch.ones(1, 3)))
    {called}


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("imported", "called", "is_plain"), [
    ("", "pass", True),
    ("import probe\n", "probe.show(net)", False),
])  # fmt: skip
def test_a_file_that_the_program_with_the_wrapper_imports_may_get_it(imported: str, called: str, is_plain: bool) -> None:
    files = {"nets": NETS, "train": CALLED.format(imported=imported, called=called), "probe": HEAD + SHOW}
    assert ("    print(net.features(torch.ones(1, 3)))\n" in texts(files)["probe"]) is is_plain
