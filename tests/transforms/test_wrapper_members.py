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


PRIVATE = """\
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp import _optim_utils, _runtime_utils, _traversal_utils


def look(model: FSDP, prefetch, strategy):
    {statement}
"""


@pytest.mark.parametrize(
    ("statement", "rule", "part"),
    [
        ("assert model._is_root", "FS614", "the root is the module of the last fully_shard call"),
        ("model._handle.reshard(True)", "FS614", "reshard() and unshard() of the module"),
        ("print(model.flat_param.shape)", "FS614", "named_parameters()"),
        ("_traversal_utils._get_fsdp_handles(model)", "FS001", "isinstance(module, FSDPModule)"),
        ("_optim_utils._flatten_optim_state(model)", "FS001", "torch.distributed.checkpoint.state_dict"),
        ("assert isinstance(prefetch, BackwardPrefetch)", "FS108", "with the setting that it belongs to"),
        ("assert isinstance(strategy, ShardingStrategy)", "FS107", "Ask for str"),
    ],
)
def test_what_is_left_to_a_person_says_what_to_write(statement: str, rule: str, part: str) -> None:
    analysis, _ = analyse_texts({"look.py": PRIVATE.format(statement=statement)})
    found = [f for f in analysis.findings if f.level is Level.MANUAL and not f.blocked_by]
    assert [(f.rule, part in f.advice) for f in found] == [(rule, True)]


@pytest.mark.parametrize(("member", "holds"), [("_mixed_precision", True), ("forward_prefetch", False)])
def test_a_member_that_is_set_in_vain_holds_where_it_counts(member: str, holds: bool) -> None:
    code = PRIVATE.format(statement=f"model.{member} = None\n    with model.no_sync():\n        model(strategy).backward()")
    analysis, results = analyse_texts({"look.py": code})
    assert [f.rule for f in analysis.findings if f.level is Level.MANUAL and not f.blocked_by] == ["FS614"]
    assert (results["look.py"] == code) is holds


def test_what_the_runtime_of_fsdp1_is_given_is_part_of_that_call() -> None:
    analysis, _ = analyse_texts({"look.py": PRIVATE.format(statement="_runtime_utils._reshard(model, model._handle, [True])")})
    assert "FS614" not in {finding.rule for finding in analysis.findings}


def test_private_parts_of_fsdp2_are_no_uses_of_fsdp1() -> None:
    code = """\
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.fsdp._fully_shard._fsdp_state import _get_module_fsdp_state


def settle(model):
    for module in model.modules():
        state = _get_module_fsdp_state(module)
        if state is not None:
            state._training_state = TrainingState.IDLE
"""
    analysis, _ = analyse_texts({"settle.py": code})
    assert not analysis.findings


@pytest.mark.parametrize(
    ("line", "test", "rule"),
    [
        ("from torch.distributed.fsdp._flat_param import FlatParameter", "isinstance(p, FlatParameter)", "FS614"),
        ("from torch.distributed.fsdp._common_utils import _is_fsdp_flattened", "_is_fsdp_flattened(p)", "FS001"),
        ("from torch.distributed.fsdp._traversal_utils import _get_fsdp_states", "_get_fsdp_states(p)", "FS001"),
    ],
)
def test_what_finds_nothing_of_fsdp2_without_an_error_holds(line: str, test: str, rule: str) -> None:
    code = f"""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{line}


def main(net):
    model = FSDP(net)
    return [p for p in model.parameters() if not {test}]
"""
    analysis, results = analyse_texts({"train.py": code})
    assert results["train.py"] == code
    assert [f.rule for f in analysis.findings if f.level is Level.MANUAL and not f.blocked_by] == [rule]
