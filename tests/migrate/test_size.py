"""How long a run takes: it grows with the text, not with its square, and what would take too long is named."""

from __future__ import annotations

import cProfile
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from to_fsdp2.migrate.__main__ import run

Command = Callable[..., tuple[int, str, str]]
DDP = "from torch.nn.parallel import DistributedDataParallel as DDP\n"


def plain_functions(count: int) -> str:
    """Code that has little to do with the wrap."""
    return DDP + "".join(f"def f{i}(x):\n    return x * {i}\n" for i in range(count)) + "model = DDP(net)\n"


def functions_that_use_it(count: int) -> str:
    """Code that has all to do with the wrap."""
    functions = "".join(f"def f{i}(m):\n    m.state_dict()\n    return m.module\n" for i in range(count))
    return DDP + functions + "model = DDP(net)\n" + "".join(f"f{i}(model)\n" for i in range(count))


@pytest.mark.parametrize(("text", "few"), [(plain_functions, 400), (functions_that_use_it, 60)])
def test_four_times_the_text_takes_four_times_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: Callable[[int], str], few: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TO_FSDP2_NO_CACHE", "1")
    calls = []
    (tmp_path / "train.py").write_text(text(1))
    run(["scan", "-j", "1"])  # what is done once, such as reading the helpers
    for count in (1, few, 4 * few):
        (tmp_path / "train.py").write_text(text(count))
        with cProfile.Profile() as profile:
            assert run(["scan", "-j", "1"]) == 0
        calls.append(sum(entry.callcount for entry in profile.getstats()))
    start, once, four_times = calls
    assert four_times - start < 6 * (once - start)


def test_eight_megabytes_of_functions_are_named(command: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(plain_functions(250_000))
    (tmp_path / "other.py").write_text(plain_functions(1))
    code, out, _ = command("scan", "--format", "json")
    document = json.loads(out)
    assert code == 2
    assert [(error["file"], error["message"]) for error in document["errors"]] == [
        ("train.py", "larger than 2 MB, not looked at")
    ]
    assert document["files"]["parsed"] == 1
