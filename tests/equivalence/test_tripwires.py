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
    "hook-before": "FS704", "stop": "FS413",
}  # fmt: skip


def line_of(kind: str) -> int:
    lines = SCRIPT.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# LINE {kind}"))


def fired(tmp_path: Path, *kinds: str) -> list[str]:
    """The lines of the check after a run of two ranks."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT), *kinds]
    variables = {"TO_FSDP2_MODE": "exact", "TO_FSDP2_TRIPWIRES": "1", "TO_FSDP2_ROOT": str(SCRIPTS)}
    launch(command, tmp_path, None, GLOO_SOCKET_IFNAME=os.environ.get("GLOO_SOCKET_IFNAME", "lo"), **variables)
    found = read_record(tmp_path)
    assert found.step_count > 0
    return check_tripwires(found).places


def test_each_is_told_on_its_line(tmp_path: Path):
    found = fired(tmp_path, *KINDS)
    wanted = {f"tripping.py:{line_of(kind)} ": f"({rule})" for kind, rule in KINDS.items()}
    for place, rule in wanted.items():
        (text,) = [text for text in found if text.startswith(place)]
        assert text.endswith(rule)
    assert len(found) == len(wanted)


@pytest.mark.parametrize("kind", ["ranks-method", "ranks-full", "ranks-barrier"])
def test_what_some_ranks_call_is_told_with_its_line(kind: str, tmp_path: Path):
    (text,) = fired(tmp_path, kind)
    assert f"tripping.py:{line_of(kind)}" in text
    assert text.endswith("(FS705)")


def test_the_same_done_rightly_is_not(tmp_path: Path):
    kinds = ["item", "float", "bool", "data", "edit", "hook", "helper"]
    kinds += ["ranks-method", "ranks-full", "ranks-branch", "ranks-barrier"]
    assert fired(tmp_path, "right", *kinds) == []
