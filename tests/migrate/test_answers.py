"""What an earlier run found is found again without a second look."""

from __future__ import annotations

from pathlib import Path

import pytest
from to_fsdp2.migrate import pipeline
from to_fsdp2.migrate.pipeline import migrate
from to_fsdp2.migrate.progress import Silent
from to_fsdp2.migrate.workspace import open_workspace
from to_fsdp2.transforms.engine import Options

SCRIPT = """from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(build())
model.module.fit()
"""


@pytest.fixture
def analysed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that facts were linked; answers are kept here."""
    monkeypatch.delenv("TO_FSDP2_NO_CACHE")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    calls: list[int] = []
    analyse = pipeline.analyse

    def counted(facts, *arguments):
        calls.append(len(facts))
        return analyse(facts, *arguments)

    monkeypatch.setattr(pipeline, "analyse", counted)
    return calls


def run(options: Options | None = None) -> list[tuple[str, bytes]]:
    migration = migrate(open_workspace(["."], []), options or Options(), 1, Silent())
    assert migration.parsed == 1
    assert migration.findings
    return [(change.label, change.new) for change in migration.changes]


def test_a_second_run_asks_nothing(analysed: list[int]) -> None:
    assert run() == run() != []
    assert analysed == [1]


def test_other_bytes_and_options_are_looked_at(analysed: list[int]) -> None:
    first = run()
    run(Options(ddp="replicate"))
    Path("train.py").write_text(SCRIPT + "model.module.stop()\n")
    assert run() != first
    assert len(analysed) == 3


def test_what_cannot_be_read_is_found_anew(analysed: list[int], state: Path) -> None:
    first = run()
    for kept in (state / "to-fsdp2" / "answers").iterdir():
        kept.write_bytes(b"no pickle")
    assert run() == first
    assert analysed == [1, 1]


def test_nothing_is_kept_where_nothing_is_wanted(analysed: list[int], state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TO_FSDP2_NO_CACHE", "1")
    run()
    run()
    assert len(analysed) == 2
    assert not (state / "to-fsdp2" / "answers").exists()


def test_what_other_files_say_is_asked_again(analysed: list[int]) -> None:
    """A wrap that no code comes to may be one that a configuration names."""
    Path("train.py").write_text(
        "import hydra\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\n\ndef wrapped(net):\n    return DDP(net)\n"
        "\n\nif __name__ == '__main__':\n    print(1)\n"
    )
    Path("config.yaml").write_text("run: other\n")
    first = run()
    assert run() == first
    assert len(analysed) == 1
    Path("config.yaml").write_text("run: wrapped\n")
    assert run() != first
    assert len(analysed) == 2
