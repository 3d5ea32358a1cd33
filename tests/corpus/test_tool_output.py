"""The tool turns every `before` of the corpus into its `after`, byte for byte, and has nothing left to do there."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from to_fsdp2.corpus.cases import Case, load_cases
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.edits import apply_edits
from to_fsdp2.transforms.text.source import Source

CASES = [pytest.param(case, id=case.name) for case in load_cases()]


def migrated(folder: Path, case: Case) -> dict[str, str]:
    """The text of every Python file of a folder after the migration."""
    sources = {}
    for path in sorted(folder.rglob("*.py")):
        label = path.relative_to(folder).as_posix()
        sources[label] = Source.read(label, path.read_bytes())
    options = Options(**_typed(case.options))  # pyright: ignore[reportArgumentType]
    analysis = analyse([extract(source) for source in sources.values()], sources.__getitem__, options)
    texts = {label: apply_edits(source, analysis.edits.get(label, [])) for label, source in sources.items()}
    return texts | analysis.new_files


def _typed(options: dict[str, str]) -> dict[str, object]:
    names = {name.replace("-", "_"): value for name, value in options.items()}
    if "target_torch" in names:
        names["target_torch"] = tuple(int(part) for part in names["target_torch"].split("."))  # pyright: ignore
    return dict(names)


@pytest.mark.parametrize("case", CASES)
def test_before_becomes_after(case: Case) -> None:
    result = migrated(case.before, case)
    differences: list[str] = []
    for label, text in result.items():
        expected = case.after / label
        wanted = expected.read_text() if expected.exists() else ""
        differences += difflib.unified_diff(wanted.splitlines(), text.splitlines(), f"after/{label}", "tool", lineterm="")
    assert not differences, "\n".join(differences)


@pytest.mark.parametrize("case", CASES)
def test_after_is_left_alone(case: Case) -> None:
    for label, text in migrated(case.after, case).items():
        assert text == (case.after / label).read_text()
