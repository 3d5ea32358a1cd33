"""Calls of early Distributed Checkpoint that one rank makes alone."""

from __future__ import annotations

from migrating import analyse_texts
from to_fsdp2.transforms.engine import Options

_LOAD = (
    "from torch.distributed.checkpoint import load_state_dict\n\n\n"
    "def resume(state, reader):\n    load_state_dict(state, reader, no_dist=True)\n"
)


def test_no_dist_stays_where_load_has_it() -> None:
    analysis, after = analyse_texts({"resume.py": _LOAD}, Options(target_torch=(2, 7)))
    assert "    load(state, storage_reader=reader, no_dist=True)\n" in after["resume.py"]
    assert all("no_dist" not in finding.message for finding in analysis.findings)


def test_a_call_that_becomes_collective_is_named() -> None:
    analysis, after = analyse_texts({"resume.py": _LOAD}, Options(target_torch=(2, 6)))
    assert "    load(state, storage_reader=reader)\n" in after["resume.py"]
    assert any("hangs where one rank alone makes it" in finding.message for finding in analysis.findings)
