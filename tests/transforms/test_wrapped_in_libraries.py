"""Models in DDP that a library wraps once more: there DDP stays, and what belongs to it."""

from __future__ import annotations

from migrated_texts import HEAD, texts

BUILD = """from torch import nn


def build():
    return nn.Linear(2, 2)
"""
PREPARED = HEAD + """from accelerate import Accelerator
from torch.distributed.optim import ZeroRedundancyOptimizer
from build import build


def main(loader):
    accelerator = Accelerator()
    model = {made}
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    optimizer.consolidate_state_dict(to=0)


main([])
"""
OWN = HEAD + """from build import build


def main(x):
    model = DDP(build())
    model(x).sum().backward()


main(torch.ones(2, 2))
"""


def migrated(made: str) -> dict[str, str]:
    return texts({"build": BUILD, "prepared": PREPARED.format(made=made), "own": OWN})


def test_ddp_and_its_optimizer_stay_where_a_library_wraps_again() -> None:
    new = migrated("DDP(build())")
    assert new["prepared"] == PREPARED.format(made="DDP(build())")
    assert "fully_shard(model)" in new["own"]


def test_another_program_of_the_same_models_is_migrated() -> None:
    assert "fully_shard(model)" in migrated("build()")["own"]


def test_a_library_that_an_option_chooses_leaves_the_wrapper() -> None:
    """Without it the model is in DDP alone."""
    prepares = "    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
    program = PREPARED.format(made="DDP(build())").replace("Accelerator()\n", "Accelerator() if loader else None\n")
    assert prepares in program
    program = program.replace(prepares, f"    if accelerator is not None:\n    {prepares}")
    assert "DDP(" not in texts({"build": BUILD, "prepared": program})["prepared"]


TRAINER = HEAD + """import argparse
from accelerate import Accelerator


class Trainer:
    def __init__(self, args, model):
        self.args = args
        self.model = model
        if self.uses_ddp:
            self.model = DDP(self.model)
        self.prepare()

    @property
    def uses_ddp(self):
        return {asked}

    def prepare(self):
        if self.args.library:
            self.model = self.prepared(self.model)

    @staticmethod
    def prepared(model):
        return Accelerator().prepare(model)


def main():
    trainer = Trainer(argparse.ArgumentParser().parse_args(), nn.Linear(2, 2))
    trainer.model(torch.ones(2, 2)).sum().backward()


main()
"""


def test_an_option_chooses_the_library_or_the_wrapper() -> None:
    """Also where a property says which, and the library is called in a method of its own."""
    assert "DDP(" not in texts({"train": TRAINER.format(asked="self.args.ddp and not self.args.library")})["train"]
    assert "DDP(" in texts({"train": TRAINER.format(asked="self.args.ddp")})["train"]
