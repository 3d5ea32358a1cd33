"""Code for ``ShardedTensor`` alone: it refuses a ``DTensor``, or holds back what would bring one."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Finding, Level

HEAD = """\
import torch
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType


def save(model, path):
    assert isinstance(model, FSDP)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        torch.save(model.state_dict(), path)


def join(value, parts):
"""
RAISED = 'raise NotImplementedError("sharded state of FSDP2 (DTensors) is not handled here")\n'


def migrated(body: str, head: str = HEAD) -> tuple[list[Finding], str]:
    analysis, results = analyse_texts({"files.py": head + body})
    return [finding for finding in analysis.findings if finding.rule == "FS418"], results["files.py"]


REFUSED = [
    pytest.param(
        "    if isinstance(value, ShardedTensor):\n        return gather(parts)\n    return value\n",
        "    if isinstance(value, ShardedTensor):\n        return gather(parts)\n"
        f"    elif isinstance(value, DTensor):\n        {RAISED}    return value\n",
        id="behind its branch",
    ),
    pytest.param(
        "    if not parts:\n        return None\n    elif isinstance(value, ShardedTensor):\n        return gather(parts)\n"
        "    elif isinstance(value, torch.Tensor):\n        return value.cpu()\n",
        "    if not parts:\n        return None\n    elif isinstance(value, ShardedTensor):\n        return gather(parts)\n"
        f"    elif isinstance(value, DTensor):\n        {RAISED}"
        "    elif isinstance(value, torch.Tensor):\n        return value.cpu()\n",
        id="in front of the branch for tensors",
    ),
    pytest.param(
        "    if isinstance(value, ShardedTensor) and parts:\n        value = gather(parts)\n    return value\n",
        "    if isinstance(value, ShardedTensor) and parts:\n        value = gather(parts)\n"
        f"    elif isinstance(value, DTensor):\n        {RAISED}    return value\n",
        id="beside another condition",
    ),
    pytest.param(
        "    if not isinstance(value.data, ShardedTensor):\n        return value\n    return gather(parts)\n",
        f"    if isinstance(value.data, DTensor):\n        {RAISED}"
        "    if not isinstance(value.data, ShardedTensor):\n        return value\n    return gather(parts)\n",
        id="in front of what leaves it out",
    ),
    pytest.param(
        "    return gather(parts) if isinstance(value, ShardedTensor) else value\n",
        f"    if isinstance(value, DTensor):\n        {RAISED}"
        "    return gather(parts) if isinstance(value, ShardedTensor) else value\n",
        id="in front of a choice",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), REFUSED)
def test_a_dtensor_is_refused_where_it_would_pass_by_in_silence(body: str, expected: str) -> None:
    findings, after = migrated(body)
    assert after.endswith("def join(value, parts):\n" + expected)
    assert "from torch.distributed.tensor import DTensor\n" in after
    assert "get_model_state_dict(model)" in after
    assert [(finding.level, finding.blocked_by) for finding in findings] == [(Level.MANUAL, None)]
    assert "raises" in findings[0].message


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("    return [v for v in value if isinstance(v, ShardedTensor)]\n", id="no place for an error"),
        pytest.param("    return isinstance(value, ShardedTensor)\n", id="an answer for others"),
        pytest.param(
            "    try:\n        if isinstance(value, ShardedTensor):\n            return gather(parts)\n"
            "    except Exception:\n        print(value)\n    return value\n",
            id="an error that is caught",
        ),
        pytest.param("    if isinstance(next(value), ShardedTensor):\n        return gather(parts)\n", id="asked for but once"),
    ],
)
def test_what_cannot_raise_holds_what_makes_sharded_tensors(body: str) -> None:
    findings, after = migrated(body)
    assert after == HEAD + body
    assert [finding.level for finding in findings] == [Level.MANUAL]


def test_what_sharded_state_does_not_reach_is_left_alone() -> None:
    body = "    if isinstance(value, ShardedTensor):\n        return gather(parts)\n    return value\n"
    head = HEAD.replace("SHARDED_STATE_DICT", "FULL_STATE_DICT")
    _, after = migrated(body, head)
    assert after.endswith(body)


def test_nothing_is_refused_where_the_state_stays_as_it_is() -> None:
    body = "    if isinstance(value, ShardedTensor):\n        return gather(parts)\n    return value\n"
    held = "\n\ndef check(values):\n    return [v for v in values if isinstance(v, ShardedTensor)]\n"
    head = HEAD.replace("    assert isinstance(model, FSDP)\n", "")
    findings, after = migrated(body + held, head)
    assert after == head + body + held
    assert "left alone: nothing is rewritten" in findings[0].message


def test_putting_sharded_tensors_together_is_right_as_it_is() -> None:
    body = (
        "    if isinstance(value, ShardedTensor):\n        value._local_shards, value._metadata, _ = parts\n"
        "        return value\n    return rebuilt(value, parts)\n"
    )
    findings, after = migrated(body)
    assert after.endswith(body)
    assert "get_model_state_dict(model)" in after
    assert [finding.level for finding in findings] == [Level.OK]


def test_an_assertion_raises_by_itself() -> None:
    body = "    assert isinstance(value, ShardedTensor)\n    return gather(parts)\n"
    findings, after = migrated(body)
    assert after.endswith(body)
    assert "get_model_state_dict(model)" in after
    assert [finding.level for finding in findings] == [Level.MANUAL]


@pytest.mark.parametrize(
    "question",
    ["hasattr(value, 'local_shards')", "getattr(value, 'local_tensor', None)", "type(value).__name__ == 'ShardedTensor'"],
)
def test_a_question_by_name_holds_what_makes_sharded_tensors(question: str) -> None:
    head = HEAD.replace("from torch.distributed._shard.sharded_tensor import ShardedTensor\n", "")
    body = f"    if {question}:\n        return gather(parts)\n    return value\n"
    findings, after = migrated(body, head)
    assert after == head + body
    assert [finding.level for finding in findings] == [Level.MANUAL]
    assert "without a word" in findings[0].message


def test_a_question_beside_one_for_dtensors_is_right() -> None:
    head = HEAD.replace("from torch.distributed._shard.sharded_tensor import ShardedTensor\n", "")
    body = (
        "    if hasattr(value, 'local_shards'):\n        return gather(parts)\n"
        "    return value.to_local() if hasattr(value, 'to_local') else value\n"
    )
    findings, after = migrated(body, head)
    assert "get_model_state_dict(model)" in after
    assert findings == []


def test_a_member_that_nothing_asks_for_raises() -> None:
    head = HEAD.replace("from torch.distributed._shard.sharded_tensor import ShardedTensor\n", "")
    findings, after = migrated("    return [shard.tensor for shard in value.local_shards()]\n", head)
    assert "get_model_state_dict(model)" in after
    assert [finding.level for finding in findings] == [Level.MANUAL]
    assert "raises" in findings[0].message
