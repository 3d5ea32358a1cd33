"""A wrap sees to what the program asks of its model beside training: evaluations and state dicts, whoever asks."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, helpers, migrated

PROGRAM = (
    HEAD
    + """{imports}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)

    def sample(self, x):
        return self.layer(x)


{around}


def main(batches, options):
    model = DDP(Net(), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
    {body}


if __name__ == "__main__":
    main(torch.ones(2, 4), {{}})
"""
)
NO_GRAD = "with torch.no_grad():\n        "
UPDATE = """@torch.no_grad()
def update(target, source):
    for p, q in zip(target.parameters(), source.parameters()):
        p.lerp_(q, 0.1)"""
METER = """class Meter:
    def __init__(self, model):
        self.model = model

    def update(self, x):
        return self.model(x)"""
EVALUATE = """@torch.inference_mode()
def evaluate(net, xs):
    return [net(x) for x in xs]"""


def made(body: str, imports: str = "", around: str = "") -> str:
    return helpers(train=PROGRAM.format(body=body, imports=imports, around=around))


@pytest.mark.parametrize(
    ("body", "around", "evaluates"),
    [
        ("return model", "", False),
        (NO_GRAD + "print(batches.sum().item(), [b.mean() for b in batches])", "", False),
        ("update(Net(), model)", UPDATE, False),
        (NO_GRAD + "model(batches)", "", True),
        (NO_GRAD + "model.module.sample(batches)", "", True),
        (NO_GRAD + "getattr(model.module, 'sample')(batches)", "", True),
        (NO_GRAD + "list(map(model, batches))", "", True),
        (NO_GRAD + "Meter(model).update(batches)", METER, True),
        ("run(model)", "def run(step):\n    with torch.no_grad():\n        step(torch.ones(4))", True),
        ("without = torch.no_grad()\n    with without:\n        model(batches)", "", True),
        ("torch.set_grad_enabled(False)\n    model(batches)", "", True),
        ("return evaluate(model, batches)", EVALUATE, True),
        ("return inference_on_dataset(model, batches)", "from lab.evaluation import inference_on_dataset\n", True),
        ("return build_on_dataset(model, batches)", "from lab.evaluation import build_on_dataset\n", False),
        ("pipe = Pipeline.from_parts(unet=model.module)\n    " + NO_GRAD + "pipe(batches)", "from pipes import Pipeline", True),
    ],
)
def test_evaluations(body: str, around: str, evaluates: bool) -> None:
    assert ("def gather_once_in_evaluation(" in made(body, around=around)) == evaluates


AVERAGE = """average = Net()
    for p, q in zip(average.parameters(), model.parameters()):
        p.data.lerp_(q.data, 0.1)"""
SAVER = "class Saver(Base):\n    def __init__(self, model):\n        self.model = model"


@pytest.mark.parametrize(
    ("body", "imports", "around", "takes"),
    [
        ("return model", "", "", False),
        ("scaler = torch.amp.GradScaler()\n    scaler.step(optimizer)", "", "", False),
        ("torch.save(model.state_dict(), 'x')", "", "", True),
        ("return optimizer.state_dict()", "", "", True),
        ("return getattr(model, 'state_dict')()", "", "", True),
        ("save(model)", "from savers import save", "", True),
        ("Checkpoint({'model': model, 'optimizer': optimizer})", "from ignite.handlers import Checkpoint", "", True),
        ("kept = {'model': model}\n    Checkpoint(kept)", "from ignite.handlers import Checkpoint", "", True),
        ("get_model_state_dict(model)", "from torch.distributed.checkpoint.state_dict import get_model_state_dict", "", True),
        ("Saver(model).run()", "from savers import Base", SAVER, True),
    ],
)
def test_takers_of_states(body: str, imports: str, around: str, takes: bool) -> None:
    assert ("def keep_state_dicts_whole(" in made(body, imports, around)) == takes


@pytest.mark.parametrize(
    ("body", "writes"),
    [
        ("for p in model.parameters():\n        p.data.clamp_(-0.1, 0.1)", True),
        ("for p in model.parameters():\n        p.data = p.data * 0.9", True),
        ("for p in model.parameters():\n        p.grad.mul_(0.5)", False),
        (AVERAGE, False),
        ("print([p.grad.norm().item() for p in model.parameters()])", False),
    ],
)
def test_what_is_written_in_place_is_what_an_optimizer_knows(body: str, writes: bool) -> None:
    """A forward whose backward never comes leaves the root gathered: what is written then would be lost."""
    text = migrated(train=PROGRAM.format(body=body, imports="", around="").replace(", **options", ""))["train"]
    assert ("    reshard_after_forward(model)\n" in text) == writes
    assert "compute_as_whole" not in text
