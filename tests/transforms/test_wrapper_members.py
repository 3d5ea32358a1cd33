"""Members and private functions of the wrappers: where a model of FSDP2 has the like, and where nothing is sure."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.engine import Options
from to_fsdp2.transforms.findings import Level

GROUP = """\
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def main(net, seen, group):
    model = FSDP(net{arguments})
    dist.all_reduce(seen, group=model.process_group)
"""
RESHARD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp._runtime_utils import _reshard


def free(model: FSDP, keep):
    _reshard(model, model._handle, {flag})
"""


@pytest.mark.parametrize("arguments", ["", ", sharding_strategy=ShardingStrategy.SHARD_GRAD_OP", ", use_orig_params=True"])
def test_the_group_of_a_model_over_all_ranks_is_the_default_one(arguments: str) -> None:
    _, results = analyse_texts({"train.py": GROUP.format(arguments=arguments)})
    assert "group=dist.group.WORLD" in results["train.py"]


@pytest.mark.parametrize("arguments", [", process_group=group", ", sharding_strategy=ShardingStrategy.HYBRID_SHARD", ", **group"])
def test_another_group_is_left_to_a_person(arguments: str) -> None:
    analysis, results = analyse_texts({"train.py": GROUP.format(arguments=arguments)})
    assert "group=model.process_group" in results["train.py"]
    assert [f.level for f in analysis.findings if f.rule == "FS805"] == [Level.MANUAL]


@pytest.mark.parametrize(("flag", "freed"), [("True", True), ("[True]", True), ("keep", False), ("False", False)])
def test_only_what_is_freed_becomes_reshard(flag: str, freed: bool) -> None:
    _, results = analyse_texts({"free.py": RESHARD.format(flag=flag)})
    assert ("model.reshard()" in results["free.py"]) is freed


GIVEN_UP = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp._runtime_utils import _post_backward_final_callback


def clean(model: FSDP):
    _post_backward_final_callback(model, model)
"""


def test_a_backward_that_was_given_up_is_reset_where_torch_can() -> None:
    analysis, results = analyse_texts({"clean.py": GIVEN_UP})
    assert "_post_backward_final_callback(model, model)" in results["clean.py"]
    assert [f.level for f in analysis.findings if f.rule == "FS613"] == [Level.MANUAL]
    _, results = analyse_texts({"clean.py": GIVEN_UP}, Options(target_torch=(2, 13)))
    assert "    model.reset_iter_state()\n" in results["clean.py"]


def test_the_mesh_of_a_unit_is_named_where_it_is_read() -> None:
    text = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class State:
    def __init__(self, net):
        self.net = net
        self.net.model = FSDP(net.model)

    def mesh(self):
        return self.net.model._device_mesh
"""
    analysis, results = analyse_texts({"state.py": text})
    assert "fully_shard" in results["state.py"] and "self.net.model._device_mesh" in results["state.py"]
    assert any(f.level is Level.MANUAL and "_device_mesh" in f.message for f in analysis.findings)
