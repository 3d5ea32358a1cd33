"""All rules as one Markdown page: `docs/rules.md` is this."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..transforms.findings import Level
from ..transforms.rule import Example, Rule

_INTRODUCTION = """\
# Rules

Made by `to-fsdp2 rules --format markdown`. The level is the best that the rule gives. Every rule has a general form,
which is right whatever is true at run time; most have an idiom too, for certain facts. Where an example shows one text
only, the rule leaves it alone.

`FS1` wrapping and policies · `FS2` precision, offload, devices, meshes · `FS3` gradient sync, clipping, scalers, the
forward and backward protocol · `FS4` state dicts, optimizer state, checkpoints · `FS5` order · `FS6` unwrapping,
introspection, names · `FS7` DTensor hazards · `FS8` machinery of DDP alone · `FS9` the FSDP2 contract
"""


def render(rules: Sequence[Rule]) -> str:
    """The page, with a section per rule."""
    return "\n".join([_INTRODUCTION, *(line for rule in rules for line in section(rule))])


def best_level(rule: Rule) -> Level:
    """The best that a rule gives where it changes anything: what its examples show, else what its proof allows."""
    shown = [example.level for example in rule.examples if example.level is not Level.OK]
    return min(shown, key=lambda level: level.rank) if shown else Level.SAFE if rule.proof else Level.REVIEW


def notes(example: Example) -> list[str]:
    """What there is to say of an example beside its code."""
    general = "Where the repository does not tell what comes there, the general form:" if example.blind else ""
    return [note for note in (example.note, general) if note]


def section(rule: Rule) -> Iterator[str]:
    """The lines of one rule."""
    yield f"## {rule.id}: {rule.title}"
    yield ""
    yield f"*{best_level(rule).value}*"
    for paragraph in (rule.why, rule.advice):
        if paragraph:
            yield ""
            yield paragraph
    for example in rule.examples:
        yield from _example(example)
    if rule.sources:
        yield ""
        yield "Sources: " + " ".join(f"<{source}>" if "://" in source else source for source in rule.sources)
    yield ""


def _example(example: Example) -> Iterator[str]:
    for note in notes(example):
        yield ""
        yield note
    yield from _code(example.before)
    if example.after != example.before:
        yield ""
        yield "becomes"
        yield from _code(example.after)


def _code(code: str) -> Iterator[str]:
    yield ""
    if not code.strip():
        yield "(nothing)"
        return
    yield "```python"
    yield code.rstrip("\n")
    yield "```"
