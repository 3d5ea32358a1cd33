"""Objects that some ranks alone have, and those that each rank makes in a branch of its own."""

from __future__ import annotations

from migrated_texts import HEAD, migrated

BRANCHES = HEAD + """import torch.distributed as dist


class Trainer:
    def __init__(self, net, logger=None):
        self.model = DDP(net)
        self.logger = logger

    def load(self, path):
        self.model.module.load_state_dict(torch.load(path))

    def step(self, x):
        loss = self.model(x).sum()
        if self.logger is not None:
            torch.save(self.model.module.state_dict(), "x.pt")
        loss.backward()


def main(net, data, path):
    if dist.get_rank() == 0:
        trainer = Trainer(net, logger=open("log.txt"))
    else:
        trainer = Trainer(net)
    if path is not None:
        trainer.load(path)
    for x in data:
        trainer.step(x)
    if trainer.logger is not None:
        torch.save(trainer.model.module.state_dict(), "last.pt")


main(nn.Linear(2, 2), [], None)
"""


def test_an_object_that_is_made_in_both_branches_is_on_all_ranks() -> None:
    """What some ranks alone have is its logger: a save behind that is guarded, and nothing around it."""
    text = migrated(train=BRANCHES)["train"]
    assert text.count("on_each_rank(") == 0
    assert "        model_state_dict = self.model.state_dict()\n        if self.logger is not None:\n" in text
    assert "        trainer.load(path)\n" in text
    assert "    for x in data:\n        trainer.step(x)\n    model_state_dict = trainer.model.state_dict()\n" in text
