"""Calls of early Distributed Checkpoint that one rank makes alone."""

from __future__ import annotations

import pytest
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


def test_the_first_place_of_the_package_is_not_used_any_more() -> None:
    place = "torch.distributed._shard.checkpoint"
    text = (
        f"from {place} import FileSystemWriter\nimport {place} as dist_cp\n\n\n"
        "def save(state, path):\n    dist_cp.save_state_dict(state, FileSystemWriter(path))\n"
    )
    _, after = analyse_texts({"save.py": text})
    new = text.replace(place, "torch.distributed.checkpoint").replace("save_state_dict(state, ", "save(state, storage_writer=")
    assert after["save.py"] == new
    brings_more = text.replace("import FileSystemWriter", "import FileSystemWriter, load_state_dict")
    _, after = analyse_texts({"save.py": brings_more})
    assert after["save.py"] == new.replace("import FileSystemWriter", "import FileSystemWriter, load_state_dict")


def test_an_import_whose_name_goes_with_its_call_is_written_once() -> None:
    text = (
        "from torch.distributed._shard.checkpoint import FileSystemReader, load_state_dict\n\n\n"
        "def resume(state, path):\n    load_state_dict(state, FileSystemReader(path))\n"
    )
    _, after = analyse_texts({"resume.py": text})
    assert after["resume.py"].count("FileSystemReader\n") == 1
    assert "load_state_dict" not in after["resume.py"]


@pytest.mark.parametrize(
    ("guard", "torch", "stays"), [("rank == 0", (2, 6), True), ("True", (2, 6), False), ("rank == 0", (2, 7), False)]
)
def test_calls_of_some_ranks_stay_where_the_new_ones_lack_no_dist(guard: str, torch: tuple[int, int], stays: bool) -> None:
    text = f"""\
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(build())
rank = dist.get_rank()
if {guard}:
    dcp.save_state_dict({{"model": model.module.state_dict()}}, dcp.FileSystemWriter("ck"), no_dist=True)
"""
    _, results = analyse_texts({"train.py": text}, Options(target_torch=torch))
    assert ("dcp.save_state_dict(" in results["train.py"]) == stays
    assert "get_model_state_dict(" in results["train.py"]
