"""State of a model that a function unwraps, gathered in front of guards that name a split."""

from __future__ import annotations

import pytest
from state_programs import DDP, findings, migrated

LOSES = "where DDP wrapped the model, keys began with module."
UNWRAP = """
def unwrap(model):
    return model.module if distributed else model


def whole(model):
    return model


def main(net, rank):
    if distributed:
        net = DDP(net)
    {save}
"""


@pytest.mark.parametrize(
    ("save", "loses"),
    [
        ("state = unwrap(net).state_dict()", False),
        ("bare = unwrap(net)\n    state = bare.state_dict()", False),
        ("state = (net.module if distributed else net).state_dict()", False),
        ("state = whole(net).state_dict()", True),
        ("state = net.state_dict()", True),
    ],
)
def test_only_what_was_wrapped_had_a_prefix(save: str, loses: bool) -> None:
    (finding,) = findings(DDP, UNWRAP.format(save=save), "FS402")
    assert (LOSES in finding.message) is loses


EVALUATE = """
class Runner:
    def save(self):
        torch.save(self.model.module.state_dict(), "best.pt")

    def train(self, net, rank):
        self.model = DDP(net)
        best = 0
        for split in self.splits:
            scores = self.evaluate(split)
            if rank == 0:
                score = scores["mean"]
                if score > best and split == "val":
                    self.save()


def main(net, rank):
    Runner().train(net, rank)
"""


def test_state_is_gathered_for_the_split_that_is_saved() -> None:
    after = migrated(DDP, EVALUATE)
    before_guard = after.partition("scores = self.evaluate(split)\n")[2].partition("if rank == 0:")[0]
    assert before_guard.startswith('            if split == "val":\n                model_state_dict = get_model_state_dict(')


def test_state_of_a_model_that_is_imported_from_outside() -> None:
    after = migrated("from zoo import net\n" + DDP, "model = DDP(net)\nstate = model.module.state_dict()\n")
    assert "state = get_model_state_dict(" in after


CHOSEN = """
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP


def is_wrapped(model):
    return isinstance(model, (torch.nn.DataParallel, DDP, FSDP, FSDPModule))


def save_on_master(*args):
    if dist.get_rank() == 0:
        torch.save(*args)


def save(model):
    state = model.module.state_dict() if is_wrapped(model) else model.state_dict()
    {use}


def main(net):
    model = DDP(net) if small else FSDP(net)
    save(model)
"""


@pytest.mark.parametrize(
    ("use", "options"),
    [
        ('save_on_master(state, "model.pt")', "full_state_dict=True, cpu_offload=True"),
        ('torch.save(state, "model.pt")', "full_state_dict=True"),
    ],
)
def test_choice_of_which_rank_zero_alone_has_use(use: str, options: str) -> None:
    after = migrated(DDP, CHOSEN.format(use=use))
    assert f"StateDictOptions({options})\n    ) if is_wrapped(model) else model.state_dict()\n" in after


OVERRIDDEN = """
class Runner:
    def train(self, net, rank):
        self.model = DDP(net)
        if rank == 0:
            self.save()

    def save(self):
        model_no_ddp = self.model.module
        state = model_no_ddp.state_dict()
        torch.save(state, "model.pt")


class Other(Runner):
    def train(self, net, rank):
        self.model = DDP(net)
        if rank == 0:
            self.save()

    def save(self):
        torch.save(self.model.module.state_dict(), "model.pt")


def main(net, rank, other):
    (Other() if other else Runner()).train(net, rank)
"""


def test_methods_that_override_each_other_get_the_same_parameter() -> None:
    after = migrated(DDP, OVERRIDDEN)
    assert after.count("def save(self, model_state_dict):") == 2, after


AVERAGE = """
class Average:
    def update(self, model):
        for name, tensor in model.module.state_dict().items():
            self.state[name].lerp_(tensor, 0.1)


def main(net, rank):
    model = DDP(net)
    average = Average()
    if rank == 0:
        average.update(model)
"""


def test_a_parameter_that_served_the_read_alone_is_named() -> None:
    (finding,) = findings(DDP, AVERAGE, "FS402")
    assert finding.message.endswith("model is not read there any more")
