"""What the documents say is what the program does."""

from __future__ import annotations

import json
import re
import shutil
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from to_fsdp2.corpus.cases import DEMO_FOLDER
from to_fsdp2.equivalence.verdict import CHECKS
from to_fsdp2.migrate import rule_reference
from to_fsdp2.migrate.__main__ import run
from to_fsdp2.transforms.rule import all_rules

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "skills/to-fsdp2/SKILL.md")
DOCUMENTS = [*(ROOT / page for page in PAGES), *sorted((ROOT / "docs").glob("*.md"))]


def test_the_rule_reference_is_that_of_the_rules() -> None:
    page = (ROOT / "docs" / "rules.md").read_text()
    assert page == rule_reference.render(all_rules()), "run: to-fsdp2 rules --format markdown > docs/rules.md"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_options_exist(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = document.read_text()
    for command, rest in re.findall(r"to-fsdp2 (scan|diff|apply|brief|check|rules|verify|demo)\b([^`\n]*)", text):
        assert run([command, "--help"]) == 0
        known = capsys.readouterr().out
        own = re.split(r"\s--\s|#", re.sub(r"'[^']*'", "''", rest))[0]  # not those of the script
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", own):
            assert option in known, f"to-fsdp2 {command} {option}"


def test_rules_named_in_the_documents_exist() -> None:
    known = {rule.id for rule in all_rules()}
    # What verify finds while a program runs has ids as well.
    for source in (ROOT / "equivalence").rglob("*.py"):
        known |= set(re.findall(r"\bFS\d{3}\b", source.read_text()))
    for document in DOCUMENTS:
        named = set(re.findall(r"\bFS\d{3}\b", document.read_text()))
        assert named <= known | {"FS001", "FS699"}, document.name


def test_the_tour_of_the_readme_is_what_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(DEMO_FOLDER, tmp_path / "demo", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path / "demo")
    readme = (ROOT / "README.md").read_text()
    [shown] = re.findall(r"```diff\n(.*?)```", readme, re.DOTALL)
    assert run(["diff"]) == 1
    patch = capfd.readouterr().out
    for part in re.split(r"\n(?=--- a/|@@ )", shown.strip("\n")):
        assert part.strip("\n") in patch
    [findings] = re.findall(r"`scan --all` says how it knows:\n\n```\n(.*?)```", readme, re.DOTALL)
    assert run(["scan", "--all"]) == 0
    assert findings in capfd.readouterr().out


@pytest.mark.slow
def test_the_demo_ends_well(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = run(["demo", "--directory", "tour"])
    out = capfd.readouterr().out
    assert code == 0, out
    [shown] = re.findall(r"and `verify` runs both:\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert [line for line in shown.splitlines() if "memory" not in line and line not in out] == []
    assert [line.split()[1] for line in shown.splitlines()[:-1]] == list(CHECKS)
    assert (tmp_path / "tour" / "verdict" / "report.html").is_file()
    schema = json.loads(files("to_fsdp2.equivalence").joinpath("schemas/verdict.json").read_text())
    jsonschema.validate(json.loads((tmp_path / "tour" / "verdict" / "report.json").read_text()), schema)
