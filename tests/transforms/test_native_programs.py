"""Programs that call fully_shard themselves: their code for sharded models stays, whatever it is called on."""

from __future__ import annotations

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
    torch.nn.utils.clip_grad_norm_(trainer.net.parameters(), 1.0)
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


def test_other_programs_are_migrated_in_full() -> None:
    assert migrated(build=BUILD.format(native="pass"), save=SAVE)["save"] != SAVE
