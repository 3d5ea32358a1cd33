"""What a person writes where a rule cannot: a page of Markdown with code for each rule that leaves something open."""

from __future__ import annotations

from importlib.resources import files

from ..transforms.rule import Rule


def recipe(rule: Rule) -> str:
    """What holds for FSDP2 there and what to write; from the rule's examples where there is no page of its own."""
    if own := page(rule):
        return own
    example = next((one for one in rule.examples if one.before != one.after and not one.blind), None)
    if example is None:
        return ""
    before, after = (f"```python\n{text.strip()}\n```" for text in (example.before, example.after))
    return f"For example,\n\n{before}\n\nbecomes\n\n{after}"


def page(rule: Rule) -> str:
    """The page of a rule alone; empty where it has none."""
    file = files(__package__ or "") / "recipes" / f"{rule.id}.md"
    return file.read_text(encoding="utf-8").rstrip("\n") if file.is_file() else ""
