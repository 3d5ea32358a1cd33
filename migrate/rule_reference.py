"""All rules as one Markdown page: `docs/rules.md` is this."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..transforms.rule import Example, Rule

_INTRODUCTION = """\
# Rules

Made by `to-fsdp2 rules --format markdown`. The level is the best that the rule gives; where it cannot be sure, a
site gets a lesser one and the finding says why. Where an example shows one text only, the rule leaves it alone.

`FS1` wrapping and policies · `FS2` precision, offload, devices, meshes · `FS3` gradient sync, clipping, scalers, the
forward and backward protocol · `FS4` state dicts, optimizer state, checkpoints · `FS5` order · `FS6` unwrapping,
introspection, names · `FS7` DTensor hazards · `FS8` machinery of DDP alone · `FS9` the FSDP2 contract
"""


def render(rules: Sequence[Rule]) -> str:
    """The page, with a section per rule."""
    return "\n".join([_INTRODUCTION, *(line for rule in rules for line in _section(rule))])


def _section(rule: Rule) -> Iterator[str]:
    yield f"## {rule.id}: {rule.title}"
    yield ""
    yield f"*{rule.level.value}*"
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
    if example.note:
        yield ""
        yield example.note
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
