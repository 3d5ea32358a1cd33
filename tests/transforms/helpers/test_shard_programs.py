"""Sharding in place of FSDP1 and DDP, against both."""

import subprocess
import sys
from pathlib import Path

import pytest
from two_ranks import names, outcome

FILES = ("ddp", "uses", "special", "fsdp1", "rebind", "methods", "shared")
CHECKS = [(f"checks_shard_{part}.py", name) for part in FILES for name in names(f"checks_shard_{part}.py")]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "check"), CHECKS)
def test_on_two_ranks(file: str, check: str) -> None:
    assert outcome(file, check) == "passed"


@pytest.mark.slow
def test_one_process() -> None:
    script = Path(__file__).parent / "checks_shard_alone.py"
    ran = subprocess.run([sys.executable, "-W", "ignore", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
