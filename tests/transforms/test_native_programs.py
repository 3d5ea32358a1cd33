"""Programs that call fully_shard themselves: their code for sharded models stays, whatever it is called on."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated
from to_fsdp2.transforms.findings import Level

BUILD = HEAD + """from torch.distributed.fsdp import fully_shard


def build(net, options):
    if options.pop("native"):
        {native}
        return net
    return DDP(net, **options)
"""
SAVE = """import torch
from torch.distributed.tensor import DTensor

import build


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def save(trainer, path):
    torch.save({key: local(value) for key, value in trainer.net.state_dict().items()}, path)


def step(trainer):
    trainer.net.no_sync()


class Own:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


if __name__ == "__main__":
    build.build(None, {})
"""


def test_what_nobody_sees_wrapped_stays() -> None:
    own = BUILD.format(native="fully_shard(net)")
    assert migrated(build=own, save=SAVE)["save"] == SAVE
    assert "shard_like_ddp(net" in migrated(build=own, save=SAVE)["build"]
    told = [f for f in findings(build=own, save=SAVE) if f.rule == "FS120"]
    assert [f.level for f in told] == [Level.REVIEW] and "own code" in told[0].message


def test_what_is_known_to_come_from_ddp_is_migrated() -> None:
    text = HEAD + """from torch import distributed as dist
from torch.distributed.fsdp import fully_shard


def run(net, other, options, rank):
    fully_shard(other)
    model = DDP(net, **options)
    optimizer = torch.optim.AdamW(model.parameters())
    for p in model.parameters():
        dist.all_reduce(p.grad)
    if rank == 0:
        torch.save(optimizer.state_dict(), "optimizer.pt")
        torch.save(model, "model.pt")
"""
    new = migrated(train=text)["train"]
    assert "on_whole(dist.all_reduce)(p.grad)" in new and "as_plain(model)" in new
    assert new.index("optimizer.state_dict()") < new.index("if rank == 0") or "whole_on_each_rank(" in new


@pytest.mark.parametrize("native", ["pass", "pass  # TODO: fully_shard(net)", "fully_shard(net)"])
def test_files_of_other_programs_are_migrated_in_full(native: str) -> None:
    other = HEAD + "import save\n\n\nif __name__ == '__main__':\n    save.step(DDP(torch.nn.Linear(2, 2)))\n"
    shared = SAVE.partition("if __name__")[0].replace("import build\n", "")
    new = migrated(build=BUILD.format(native=native), save=shared, other=other)
    assert "no_gradient_sync(trainer.net)" in new["save"]


def test_optimizers_over_models_in_ddp_are_held_too() -> None:
    """Also where what saves them is code that works on sharded models of the program's own."""
    save = """import torch
from torch.distributed.tensor import DTensor


def save(model, optimizer, path):
    torch.save([model.state_dict(), optimizer.state_dict()], path)
"""
    train = HEAD + """from torch import distributed as dist
from torch.distributed.fsdp import fully_shard
from saving import save


def run(net, other, options):
    fully_shard(other)
    optimizer = torch.optim.AdamW(net.parameters())
    model = DDP(net, **options)
    if dist.get_rank() == 0:
        save(model, optimizer, "all.pt")


if __name__ == "__main__":
    run(nn.Linear(2, 2), nn.Linear(2, 2), {})
"""
    assert "with whole_on_each_rank(model, optimizer):" in migrated(train=train, saving=save)["train"]
