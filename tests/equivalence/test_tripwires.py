"""Each thing that goes wrong on sharded models without an error is told on its line; the same done rightly is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from inject_runs import SCRIPTS, launch
from to_fsdp2.equivalence.check_tripwires import check_tripwires
from to_fsdp2.equivalence.record import read_record

pytestmark = pytest.mark.slow
SCRIPT = SCRIPTS / "tripping.py"
KINDS = {
    "item": "FS701", "float": "FS701", "bool": "FS701", "data": "FS702", "edit": "FS703", "hook": "FS704",
    "hook-before": "FS704", "ranks-method": "FS705", "ranks-full": "FS705", "stop": "FS413",
}  # fmt: skip


def line_of(kind: str) -> int:
    lines = SCRIPT.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# LINE {kind}"))


def fired(kind: str, tmp_path: Path) -> list[str]:
    """The lines of the check after a run of two ranks."""
    record = tmp_path / kind
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT), kind]
    variables = {"TO_FSDP2_MODE": "exact", "TO_FSDP2_TRIPWIRES": "1", "TO_FSDP2_ROOT": str(SCRIPTS)}
    launch(command, record, None, GLOO_SOCKET_IFNAME=os.environ.get("GLOO_SOCKET_IFNAME", "lo"), **variables)
    found = read_record(record)
    assert found.step_count > 0
    return check_tripwires(found).places


@pytest.mark.parametrize(("kind", "rule"), KINDS.items())
def test_it_is_told_on_its_line(kind: str, rule: str, tmp_path: Path):
    (text, *others) = fired(kind, tmp_path)
    assert text.startswith(f"tripping.py:{line_of(kind)} ") or kind.startswith("ranks")
    assert text.endswith(f"({rule})")
    if kind.startswith("ranks"):
        assert f"tripping.py:{line_of(kind)}" in text
    assert others == []


@pytest.mark.parametrize("kind", ["item", "float", "bool", "data", "edit", "hook", "ranks-method", "ranks-full", "ranks-branch"])
def test_the_same_done_rightly_is_not(kind: str, tmp_path: Path):
    assert fired(f"right-{kind}", tmp_path) == []
