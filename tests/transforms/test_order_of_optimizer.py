"""Optimizers built before the wrap: moves that are sound, and those that are not."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

HEAD = "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\n"
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
WRAP = "model = DDP(model, broadcast_buffers=False)\n"


def migrate(body: str) -> tuple[str, set[Level]]:
    analysis, results = analyse_texts({"train.py": HEAD + body})
    return results["train.py"], {finding.level for finding in analysis.findings if finding.rule == "FS501"}


def places(text: str, *pieces: str) -> list[int]:
    assert all(piece in text for piece in pieces), text
    return [text.index(piece) for piece in pieces]


def test_the_sharding_moves_up_with_its_comment() -> None:
    text, levels = migrate(f"model = build()\n\n# train\n{OPTIMIZER}\n# wrap\nif ddp:\n    {WRAP}\nrun()\n")
    found = places(text, "model = build()", "# wrap", "fully_shard(model)", "# train", "optimizer =", "run()")
    assert found == sorted(found)
    assert levels == {Level.SAFE}


def test_the_optimizer_moves_below_a_device_move() -> None:
    text, _ = migrate(
        f"model = build()\n{OPTIMIZER}scheduler = Scheduler(optimizer)\nmodel.to(device)\n{WRAP}run(optimizer)\n"
    )
    found = places(text, "model.to(device)", "fully_shard(model)", "optimizer =", "scheduler =", "run(optimizer)")
    assert found == sorted(found)


def test_parameters_collected_before_the_wrap_move_too() -> None:
    text, _ = migrate(
        f"model = build()\ngroups = [p for p in model.parameters()]\n{WRAP}"
        "optimizer = torch.optim.SGD(groups, lr=0.1)\n"
    )
    found = places(text, "fully_shard(model)", "groups =", "optimizer =")
    assert found == sorted(found)


def test_an_optimizer_in_a_method_is_found() -> None:
    text, _ = migrate(
        "class Trainer:\n    def __init__(self, model):\n        self.model = model\n"
        "        self.optimizer = self.make()\n"
        "        self.model = DDP(self.model)\n\n    def make(self):\n"
        "        return torch.optim.SGD(self.model.parameters(), lr=0.1)\n\n\nTrainer(build())\n"
    )
    found = places(text, "fully_shard(self.model)", "self.optimizer = self.make()")
    assert found == sorted(found)


@pytest.mark.parametrize(
    "between",
    [
        "model, optimizer = amp.initialize(model, optimizer)\n",
        "model = quantize(model, optimizer)\n",
        "if resume(optimizer):\n    model.load_state_dict(weights)\n",
    ],
)
def test_what_needs_both_before_the_wrap_holds_the_group(between: str) -> None:
    body = f"model = build()\n{OPTIMIZER}{between}{WRAP}"
    text, levels = migrate(body)
    assert text == HEAD + body
    assert levels == {Level.MANUAL}


def test_where_neither_can_move_the_optimizer_gets_the_sharded_parameters() -> None:
    body = (
        "class Trainer:\n    def __init__(self, model, optimizer):\n        self.optimizer = optimizer\n"
        "        self.model = DDP(model)\n\n\n"
        f"model = build()\n{OPTIMIZER}Trainer(model, optimizer)\n"
    )
    text, levels = migrate(body)
    found = places(text, "def optimizers_following(", "class Trainer", "with optimizers_following(model, optimizer):\n", "for t")
    assert found == sorted(found)
    assert levels == {Level.REVIEW}


STUCK = """\
def prepare(module):
    return DDP(module)


def main():
    model = build()
    {build}
    if stop:
        print({name})
        return None
    {shard}
    {after}
"""
SGD = "torch.optim.SGD(model.parameters(), lr=0.1)"


def stuck(
    build: str = f"optimizer = {SGD}", name: str = "optimizer", shard: str = "model = prepare(model)", after: str = "run()"
) -> tuple[str, str, set[Level]]:
    """A program in which neither can move: the text before and after, and the levels."""
    body = STUCK.format(build=build, name=name, shard=shard, after=after)
    text, levels = migrate(body)
    return HEAD + body, text, levels


@pytest.mark.parametrize(
    ("changed", "head"),
    [
        ({}, "model, optimizer"),
        ({"build": f"optimizer = None\n    if train:\n        optimizer = {SGD}"}, "model, optimizer"),
        ({"build": f"optimizers = [{SGD}]", "name": "optimizers"}, "model, *optimizers"),
        ({"build": f"parameters = list(model.parameters())\n    optimizer = {SGD}"}, "model, optimizer"),
        ({"build": f"optimizer = {SGD}\n    other = torch.optim.Adam(model.parameters())"}, "model, optimizer, other"),
        ({"shard": "model = prepare(model) if ddp else model"}, "model, optimizer"),
        ({"shard": "model = DDP(model.to(device))"}, "model, optimizer"),
    ],
)
def test_ways_in_which_an_optimizer_follows(changed: dict[str, str], head: str) -> None:
    _, text, levels = stuck(**changed)
    assert f"    with optimizers_following({head}):\n        " in text
    assert levels == {Level.REVIEW}


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"build": f"optimizer = {SGD.replace('SGD', 'LBFGS')}"}, id="its-own-list"),
        pytest.param({"build": f"optimizer = {{'all': {SGD}}}"}, id="dictionary"),
        pytest.param({"build": f"if train:\n        optimizer = {SGD}"}, id="unbound"),
        pytest.param({"build": f"for _ in range(2):\n        optimizer = {SGD}"}, id="the-last-of-several"),
        pytest.param({"build": f"optimizer = {SGD}\n    engine(optimizer)"}, id="taken-outside"),
        pytest.param({"build": f"optimizer = {SGD}\n    model, optimizer = amp.begin(model, optimizer)"}, id="made-anew"),
        pytest.param({"shard": "model = torch.compile(prepare(model))"}, id="inside-an-expression"),
        pytest.param({"shard": "fit(prepare(model), optimizer)"}, id="training-in-the-statement"),
        pytest.param(
            {"build": "held = list(model.parameters())\n    optimizer = torch.optim.SGD(held)", "after": "clip(held)"},
            id="parameters-kept",
        ),
    ],
)
def test_where_an_optimizer_cannot_follow_the_group_is_held(changed: dict[str, str]) -> None:
    before, text, levels = stuck(**changed)
    assert text == before
    assert levels == {Level.MANUAL}


def test_functions_that_shard_and_train_are_no_place_to_follow() -> None:
    body = STUCK.format(build=f"optimizer = {SGD}", name="optimizer", shard="train(model)", after="run()")
    body = body.replace("def main", "def train(model):\n    model = prepare(model)\n    model(x).backward()\n\n\ndef main")
    text, levels = migrate(body)
    assert text == HEAD + body
    assert levels == {Level.MANUAL}


def test_the_innermost_place_is_taken_where_the_function_goes_on() -> None:
    body = STUCK.format(build=f"optimizer = {SGD}", name="optimizer", shard="train(model, optimizer)", after="run()")
    train = "def train(model, optimizer):\n    model = prepare(model)\n    optimizer.step()\n\n\n"
    text, _ = migrate(body.replace("def main", f"{train}def main"))
    assert "    with optimizers_following(model, optimizer):\n        model = prepare(model)\n    optimizer.step()" in text


OWN = """\
class Own(torch.optim.SGD):
    def __init__(self, params, lr):
        super().__init__(params, lr)
        {line}


"""


@pytest.mark.parametrize(("line", "follows"), [("self.rate = lr", True), ("self.kept = self.param_groups[0]", False)])
def test_own_optimizers_follow_unless_they_keep_parameters(line: str, follows: bool) -> None:
    build = "optimizer = Own(model.parameters(), 0.1)"
    body = STUCK.format(build=build, name="optimizer", shard="model = prepare(model)", after="run()")
    text, _ = migrate(OWN.format(line=line) + body)
    assert ("with optimizers_following(model, optimizer)" in text) is follows


PARTS = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


{classes}def main():
    model = {model}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if stop:
        print(optimizer)
        return None
    for i, layer in enumerate(model.layers):
        model.layers[i] = FSDP(layer)
    model = FSDP(model)
"""
NET = """\
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))


"""


def test_an_optimizer_follows_parts_that_are_sharded_on_their_own() -> None:
    _, results = analyse_texts({"train.py": PARTS.format(classes=NET, model="Net()")})
    assert "        with optimizers_following(layer, optimizer):\n            fully_shard(layer)\n" in results["train.py"]
    assert "    with optimizers_following(model, optimizer):\n        fully_shard(model)\n" in results["train.py"]


def test_parts_of_a_model_that_is_not_seen_hold_it() -> None:
    analysis, results = analyse_texts({"train.py": PARTS.format(classes="", model="build()")})
    assert "optimizers_following" not in results["train.py"]
    assert {f.level for f in analysis.findings if f.rule == "FS501"} == {Level.MANUAL}


def test_the_right_order_is_left_alone() -> None:
    text, levels = migrate(f"model = build()\n{WRAP}{OPTIMIZER}")
    assert text.endswith(f"fully_shard(model)\n{OPTIMIZER}")
    assert not levels


def test_optimizers_that_outside_code_builds_count() -> None:
    text, levels = migrate(
        f"from timm.optim import create_optimizer\n\nmodel = build()\noptimizer = create_optimizer(args, model)\n{WRAP}"
    )
    found = places(text, "model = build()", "fully_shard(model)", "optimizer =")
    assert found == sorted(found)
    assert levels == {Level.SAFE}


def test_the_sharding_does_not_move_before_its_process_group() -> None:
    text, _ = migrate(
        "def prepare():\n    torch.distributed.init_process_group('nccl')\n\n\n"
        f"model = build()\n{OPTIMIZER}prepare()\n{WRAP}"
    )
    found = places(text, "prepare()\nfor", "fully_shard(model)", "optimizer =")
    assert found == sorted(found)


def test_averages_from_before_the_sharding_are_for_a_person() -> None:
    body = f"from torch.optim.swa_utils import AveragedModel\n\nmodel = build()\nema = AveragedModel(model)\n{WRAP}"
    text, _ = migrate(body)
    assert text == HEAD + body


REFILLED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(2, 2)


def shard(model, optimizer):
    settings = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    optimizer.param_groups.clear()
    optimizer.state.clear()
    model.body = FSDP(model.body)
    optimizer.param_groups.clear()
    optimizer.add_param_group({"params": list(model.parameters()), **settings})


def main():
    model = Net()
    optimizer = torch.optim.SGD(model.body.parameters(), lr=0.1)
    shard(model, optimizer)
    return model, optimizer
"""


def test_groups_that_are_filled_again_behind_the_wrap_hold_the_sharded_parameters() -> None:
    analysis, results = analyse_texts({"train.py": REFILLED})
    assert "fully_shard(model.body)" in results["train.py"]
    assert not [f for f in analysis.findings if f.rule == "FS501"]
    never = REFILLED.replace("    optimizer.add_param_group", "    other.add_param_group")
    analysis, _ = analyse_texts({"train.py": never})
    assert any(f.rule == "FS501" for f in analysis.findings)


def test_comments_below_a_statement_move_with_it() -> None:
    text, _ = migrate(
        f"model = build()\n{OPTIMIZER}scheduler = Scheduler(optimizer)\n# scheduler = Other(optimizer,\n#     steps=3)\n\n"
        f"# device\nmodel.to(device)\n{WRAP}run(optimizer)\n"
    )
    assert "scheduler = Scheduler(optimizer)\n# scheduler = Other(optimizer,\n#     steps=3)\n" in text
    found = places(text, "# device", "model.to(device)", "fully_shard(model)", "optimizer =", "steps=3", "run(optimizer)")
    assert found == sorted(found)


def test_a_blank_line_in_front_of_what_stays_is_kept() -> None:
    text, _ = migrate(
        f"model = build()\nrate = 0.1\n{OPTIMIZER}\n# device\nmodel.to(device)\n{WRAP}run(optimizer)\n"
    )
    assert "rate = 0.1\n\n# device\nmodel.to(device)\n" in text


def test_a_paragraph_moves_whole_where_the_rest_of_it_only_sets_names() -> None:
    text, _ = migrate(
        f"model = build()\n\n# Optimizer\n{OPTIMIZER}\n# Schedule\nsteps = 10\ncurve = lambda x: x / steps\n"
        f"scheduler = Schedule(optimizer, curve)\n\n# device\nmodel.to(device)\n{WRAP}run(optimizer)\n"
    )
    moved = text.partition("fully_shard(model)\n")[2]
    assert moved == (
        f"\n# Optimizer\n{OPTIMIZER}\n# Schedule\nsteps = 10\ncurve = lambda x: x / steps\n"
        "scheduler = Schedule(optimizer, curve)\nrun(optimizer)\n"
    )


@pytest.mark.parametrize(
    ("heading", "goes_along"), [("# Optimizer", True), ("# Model", False), ("# the optimizer that we use", False)]
)
def test_a_heading_goes_along_with_what_leaves_its_paragraph(heading: str, goes_along: bool) -> None:
    text, _ = migrate(f"model = build()\n\n{heading}\nrate = ask()\n{OPTIMIZER}\nmodel.to(device)\n{WRAP}run(optimizer)\n")
    assert f"{heading}\nrate = ask()\n" in text
    assert (f"{heading}\n{OPTIMIZER}" in text) == goes_along
