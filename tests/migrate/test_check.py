"""`check` as a gate: the FSDP2 contract, the choice of rules, what is known already, and how often each rule speaks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Real = Callable[..., tuple[int, str, str]]

BROKEN = """\
import torch
from torch.distributed.fsdp import fully_shard


def f(model, x):
    optimizer = torch.optim.AdamW(model.parameters())
    fully_shard(model)
    model.forward(x).sum().backward()
    optimizer.step()
"""
OLD = "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\ndef g(net):\n    return DDP(net)\n"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(BROKEN)
    return tmp_path / "train.py"


def rules_of(out: str) -> list[str]:
    return [word for line in out.splitlines() for word in line.split()[2:3] if line.startswith("  ") and word.startswith("FS")]


def test_breaches_fail_check_alone(real: Real, broken: Path) -> None:
    code, out, _ = real("check")
    assert code == 1
    assert rules_of(out) == ["FS906", "FS904"]
    assert "train.py:6:17 manual FS906" in out and "train.py:8:5 manual FS904" in out
    assert "instead: build the optimizer behind the last call of fully_shard" in out
    assert real("diff")[:2] == (0, "")
    assert "FS9" not in real("scan", "--all")[1]
    assert real("apply")[0] == 0 and broken.read_text() == BROKEN


def test_a_breach_is_named_where_the_model_came_from_another_file(real: Real, broken: Path, tmp_path: Path) -> None:
    broken.write_text("from wrap import shard\nmodel = shard(build())\nimport use\nuse.run(model)\n")
    (tmp_path / "wrap.py").write_text(
        "from torch.distributed.fsdp import fully_shard\n\n\ndef shard(net):\n    fully_shard(net)\n    return net\n"
    )
    (tmp_path / "use.py").write_text("def run(network):\n    with network.no_sync():\n        pass\n")
    code, out, _ = real("check")
    assert code == 1
    assert "use.py:2:10 manual FS921 network is a model of FSDP2, which has no no_sync" in out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--select", "FS904"], ["FS904"]),
        (["--select", "FS9"], ["FS906", "FS904"]),
        (["--ignore", "FS906"], ["FS904"]),
        (["--ignore", "FS9"], []),
        (["--select", "FS9", "--ignore", "FS904,FS906"], []),
        (["--select", "FS1"], []),
    ],
)
def test_rules_choose_findings(real: Real, broken: Path, options: list[str], expected: list[str]) -> None:
    code, out, _ = real("check", *options)
    assert (code, rules_of(out)) == (1 if expected else 0, expected)


def test_rules_of_the_contract_choose_no_programs(real: Real, broken: Path) -> None:
    code, _, err = real("diff", "--select", "FS904")
    assert code == 64 and "to-fsdp2 check" in err


def test_only_what_a_baseline_does_not_know_fails(real: Real, broken: Path) -> None:
    assert real("check", "--baseline", "known.json", "--write-baseline")[0] == 0
    code, out, err = real("check", "--baseline", "known.json")
    assert (code, rules_of(out)) == (0, []) and "findings that the baseline knows: 2" in err
    broken.write_text("# moved down\n\n\n" + BROKEN + "    return model.module\n")
    code, out, _ = real("check", "--baseline", "known.json")
    assert (code, rules_of(out)) == (1, ["FS921"])
    broken.write_text(BROKEN.replace("model.forward(x)", "model(x)"))
    code, _, err = real("check", "--baseline", "known.json")
    assert code == 0 and "findings of the baseline that are gone: 1" in err
    assert real("check")[0] == 1


def test_a_baseline_is_the_same_from_another_folder(real: Real, broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real("check", "--baseline", "known.json", "--write-baseline")
    (broken.parent / "folder").mkdir()
    monkeypatch.chdir(broken.parent / "folder")
    assert real("check", "..", "--baseline", "../known.json")[0] == 0


def test_equal_lines_are_counted(real: Real, broken: Path) -> None:
    broken.write_text(BROKEN + "    model.forward(x)\n")
    real("check", "--baseline", "known.json", "--write-baseline")
    broken.write_text(BROKEN + "    model.forward(x)\n    model.forward(x)\n")
    code, out, _ = real("check", "--baseline", "known.json")
    assert (code, rules_of(out)) == (1, ["FS904"])


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"tool": "to-fsdp2", "schema": 1, "kind": "verdict", "findings": []}'])
def test_what_is_no_baseline_is_refused(real: Real, broken: Path, text: str | None) -> None:
    if text is not None:
        (broken.parent / "known.json").write_text(text)
    code, _, err = real("check", "--baseline", "known.json")
    assert code == 64 and err.startswith("to-fsdp2: --baseline known.json: ")


def test_a_baseline_is_not_written_without_a_name(real: Real, broken: Path) -> None:
    assert real("check", "--write-baseline")[0] == 64


def test_statistics(real: Real, broken: Path, tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(OLD)
    broken.write_text(BROKEN + "    model.forward(x)\n")
    code, out, _ = real("check", "--statistics")
    assert code == 1
    assert out.splitlines() == [
        "2  FS904  forward by its name", "1  FS120  DistributedDataParallel", "1  FS906  optimizers built before sharding"
    ]  # fmt: skip
    document = json.loads(real("check", "--statistics", "--format", "json")[1])
    assert document["rules"][0] == {"rule": "FS904", "title": "forward by its name", "count": 2}
    assert real("check", "--statistics", "--format", "sarif")[0] == 64


def test_helpers_of_another_version_are_a_finding(real: Real, tmp_path: Path) -> None:
    (tmp_path / "fsdp2_helpers.py").write_text(
        "# SPDX-License-Identifier: MIT\n# Written by to-fsdp2 (hash 7cefa4e75376).\n# Made for code with: nothing special\n\n"
        "from __future__ import annotations\n\nimport torch.distributed as dist\n\n\n"
        "def is_main():\n    return dist.get_rank() == 0\n"
    )
    (tmp_path / "train.py").write_text("from fsdp2_helpers import is_main\nprint(is_main())\n")
    code, out, _ = real("check")
    assert code == 1 and "fsdp2_helpers.py:5:1 review FS991" in out
    (tmp_path / "fsdp2_helpers.py").write_text((tmp_path / "fsdp2_helpers.py").read_text() + "# ours now\n")
    assert real("check")[0] == 0


JOINED = """\
import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


class Uneven:
    def __init__(self, model):
        self.join = Join([model])

    def __enter__(self):
        self.join.__enter__()

    def __exit__(self, *error):
        return self.join.__exit__(*error)


def train(net, batches, optimizer):
    model = DDP(net)
    with Uneven(model):
        for batch in batches:
            model(batch).sum().backward()
            optimizer.step()


train(torch.nn.Linear(2, 2), [], None)
"""


def test_what_apply_could_not_finish_fails_check_until_somebody_does(real: Real, tmp_path: Path) -> None:
    train = tmp_path / "train.py"
    train.write_text(JOINED)
    code, out, _ = real("apply")
    assert code == 1 and "FS306" in out
    code, out, _ = real("check")
    assert code == 1 and rules_of(out) == ["FS936"]
    train.write_text(train.read_text().replace("in batches:", "in until_all_ranks_finish(batches, model):"))
    assert real("check")[0] == 0
