"""Places that a trace shows to hold wrapped models alone: what fails for a plain model becomes an idiom, to review."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = {
    "parts.py": """
import torch


class Net(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


def clipped(model, limit):
    return torch.nn.utils.clip_grad_norm_(model.parameters(), limit)


def raw(model):
    return model.module


def raw_if_there_is_one(model):
    try:
        return model.module
    except AttributeError:
        return model


def never_called(model):
    return model.module
""",
    "train.py": """
import importlib
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

parts = importlib.import_module("parts")


def wrapped(kind):
    net = parts.Net(kind)
    if kind == "plain":
        return net
    if kind == "fsdp":
        return FSDP(net, **settings())
    return DDP(net, find_unused_parameters=True)


def settings():
    return {"use_orig_params": True, "ignored_modules": None}


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    kind = sys.argv[1]
    model = wrapped(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        loss = model(x).pow(2).mean()
        loss.backward()
        norm = model.clip_grad_norm_(0.1) if kind == "fsdp" else getattr(parts, "clipped")(model, 0.1)
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, float(loss), float(norm))
    names = [name for name, _ in getattr(parts, "raw" if kind != "plain" else "raw_if_there_is_one")(model).named_children()]
    names += [name for name, _ in getattr(parts, "raw_if_there_is_one")(model).named_children()]
    if kind == "nothing":
        getattr(parts, "never_called")(model)
    print(names)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
""",
}


def to_fsdp2(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "to_fsdp2.migrate", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def findings(folder: Path, *arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The findings by the text of their line and rule."""
    document = json.loads(to_fsdp2(folder, "scan", "--format", "json", *arguments).stdout)
    lines = {name: text.splitlines() for name, text in PROGRAM.items()}
    return {(lines[f["file"]][f["line"] - 1].strip(), f["rule"] + f["file"] + str(f["line"])): f for f in document["findings"]}


def forms(found: dict[tuple[str, str], dict[str, Any]], text: str) -> list[tuple[str, str]]:
    return [(f["form"], f["level"]) for (line, _), f in found.items() if line == text or text in line]


def in_function(found: dict[tuple[str, str], dict[str, Any]], name: str) -> tuple[str, str]:
    """Form and level of what is said about `.module` in a function of `parts.py`."""
    lines = PROGRAM["parts.py"].splitlines()
    start = next(number for number, line in enumerate(lines, start=1) if line.startswith(f"def {name}("))
    (one,) = (f for f in found.values() if f["file"] == "parts.py" and f["rule"] == "FS601" and start < f["line"] <= start + 3)
    return one["form"], one["level"]


def traced(folder: Path, kind: str) -> Path:
    for name, text in PROGRAM.items():
        (folder / name).write_text(text)
    result = to_fsdp2(folder, "trace", "-o", "trace.json", "--", "train.py", kind)
    assert result.returncode == 0, result.stderr
    return folder


def test_what_a_plain_model_fails_at_is_an_idiom_where_the_run_came(tmp_path: Path) -> None:
    folder = traced(tmp_path, "ddp")
    before, after = findings(folder), findings(folder, "--trace", "trace.json")
    assert in_function(before, "raw") == ("fallback", "safe")
    assert in_function(after, "raw") == ("idiom", "review")
    # What has an answer for plain models keeps it, and what the run did not reach is as it was.
    assert in_function(after, "raw_if_there_is_one")[0] == "fallback"
    assert in_function(after, "never_called")[0] == "fallback"
    # Of an unknown kind, FSDP1 would have clipped by each shard's own norm. Observed: DDP, one type of parameters,
    # all of them trained at every step.
    clip = "return torch.nn.utils.clip_grad_norm_(model.parameters(), limit)"
    assert forms(before, clip) == [("fallback", "review")] and forms(after, clip) == [("idiom", "review")]
    assert forms(after, "DDP(net, find_unused_parameters=True)")[-1] == ("idiom", "review")
    observed = [f for f in after.values() if "observed in one run" in f["message"]]
    assert len(observed) >= 3 and all(f["level"] == "review" for f in observed)
    assert all(any(step["text"].startswith("observed in a run: ") for step in f["provenance"]) for f in observed)
    wrap = next(n for n, line in enumerate(PROGRAM["train.py"].splitlines(), 1) if "return DDP(" in line)
    chain = [f["provenance"][0] for f in observed if f["file"] == "parts.py" and f["rule"] == "FS601"]
    assert chain == [
        {"file": "train.py", "line": wrap, "text": "observed in a run: return DDP(net, find_unused_parameters=True)"}
    ]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_the_program_still_trains_the_same(tmp_path: Path, kind: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    folder = traced(old, kind)
    for name in (*PROGRAM, "trace.json"):
        (new / name).write_text((folder / name).read_text())
    applied = to_fsdp2(new, "apply", "--trace", "trace.json")
    assert applied.returncode == 1, applied.stderr
    if kind == "fsdp":
        assert "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor()" in (new / "train.py").read_text()
    result = to_fsdp2(tmp_path, "verify", "--old", "old", "--new", "new", "--", "train.py", kind)
    assert result.returncode == 0, result.stdout + result.stderr
    alone = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "train.py", "plain"]
    plain = subprocess.run(alone, cwd=new, capture_output=True, text=True, timeout=300)
    assert plain.returncode == 0 and "step 2" in plain.stdout, plain.stderr


SETTINGS_TWICE = """
import torch
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType


def save(model, rank, more):
    policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
        state = model.state_dict()
    if rank == 0:
        torch.save(state, "first.pt")
    policy = FullStateDictConfig(offload_to_cpu=False, rank0_only=False)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
        state = model.state_dict()
    if more:
        policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
        state = model.state_dict()
    return state


def main(net, rank):
    save(FSDP(net), rank, rank > 5)
"""


def test_a_setting_that_is_assigned_again_counts_where_it_surely_holds(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SETTINGS_TWICE)
    assert to_fsdp2(tmp_path, "apply").returncode == 0
    text = (tmp_path / "train.py").read_text()
    assert text.count("StateDictOptions(full_state_dict=True, cpu_offload=True)") == 1
    assert text.count("StateDictOptions(full_state_dict=True))") == 1
    # Behind `if more:` either may hold: the context stays, and so does what it reads.
    assert "with state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):" in text
    assert "policy = FullStateDictConfig(offload_to_cpu=False, rank0_only=False)" in text
