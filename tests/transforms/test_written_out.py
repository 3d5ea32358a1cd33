"""Which wraps in DDP become plain calls of fully_shard, and which need the function that is right for any model."""

from __future__ import annotations

import pytest
from migrated_texts import helpers
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

PROGRAM = """
import torch
import zoo
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.inner(x)


class Net(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            self.blocks.append(Block())

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            x = block(x)
        return self.head(x)


def main(x, options):
    model = Net()
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).sum().backward()
    optimizer.step()


main(torch.ones(2, 4), {})
"""


def migrated(program: str) -> str:
    source = Source.decode("train.py", program.encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert not analysis.errors
    return analysis.texts["train.py"]


def test_a_model_that_is_seen_whole() -> None:
    text = migrated(PROGRAM)
    assert "    for block in model.blocks:\n        fully_shard(block)\n    fully_shard(model)\n" in text
    assert "fsdp2_helpers" not in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("nn.Linear(4, 2)", "zoo.head(4)"),
        ("self.head = nn.Linear(4, 2)", "self.head, self.width = zoo.heads(4)"),
        ("self.head = nn.Linear(4, 2)", "head = NAMES[depth](4)\n        self.head = head"),
        ("model = Net()", "model = nn.Sequential(NAMES['net'](), nn.Linear(2, 2))"),
        ("x = block(x)", "x = x + block.inner(x)"),
        ("x = block(x)", "x = self.blocks[i].inner(x)"),
        ("return self.head(x)", "return self.head(x), self.head.weight"),
        ("self.head = nn.Linear(4, 2)", "self.head = nn.Linear(4, 2)\n        self.scale = nn.Parameter(torch.tensor(1.0))"),
        ("return self.head(x)", "self.head.weight.data.clamp_(-1, 1)\n        return self.head(x)"),
        ("    model(x).sum()", "    model.module.head(x)\n    model(x).sum()"),
        ("    model(x).sum()", "    model.forward(x).sum()"),
        ("DDP(model)", "DDP(model, find_unused_parameters=options['unused'])"),
        ("model = Net()", "model = Net().to(f'cuda:{options}')"),
        ("backward()", "backward(create_graph=options['second'])"),
        ("nn.Linear(4, 2)", "nn.Linear(4, 2, dtype=torch.bfloat16)"),
        ("    model = DDP", "    model.head.weight.data = model.head.weight.data.half()\n    model = DDP"),
        ("return self.head(x)", "return torch.distributions.Normal(self.head(x), 1.0)"),
        ("return self.head(x)\n",
         "return Answer(self.head(x))\n\n\nclass Answer:\n    def __init__(self, x):\n        self.y = x\n"),
    ],
)
def test_what_needs_the_general_form(old: str, new: str) -> None:
    assert old in PROGRAM
    assert "shard_like_ddp(" in migrated(PROGRAM.replace(old, new, 1))


def test_parameters_of_several_dtypes_are_told_apart_at_the_wrap() -> None:
    half = PROGRAM.replace("nn.Linear(4, 2)", "nn.Linear(4, 2, dtype=torch.bfloat16)")
    assert "plain_parameters(part" in helpers(train=half)
    assert "plain_parameters(part" not in helpers(train=PROGRAM.replace("DDP(model)", "DDP(model, **options)"))


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("nn.Linear(4, 2)", "nn.BatchNorm1d(4)", "broadcast_buffers_before_forward(model)"),
        ("    model = DDP", "    early = torch.optim.SGD(model.parameters(), 1.0)\n    model = DDP", "rebound_parameters(model)"),
        ("4, 4)", "4, 4)\n        self.inner.weight.no_decay = True", "rebound_parameters(model)"),
        ("4, 2)", "4, 2)\n        for p in self.parameters():\n            setattr(p, 'scale', 2)", "rebound_parameters(model)"),
        ("optimizer.step()", "print(type(model).__name__)", "keep_class_name(model)"),
        ("optimizer.step()", "torch.save(model.state_dict(), 'x.pt')", '_wrapped_like = "ddp"  # the keys of its state dict'),
        ("DDP(model)", "DDP(model, device_ids=[options['gpu']])", "torch.cuda.set_device(options['gpu'])"),
    ],
)
def test_what_comes_with_the_plain_form(old: str, new: str, line: str) -> None:
    assert old in PROGRAM
    text = migrated(PROGRAM.replace(old, new, 1))
    assert line in text and "fully_shard(model)" in text


def test_a_dataclass_is_looked_into() -> None:
    answer = "return Answer(self.head(x))\n\n\n@dataclasses.dataclass\nclass Answer:\n    x: torch.Tensor\n"
    program = PROGRAM.replace("return self.head(x)\n", answer, 1).replace("zoo", "zoo, dataclasses", 1)
    assert "    fully_shard(model)" in migrated(program)


FSDP1 = PROGRAM.replace("nn.parallel import DistributedDataParallel", "distributed.fsdp import FullyShardedDataParallel")
EVALUATES = "optimizer.step()\n    with torch.no_grad():\n        model(x)\n"
READS = "    for p in model.parameters():\n        p.data.mul_(0.5)\n"


@pytest.mark.parametrize(("steps", "is_sharded_again"), [(EVALUATES, False), (EVALUATES + READS, True), (READS, False)])
def test_fsdp1_is_sharded_again_behind_evaluations(steps: str, is_sharded_again: bool) -> None:
    text = migrated(FSDP1.replace("optimizer.step()", steps.strip(), 1))
    assert "fully_shard(model)" in text
    assert ("reshard_after_evaluation(model)" in text) == is_sharded_again


@pytest.mark.parametrize(("made", "is_told"), [("torch.jit.script(model)", True), ("torch.compile(model)", False)])
def test_scripted_modules_are_told(made: str, is_told: bool) -> None:
    program = PROGRAM.replace("    model = DDP", f"    if options:\n        model = {made}\n    model = DDP", 1)
    source = Source.decode("train.py", program.encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert any("scripted" in finding.message for finding in analysis.findings if finding.rule == "FS120") == is_told


def test_a_scripted_module_in_an_attribute_is_told() -> None:
    program = (
        "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\n\nclass Runner:\n"
        "    def __init__(self, model, options):\n        self.model = model\n        if options:\n"
        "            self.model = torch.jit.script(self.model)\n\n"
        "    def distribute(self):\n        self.model = DDP(self.model)\n"
    )
    source = Source.decode("train.py", program.encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert any("scripted" in finding.message for finding in analysis.findings if finding.rule == "FS120")


@pytest.mark.parametrize(("mode", "computes"), [("one of norm, value, agc", True), ("one of norm, value", False)])
def test_clipping_by_layers_that_an_option_chooses_computes_with_whole_gradients(mode: str, computes: bool) -> None:
    clip = f"clip_grads(model.parameters(), options)  # {mode}\n    optimizer.step()"
    program = PROGRAM.replace("    optimizer.step()", f"    {clip}", 1).replace("import zoo", "from clips import clip_grads")
    assert ("compute_as_whole(model)" in migrated(program)) == computes
