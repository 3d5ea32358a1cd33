"""What is left to a person comes with what to do about it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import to_fsdp2.transforms.rules as rules
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level
from to_fsdp2.transforms.rule import Example, Rule, all_rules

TRANSFORMS = Path(rules.__path__[0]).parent
EXAMPLES = [
    pytest.param(example, id=f"{rule.id}-{number}")
    for rule in all_rules()
    for number, example in enumerate(rule.examples)
    if example.level is Level.MANUAL
]


def outcomes_without_advice(path: Path) -> list[int]:
    """The lines where an outcome is left to a person with nothing but a message."""
    tree = ast.parse(path.read_text())
    rule = next((n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == Rule.__name__), None)
    if rule is not None and any(keyword.arg == "advice" for keyword in rule.keywords):
        return []
    return [
        call.lineno
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) == "Outcome"
        and len(call.args) == 2
        and ast.unparse(call.args[0]) == "Level.MANUAL"
        and not {"advice", "silent"} & {keyword.arg for keyword in call.keywords}
    ]


def test_every_outcome_that_is_left_to_a_person_says_what_to_do() -> None:
    missing = {str(path.relative_to(TRANSFORMS)): outcomes_without_advice(path) for path in sorted(TRANSFORMS.rglob("*.py"))}
    assert {path: lines for path, lines in missing.items() if lines} == {}


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_that_are_left_to_a_person_have_a_way_out(example: Example) -> None:
    analysis, _ = analyse_texts({"train.py": example.before})
    left = [f for f in analysis.findings if f.level is Level.MANUAL and not f.blocked_by]
    assert [(f.rule, f.message) for f in left if not f.advice] == []
