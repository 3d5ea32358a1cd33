"""What is none of ours: other frameworks, other wrappers, averages with a `.module` of their own, parts that lose parameters."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, helpers, migrated

PADDLE = """import paddle
from paddle.distributed import fleet


class Trainer:
    def __init__(self, model, optimizer):
        self.model = fleet.distributed_model(model)
        self.optimizer = fleet.distributed_optimizer(optimizer)

    def save(self, path):
        paddle.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path)
"""


def test_code_of_another_framework_stays() -> None:
    train = HEAD + "def main():\n    model = DDP(nn.Linear(4, 4))\n    torch.save(model.state_dict(), 'a.pt')\n\n\nmain()\n"
    texts = migrated(train=train, other=PADDLE)
    assert texts["train"] != train and texts.get("other", PADDLE) == PADDLE
    assert not [f for f in findings(train=train, other=PADDLE) if f.file == "other.py"]


INSIDE = (
    HEAD
    + """{more}


def inside(model):
    return model.module if isinstance(model, (nn.parallel.DataParallel, DDP)) else model


def main():
    model = DDP(nn.Linear(4, 4))
    torch.save(inside(model).state_dict(), "a.pt")
    print(inside(several(nn.Linear(2, 2))))


main()
"""
)


@pytest.mark.parametrize(
    ("more", "stays"),
    [
        ("def several(net):\n    return net", False),
        ("from torch.nn import DataParallel as DP\n\n\ndef several(net):\n    return DP(net)", True),
        ("def several(net):\n    return torch.nn.DataParallel(net)", True),
        ("Several = nn.DataParallel\n\n\ndef several(net):\n    return Several(net)", True),
        ("def several(net):\n    return type(net) is torch.nn.DataParallel", False),
    ],
)
def test_wrappers_that_are_made_keep_their_module(more: str, stays: bool) -> None:
    text = migrated(train=INSIDE.replace("{more}", more))["train"]
    kept = "(model) if isinstance(" in text or ".module if isinstance(" in text
    assert kept == stays and ("    return model\n" in text) != stays


AVERAGE = (
    HEAD
    + """import copy


class Average:
    def __init__(self, model):
        self.module = copy.deepcopy(model)

    def update(self, model):
        pass


class Solver:
    def __init__(self, config):
        self.model, self.ema = DDP(nn.Linear(4, 4)), config["ema"]

    def fit(self, x):
        {used}
        module = self.ema.module if self.ema else self.model
        return module(x)


Solver({{}}).fit(torch.ones(2, 4))
"""
)


@pytest.mark.parametrize(("used", "stays"), [("self.ema.update(self.model)", True), ("self.ema.eval()", False)])
def test_what_is_asked_for_more_than_wrappers_have_keeps_its_module(used: str, stays: bool) -> None:
    text = migrated(train=AVERAGE.replace("{used}", used).replace("{{}}", "{}"))["train"]
    assert ("self.ema.module if self.ema else" in text) == stays
    assert "past_ddp" not in text


NORMS = (
    HEAD
    + """from torch.nn.utils import remove_weight_norm, weight_norm


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = weight_norm(nn.Linear(4, 4))

    def forward(self, x):
        return self.lin(x)

    def bare(self):
        remove_weight_norm(self.lin)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([Part(), Part()])

    def forward(self, x):
        return self.parts[1](self.parts[0](x))

    def bare(self):
        for part in self.parts:
            part.bare()


def main():
    model = DDP(Net())
    model(torch.ones(2, 4)).sum().backward()
    model.module.bare()


main()
"""
)


def test_methods_that_take_parameters_away_are_no_forwards() -> None:
    text = migrated(train=NORMS)["train"]
    assert "            part.bare()\n" in text and "    model.bare()\n" in text
    assert [f.rule for f in findings(train=NORMS) if f.rule == "FS419"]


LOADS = NORMS.replace("    def bare(self):\n        for part in self.parts:\n            part.bare()\n", "    def bare(self):\n"
                      "        self.load_state_dict(torch.load('a.pt'))\n")  # fmt: skip


def test_methods_that_load_their_own_state_are_no_forwards() -> None:
    assert LOADS != NORMS and "    model.bare()\n" in migrated(train=LOADS)["train"]


SCRIPT = HEAD.replace("import torch\n", "import torch\nimport utils\n") + """def load(path):
    if path.endswith(".zip"):
        from .archives import Archive
        return Archive(path)
    return utils.read(path)


def main(args):
    model = DDP(nn.Linear(4, 4), **args)
    torch.save(model.state_dict(), "a.pt")


if __name__ == "__main__":
    main({})
"""


def test_a_relative_import_that_leads_nowhere_makes_a_script_no_module() -> None:
    texts = migrated(train=SCRIPT, utils="def read(path):\n    return open(path)\n")
    assert "from fsdp2_helpers import" in texts["train"] and "from .fsdp2_helpers" not in texts["train"]
    assert "def shard_like_ddp(" in helpers(train=SCRIPT, utils="def read(path):\n    return open(path)\n")


UNWRAPPED = HEAD + """from timm.utils import unwrap_model
import random


class Super(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.depth = 3

    def sample(self, depth):
        self.depth = depth
        for i, block in enumerate(self.blocks):
            if i < random.choice([self.depth]):
                block.part = block.weight[:, :2]

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def main():
    model = DDP(Super())
    inside = unwrap_model(model)
    inside.sample(2)
    model(torch.ones(2, 4)).sum().backward()


main()
"""


def test_what_a_library_takes_out_of_a_wrapper_is_the_model() -> None:
    text = migrated(train=UNWRAPPED)["train"]
    assert 'forward_method(inside, "sample")(2)' in text and "whole_when_asked" not in text


def test_a_folder_below_that_nothing_imports_from_is_no_place_for_helpers() -> None:
    main = HEAD + "import tools\n\n\ndef main(args):\n    model = DDP(nn.Linear(4, 4), **args)\n"
    main += "    torch.save(tools.state(model), 'a.pt')\n\n\nif __name__ == '__main__':\n    main({})\n"
    tools = "def state(model):\n    return model.state_dict()\n"
    other = main.replace("import tools\n", "")
    files = {"image/main": main, "image/light": main, "image/tools": tools, "image/labels/main": other, "video/run": other}
    texts = migrated(**files)
    assert "labels" not in texts["image/main"] + texts["image/light"]
