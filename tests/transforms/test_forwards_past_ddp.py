"""Forwards of the module inside of DDP, which sent no buffers: they keep each rank's own, where ranks may have some."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated
from to_fsdp2.transforms.findings import Level

PROGRAM = (
    HEAD
    + """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.norm = {norm}(2)

    def forward(self, x):
        return self.norm(self.layer(x))


def evaluate(net, batches):
    return [net(x) for x in batches]


def count(net):
    return sum(p.numel() for p in net.parameters())


def run(options, x, batches):
    model = DDP(Net(), **options)
    {use}
"""
)
RUNS = ["evaluate(model.module, batches)", "evaluate(net=model.module, batches=batches)", "model.module(x)",
        "inner = model.module\n    evaluate(inner, batches)",
        "evaluate(model.module if hasattr(model, 'module') else model, batches)"]  # fmt: skip
EITHER = "evaluate(model, batches)\n    evaluate(model.module, batches)"


def levels(use: str, norm: str) -> set[Level]:
    found = findings(train=PROGRAM.format(use=use, norm=norm))
    return {f.level for f in found if f.rule == "FS601" and "past DDP" in f.message}


@pytest.mark.parametrize("use", RUNS)
def test_they_keep_buffers(use: str) -> None:
    text = migrated(train=PROGRAM.format(use=use, norm="nn.BatchNorm1d"))["train"]
    assert "past_ddp(model)(x)" in text or "past_ddp(net)(x)" in text
    assert not levels(use, "nn.BatchNorm1d")
    assert "past_ddp" not in migrated(train=PROGRAM.format(use=use, norm="nn.LayerNorm"))["train"]


def test_those_that_may_be_of_the_wrapper_are_told_of() -> None:
    assert levels(EITHER, "nn.BatchNorm1d") == {Level.REVIEW}
    assert not levels(EITHER, "nn.LayerNorm")
    assert "past_ddp" not in migrated(train=PROGRAM.format(use=EITHER, norm="nn.BatchNorm1d"))["train"]


@pytest.mark.parametrize("use", ["count(model.module)", "torch.save(model.module.state_dict(), 'x')", "model(x)"])
def test_what_runs_nothing_is_left(use: str) -> None:
    assert not levels(use, "nn.BatchNorm1d")


LEARNS = (
    HEAD
    + """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)

    def loss(self, x):
        return self.layer(x).sum()

    @torch.no_grad()
    def score(self, x):
        return self.layer(x).sum()


def train(options, x, optimizer):
    model = DDP(Net(), **options)
    {use}
    model(x).sum().backward()
    optimizer.step()
"""
)


@pytest.mark.parametrize(
    ("use", "learns"),
    [
        ("model.module(x).sum().backward()", True),
        ("net = model.module if options else model\n    net(x).sum().backward()", True),
        ("model.module.loss(x).backward()", True),
        ("print(model.module.score(x))", False),
        ("with torch.no_grad():\n        print(model.module(x), model.module.loss(x))", False),
    ],
)
def test_gradients_past_ddp_are_told_of(use: str, learns: bool) -> None:
    """DDP reduced none of them."""
    found = {f.level for f in findings(train=LEARNS.format(use=use)) if "reduced no gradients" in f.message}
    assert found == ({Level.REVIEW} if learns else set())


POWERS = "model.module(x).sum().backward()\n    {read}"


@pytest.mark.parametrize(
    ("read", "is_other"),
    [
        ("print([p.grad.detach() ** 2 for p in model.parameters()])", True),
        ("print([p.grad.pow(2) for p in model.parameters()])", True),
        ("for p in model.parameters():\n        g = p.grad.clone()\n        print(g * g)", True),
        ("print([p.grad / 2 for p in model.parameters()])", False),
        ("print([p ** 2 for p in model.parameters()])", False),
    ],
)
def test_powers_of_gradients_past_ddp_are_open(read: str, is_other: bool) -> None:
    """They were of each rank's own gradients."""
    found = [f for f in findings(train=LEARNS.format(use=POWERS.format(read=read))) if f.rule in ("FS601", "FS716")]
    assert any(f.level is Level.MANUAL and "powers" in f.message for f in found) == is_other


def test_models_that_never_sent_buffers_run_as_they_are() -> None:
    program = PROGRAM.format(use="model.module(x)\n    print(isinstance(net, DDP))", norm="nn.BatchNorm1d")
    program = program.replace("def run(options,", "def run(options, net,")
    assert "past_ddp(model)(x)" in migrated(train=program)["train"]
    quiet = migrated(train=program.replace("**options)\n", "broadcast_buffers=False)\n", 1))["train"]
    assert "broadcast_buffers=False" in quiet and "past_ddp" not in quiet


def test_a_factory_that_looks_into_a_wrapper_on_the_way_takes_none_off() -> None:
    """What a function reads is not what it gives: `model` is the wrapper wherever it goes from here."""
    program = PROGRAM.format(norm="nn.BatchNorm1d", use="train(model, batches)").replace("model = DDP(Net(), **options)",
                                                                                          "model = create(options)")  # fmt: skip
    program += """

def create(options):
    net = Net()
    report(DDP(net, **options))
    return net


def report(model):
    print(model.module)


def train(model, batches):
    for x in batches:
        model(x).sum().backward()


def start(options):
    model = create(options)
    model = DDP(model, **options)
    train(model, [])
"""
    assert "past_ddp" not in migrated(train=program)["train"].partition("def train(")[2]


CHOSEN = HEAD + """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(x)


def convert(model):
    if isinstance(model, nn.DataParallel):
        made = model.module
        made = nn.DataParallel(convert(made))
        return made
    made = model
    return made


def train(model, loader):
    for x in loader:
        model(x).sum().backward()


def main(loader, several, device):
    model = Net()
    if several:
        model = convert(model)
        model = nn.DataParallel(model)
    else:
        model = DDP(model)
    {last}
    train(model, loader)
"""


@pytest.mark.parametrize("last", ["model = model.to(device)", "print(device)"])
def test_a_model_that_is_wrapped_last_runs_through_the_wrapper(last: str) -> None:
    assert "    model(x).sum()" in migrated(train=CHOSEN.format(last=last))["train"]


@pytest.mark.parametrize(("norm", "is_kept"), [("nn.BatchNorm1d", True), ("nn.LayerNorm", False)])
def test_where_no_wrap_sends_buffers_nothing_has_to_be_kept(norm: str, is_kept: bool) -> None:
    """Though something else has buffers that change, and not all that is called is seen."""
    use = "print(nn.BatchNorm1d)\n    evaluate(load(), batches)\n    evaluate(model.module, batches)"
    text = migrated(train="from other import load\n" + PROGRAM.format(use=use, norm=norm))["train"]
    assert ("past_ddp" in text) is is_kept


@pytest.mark.parametrize("found", [
    "inner = model.module", "try:\n            inner = model.module\n        except AttributeError:\n            inner = model",
])  # fmt: skip
def test_what_another_branch_unwraps_is_wrapped_here(found: str) -> None:
    """A flag in front says how the program evaluates, and not what the model is."""
    use = (
        f"if options['inner']:\n        {found}\n        inner(x)\n    else:\n"
        "        for one in batches:\n            if one is not None:\n                model(one)"
    )
    text = migrated(train=PROGRAM.format(use=use, norm="nn.BatchNorm1d"))["train"]
    assert "\n                model(one)" in text
