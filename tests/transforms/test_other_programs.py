"""Programs of one repository that share classes of models: what one of them wraps is not sharded in another."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, texts

MODELS = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.body = nn.Linear(width, width)

    def features(self, x):
        return torch.relu(self.body(x))

    def forward(self, x):
        return self.features(x)


def net_tiny(**kwargs):
    net = Net(**kwargs)
    return net
"""
TRAIN = HEAD + """import models


def main():
    model = DDP(models.net_tiny())
    model(torch.ones(3)).sum().backward()


if __name__ == "__main__":
    main()
"""
UNKNOWN = TRAIN.replace("DDP(models.net_tiny())", "DDP(models.read())")
PROBE = HEAD + """import models


def main(name):
    model = {made}
    head = DDP({head})
    train(model, head)


def train(model, head):
    head(model.features(torch.ones(3))).sum().backward()


if __name__ == "__main__":
    for name in ("net_tiny", "Net"):
        main(name)
"""


@pytest.mark.parametrize("other", [TRAIN, UNKNOWN])
@pytest.mark.parametrize("made", ["models.Net()", "models.net_tiny(width=3)", "models.__dict__[name](width=3)"])
def test_a_model_that_only_another_program_wraps_is_plain(other: str, made: str) -> None:
    probe = PROBE.format(made=made, head="nn.Linear(3, 1)")
    assert "model.features(" in texts({"models": MODELS, "train": other, "probe": probe})["probe"]


@pytest.mark.parametrize("head", ["model", "nn.Sequential(model)"])
def test_a_model_that_its_own_program_wraps_is_not(head: str) -> None:
    probe = PROBE.format(made="models.net_tiny(width=3)", head=head)
    assert 'forward_method(model, "features")(' in texts({"models": MODELS, "train": TRAIN, "probe": probe})["probe"]


def test_a_program_that_something_out_of_sight_runs_counts_for_what_it_imports() -> None:
    """Also where another program, which never wraps, imports the same file."""
    train = HEAD + "import states\n\n\ndef train(net):\n    model = DDP(net)\n    states.save(model)\n    return model\n"
    states = "import torch\n\n\ndef save(model):\n    torch.save(model.module.state_dict(), 'a.pt')\n"
    plain = "import states\n\nif __name__ == '__main__':\n    print(states.__name__)\n"
    run = "from far.away.train import train\n\nif __name__ == '__main__':\n    train(None)\n"
    new = texts({"train": train, "states": states, "plain": plain, "run": run})
    assert "shard_like_ddp(net)" in new["train"]
    assert "model.module" not in new["states"]


NET = HEAD + """import torch.distributed as dist


class Model:
    def __init__(self, net, wraps=False):
        self.net = DDP(net) if wraps else net

    def load(self, path):
        self.net.load_state_dict(torch.load(path))
"""
TRAINS = """import torch
import torch.distributed as dist
from net import Model

if __name__ == "__main__":
    {start}
    model = Model(torch.nn.Linear(2, 2), True)
    torch.save(model.net.state_dict(), "a.pt")
"""
RUNS = """import torch
from net import Model

if __name__ == "__main__":
    model = Model(torch.nn.Linear(2, 2))
    torch.save(model.net.state_dict(), "b.pt")
"""


def test_a_program_that_starts_no_process_group_has_nothing_sharded() -> None:
    trains = TRAINS.format(start="dist.init_process_group('gloo')")
    new = texts({"net": NET, "train": trains, "run": RUNS})
    assert new["run"] == RUNS
    assert "model_state(model.net)" in new["train"]


def test_where_the_start_is_out_of_sight_any_program_may_be_distributed() -> None:
    new = texts({"net": NET, "train": TRAINS.format(start="pass"), "run": RUNS})
    assert "model_state(model.net)" in new["run"]


STATES = """import torch


def keep(model):
    torch.save(model.module.state_dict(), "a.pt")


def on_first(model):
    if torch.distributed.get_rank() == 0:
        torch.save(model.module.state_dict(), "b.pt")
"""


@pytest.mark.parametrize(
    "calls, is_left",
    [
        ("", True),
        ("states.keep(model); states.on_first(model)", False),
        ("getattr(states, name)(model)", False),
        ("globals()[f'on_{name}'](model); globals()['keep'](model)", False),
        ("handlers = {n: getattr(torch, n) for n in names}", True),
    ],
)
def test_what_no_program_can_call_is_left_alone(calls: str, is_left: bool) -> None:
    train = HEAD + f"""import states


def main(name, names):
    model = DDP(nn.Linear(2, 2))
    model(torch.ones(2)).sum().backward()
    {calls}


if __name__ == "__main__":
    main("first", [])
"""
    assert (texts({"train": train, "states": STATES})["states"] == STATES) is is_left
