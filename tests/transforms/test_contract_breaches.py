"""Breaches that are put into programs which keep the FSDP2 contract: each is found on its line, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

FOLDER = Path(__file__).parent.parent / "fixtures" / "contract"
PROGRAMS = {
    "script": {"script.py": (FOLDER / "script.py").read_text()},
    "package": {path.name: path.read_text() for path in sorted((FOLDER / "package").glob("*.py"))},
    "registry": {path.name: path.read_text() for path in sorted((FOLDER / "registry").glob("*.py"))},
}
SEEDS = (FOLDER / "breaches.patch").read_text().strip("\n").split("\n\n")
"""Each a rule, a program, and hunks as in a patch; the lines that are to be named end in ``# breach``."""


def findings(texts: dict[str, str]) -> list[tuple[str, str, int]]:
    sources = {name: Source.decode(name, text.encode()) for name, text in texts.items()}
    facts = [extract(source) for source in sources.values()]
    analysis = analyse(facts, sources.__getitem__, Options(target_torch=(2, 13), contract=True), paths=list(texts))
    assert not analysis.errors
    return [(found.rule, found.file, found.line) for found in analysis.findings if found.rule.startswith("FS9")]


def seeded(program: str, hunks: str) -> dict[str, str]:
    """A program with these hunks applied, each where its old lines stand (the first time)."""
    texts = dict(PROGRAMS[program])
    for hunk in hunks.split("\n@@\n"):
        lines = hunk.split("\n")
        old = "\n".join(line[1:] for line in lines if line[:1] in " -")
        new = "\n".join(line[1:] for line in lines if line[:1] in " +")
        name = next(name for name, text in texts.items() if old in text)
        texts[name] = texts[name].replace(old, new, 1)
    return texts


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_keeps_the_contract_is_not_blamed(program: str) -> None:
    assert findings(PROGRAMS[program]) == []


def test_there_are_enough_breaches() -> None:
    assert len(SEEDS) >= 30


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.partition("\n")[0].replace(" ", "_"))
def test_a_breach_is_named_where_it_is(seed: str) -> None:
    head, _, hunks = seed.partition("\n")
    rule, program = head.partition(":")[0].split()
    texts = seeded(program, hunks)
    places = [(n, i) for n, text in texts.items() for i, line in enumerate(text.split("\n"), 1) if line.endswith("# breach")]
    assert sorted(findings(texts)) == sorted((rule, name, line) for name, line in places)
