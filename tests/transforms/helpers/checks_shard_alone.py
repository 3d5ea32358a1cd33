"""What the sharding helpers must do in a world of one process. Run as a script by test_shard_programs.py."""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
from models import batch, error_of, wrapper_of
from shard_models import MODELS, Residual, build, differences, optimizer_of, train
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.methods import forward_method
from to_fsdp2.transforms.helpers.shard import shard_like_fsdp1
from torch import nn
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

torch.set_num_threads(1)


def check_models_train_as_plain_ones() -> None:
    for name in MODELS:
        plain = build(name)
        expected = train(plain, optimizer_of(plain))
        runs = [shard_like_ddp(build(name)), shard_like_ddp(build(name), find_unused_parameters=True)]
        if name not in ("scalars", "complex and integer", "two types", "sparse gradients", "blocks that are called by parts"):
            runs.append(shard_like_fsdp1(build(name), auto_wrap_policy=ModuleWrapPolicy({Residual}), sync_module_states=True))
        for run in runs:
            tolerance = 1e-6 if name == "sparse gradients" else 0.0  # parts of them are summed in another order
            assert not differences([expected, train(run, optimizer_of(run))], tolerance), name


def check_without_a_process_group() -> None:
    """Helpers that may meet plain models need none."""
    model = nn.Linear(2, 2)
    assert wrapper_of(model) is None
    assert forward_method(model, "extra_repr")() == model.extra_repr()
    assert error_of(lambda: shard_like_ddp(model)) is not None


if __name__ == "__main__":
    check_without_a_process_group()
    with tempfile.NamedTemporaryFile() as store:
        dist.init_process_group("gloo", init_method=f"file://{store.name}", rank=0, world_size=1)
        check_models_train_as_plain_ones()
        assert batch(0)[0].shape == (8,)
        dist.destroy_process_group()
