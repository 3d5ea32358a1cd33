"""No public name of torch.cuda is left to fail from within torch: each is emulated, or refused with a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import to_fsdp2.equivalence

HERE = Path(__file__).parent
INJECT = Path(to_fsdp2.equivalence.__path__[0]) / "inject"


def test_every_public_name_is_emulated_or_refused():
    environment = {**os.environ, "PYTHONPATH": str(INJECT), "TO_FSDP2_EMULATE_CUDA": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "scripts" / "inject_inventory.py")]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stderr
    found = json.loads(output.stdout)
    kinds = {f"{module}.{name}": kind for module, names in found.items() for name, kind in names.items()}
    assert {name: kind for name, kind in kinds.items() if kind not in ("emulated", "refused", "works")} == {}
    counts = Counter(kinds.values())
    assert counts["emulated"] > 90
    assert counts["refused"] >= 10
