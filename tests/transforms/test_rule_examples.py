"""Every rule's before/after examples, run through the whole engine."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.rule import Example, Rule, all_rules

EXAMPLES = [
    pytest.param(rule, example, id=f"{rule.id}-{number}")
    for rule in all_rules()
    for number, example in enumerate(rule.examples)
]


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_example(rule: Rule, example: Example) -> None:
    analysis, results = analyse_texts({"train.py": example.before})
    assert results["train.py"] == example.after
    levels = {finding.level for finding in analysis.findings if finding.rule == rule.id}
    assert example.level in levels


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_migrated_example_is_left_alone(rule: Rule, example: Example) -> None:
    _, results = analyse_texts({"train.py": example.after})
    assert results["train.py"] == example.after


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_rule_documents_itself(rule: Rule) -> None:
    assert rule.title and rule.why and rule.symbols
    assert rule.examples, "a rule shows before and after"


def test_ids_are_unique() -> None:
    ids = [rule.id for rule in all_rules()]
    assert len(ids) == len(set(ids))
