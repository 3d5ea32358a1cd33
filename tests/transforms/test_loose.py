"""Sites of no known group: what holds them, and what waits because of them."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

SHARDED = """\
import torch
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType


class RankFiles:
    def save(self, model, optimizer, path):
        assert isinstance(model, FSDP)
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            state = {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}
            torch.save(state, path)

    def join(self, values):
        parts = [value for value in values if isinstance(value, ShardedTensor)]
        whole = self.gather(parts)
        return whole

    def gather(self, parts: list[ShardedTensor]):
        return torch.cat([shard.tensor for part in parts for shard in part.local_shards()])


class Full:
    def save(self, model, path):
        assert isinstance(model, FSDP)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            torch.save(model.state_dict(), path)
"""
WRAP_OF_FSDP1 = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(net, batch):
    model = FSDP(net)
    model(batch).sum().backward()
"""
WRAP_OF_DDP = """\
import third_party.checkpoints
from torch.nn.parallel import DistributedDataParallel as DDP


def main(net, batch):
    model = DDP(net)
    third_party.checkpoints.save_model(model)
"""
HELPER = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def is_sharded(model):
    return isinstance(model, FSDP)
"""
SILENT = """\
def make(check):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    return check(lambda module: not isinstance(module, FSDP))
"""


def test_what_expects_sharded_tensors_holds_only_what_makes_them() -> None:
    analysis, results = analyse_texts({"files.py": SHARDED})
    text = results["files.py"]
    before, after = text.split("class Full:")
    assert "with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):" in before
    assert "assert isinstance(model, FSDP)\n" in before
    assert "assert isinstance(model, FSDPModule)\n" in after
    assert "state_dict_type" not in after
    blocked = {finding.blocked_by for finding in analysis.findings if finding.line in (10, 11)}
    assert blocked == {"files.py:15"}


def test_an_annotation_for_sharded_tensors_holds_nothing() -> None:
    analysis, _ = analyse_texts({"files.py": SHARDED})
    annotation = next(f for f in analysis.findings if f.rule == "FS418" and f.line == 19)
    assert annotation.level is Level.MANUAL
    assert "annotation" in annotation.message
    assert all(finding.blocked_by != "files.py:19" for finding in analysis.findings)


@pytest.mark.parametrize(
    "silent",
    [
        pytest.param("FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)", id="a kind set for good"),
        pytest.param("print(isinstance(model, FSDP))", id="a test that would fail in silence"),
    ],
)
def test_what_is_not_confined_holds_everything(silent: str) -> None:
    text = SHARDED.replace("assert isinstance(model, FSDP)", silent, 1)
    _, results = analyse_texts({"files.py": text})
    assert results["files.py"] == text


def test_a_hazard_of_no_known_model_holds_every_model_it_may_be_about() -> None:
    texts = {
        "one.py": WRAP_OF_FSDP1,
        "two.py": WRAP_OF_FSDP1,
        "silent.py": SILENT,
    }
    analysis, results = analyse_texts(texts)
    assert results == texts
    assert {f.blocked_by for f in analysis.findings if f.rule == "FS101"} == {"silent.py:4"}


def test_a_model_under_ddp_that_waits_does_not_hold_what_is_of_fsdp1_alone() -> None:
    texts = {"ddp.py": WRAP_OF_DDP, "one.py": WRAP_OF_FSDP1, "two.py": WRAP_OF_FSDP1, "helper.py": HELPER}
    _, results = analyse_texts(texts)
    assert results["ddp.py"] == WRAP_OF_DDP
    assert "isinstance(model, FSDPModule)" in results["helper.py"]
    assert "fully_shard(net)" in results["one.py"]


def test_a_test_for_both_wrappers_waits_for_either_and_the_rest_waits_for_it() -> None:
    both = "import torch\n" + HELPER.replace("model, FSDP", "model, (FSDP, torch.nn.parallel.DistributedDataParallel)")
    texts = {"ddp.py": WRAP_OF_DDP, "one.py": WRAP_OF_FSDP1, "two.py": WRAP_OF_FSDP1, "helper.py": both}
    _, results = analyse_texts(texts)
    assert results == texts


def test_a_loop_over_units_is_not_taken_for_a_choice_of_modules() -> None:
    text = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def restore_checkpoint(model, state):
    for name, module in model.named_modules():
        if not isinstance(module, FSDP):
            continue
        module.restore(state[name])
"""
    _, results = analyse_texts({"restore.py": text})
    assert "if not isinstance(module, FSDPModule):" in results["restore.py"]
