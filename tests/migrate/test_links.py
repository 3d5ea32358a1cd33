"""Recipes that share files by symbolic links: what a link leads to is read, and finds its helpers in each recipe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from repositories import commit_all, git

OPTIM = """import torch


class Normed(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad / p.grad.norm(), alpha=group["lr"])
"""
NET = """import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.inner(x)

    def score(self, x):
        return self.inner.weight.sum() * x.sum()
"""
TRAIN = """import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from {optim} import Normed
from shared.net import Net


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Net())
    optimizer = Normed(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    print(model.module.score(torch.ones(2)))


if __name__ == "__main__":
    main()
"""


def test_each_recipe_runs_with_what_it_links_to(tmp_path: Path) -> None:
    for name, optim in (("one", "optim"), ("two", "own_optim")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(TRAIN.format(optim=optim))
    (tmp_path / "one/optim.py").write_text(OPTIM)
    (tmp_path / "two/own_optim.py").symlink_to("../one/optim.py")
    (tmp_path / "one/shared").mkdir()
    (tmp_path / "one/shared/net.py").write_text(NET)
    (tmp_path / "two/shared").symlink_to("../one/shared")
    git(tmp_path, "init", "-q")
    commit_all(tmp_path)
    subprocess.run([sys.executable, "-m", "to_fsdp2.migrate", "apply", "."], cwd=tmp_path, capture_output=True, check=False)
    assert "on_whole_parameters" in (tmp_path / "one/optim.py").read_text()
    assert (tmp_path / "two/own_optim.py").is_symlink()
    printed = set()
    for name in ("one", "two"):
        assert 'forward_method(model, "score")' in (tmp_path / name / "train.py").read_text()
        run = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=1", f"{name}/train.py"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        printed.add(run.stdout)
    assert len(printed) == 1


def test_a_link_to_nowhere_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(optim="optim"))
    (tmp_path / "gone.py").symlink_to("submodule/that/is/not/checked/out.py")
    scan = [sys.executable, "-m", "to_fsdp2.migrate", "scan"]
    found = subprocess.run([*scan, "."], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "gone.py" not in found.stdout, found.stdout
    assert "0 failed" in found.stderr, found.stderr
    asked = subprocess.run([*scan, "gone.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert asked.returncode != 0
    assert "gone.py" in asked.stdout + asked.stderr
