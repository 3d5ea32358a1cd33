"""A small stand-in for the analysis, so that these tests are about the command line and the files alone.

In a program for the stand-in, each call of `FSDP(…)` becomes `fully_shard(…)`. A comment `# manual` on its line
makes the finding manual, `# review` makes it one to review, `# ok` leaves it as right.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from to_fsdp2.migrate import pipeline, worker
from to_fsdp2.migrate.__main__ import run
from to_fsdp2.transforms.engine import Analysis
from to_fsdp2.transforms.facts.facts import FileFacts
from to_fsdp2.transforms.findings import Finding, Form, Level, Step
from to_fsdp2.transforms.text.source import Source
from to_fsdp2.transforms.text.suppressions import Suppressions

RULE = "FS101"


def extract(source: Source) -> FileFacts:
    return FileFacts(source.path)


def analyse(
    facts: list[FileFacts], load: Callable[[str], Source], options: object, flow: object, paths: Collection[str], *others: object
) -> Analysis:
    analysis = Analysis()
    for file in facts:
        source = load(file.path)
        text = source.text
        suppressions = Suppressions(source)
        for node in ast.walk(source.tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "FSDP"):
                continue
            start, end = source.span(node)
            line, column = source.position(start)
            end_line, end_column = source.position(end)
            _, _, comment = source.line_of(start).partition("#")
            level = next((level for level in Level if level.value in comment), Level.SAFE)
            suppressed = suppressions.cover(RULE, line, end_line)
            rewritten = level in (Level.SAFE, Level.REVIEW) and not suppressed
            analysis.findings.append(
                Finding(
                    RULE, level, file.path, line, column, end_line, end_column, "torch.FSDP", "wraps [the] model",
                    advice="shard it by hand" if level is Level.MANUAL else "", form=Form.FALLBACK if rewritten else Form.NOTE,
                    programs=(file.path,), provenance=(Step(file.path, line, "FSDP(net)"),), suppressed=suppressed,
                )
            )  # fmt: skip
            if rewritten:
                start, end = (position - len(source.text) for position in source.span(node.func))
                text = text[:start] + "fully_shard" + text[end:]
        if text != source.text:
            analysis.texts[file.path] = text
    return analysis


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What a run leaves to the end of its process goes after each test: many of them share this one."""
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the tool keeps its state: not with whoever runs the tests."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    monkeypatch.setenv("TO_FSDP2_NO_CACHE", "1")  # they replace parts of the tool, which no name of an answer tells
    return folder


@pytest.fixture
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "analyse", analyse)
    monkeypatch.setattr(worker, "extract", extract)


@pytest.fixture
def command(
    fake_engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., tuple[int, bytes, str]]:
    """Runs the command line in `tmp_path`; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, bytes, str]:
        code = run(list(arguments))
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return call


@pytest.fixture
def real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line with the real analysis in `tmp_path`; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        out, err = capfd.readouterr()
        return code, out, err

    return call
