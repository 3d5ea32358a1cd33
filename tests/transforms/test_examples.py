"""Every rule's examples, migrated; and what every rule has to say about itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from to_fsdp2.transforms.engine import Analysis, Options, analyse, extract
from to_fsdp2.transforms.rule import ContractRule, Example, Rule, all_rules, contract_rules, rule_for
from to_fsdp2.transforms.text.source import Source

_EXAMPLES = [
    pytest.param(rule, example, id=f"{rule.id}-{number}")
    for rule in all_rules()
    if not isinstance(rule, ContractRule)
    for number, example in enumerate(rule.examples)
]
_CONTRACT = [
    pytest.param(rule, example, id=f"{rule.id}-{number}")
    for rule in contract_rules()
    for number, example in enumerate(rule.examples)
]


def migrated(text: str, blind: bool = False) -> Analysis:
    source = Source.decode("train.py", text.encode())
    options = Options(target_torch=(2, 13), blind=blind, contract=True)
    return analyse([extract(source)], lambda _: source, options, paths=["train.py"])


@pytest.mark.parametrize(("rule", "example"), _EXAMPLES)
def test_example(rule: Rule, example: Example) -> None:
    analysis = migrated(example.before, example.blind)
    assert not analysis.errors
    assert analysis.texts.get("train.py", example.before) == example.after
    assert example.level in {finding.level for finding in analysis.findings if finding.rule == rule.id}


@pytest.mark.parametrize(("rule", "example"), _CONTRACT)
def test_a_breach_is_found_and_its_mending_is_content(rule: Rule, example: Example) -> None:
    analysis = migrated(example.before)
    assert not analysis.errors and not analysis.texts
    assert (rule.id, example.level) in {(finding.rule, finding.level) for finding in analysis.findings}
    mended = migrated(example.after)
    assert not mended.errors and not mended.texts and not mended.findings


@pytest.mark.parametrize(("rule", "example"), _EXAMPLES + _CONTRACT)
def test_messages_are_short(rule: Rule, example: Example) -> None:
    for finding in migrated(example.before, example.blind).findings:
        assert 0 < len(finding.message) < 200 and len(finding.advice) < 200


@pytest.mark.parametrize(("rule", "example"), _EXAMPLES)
def test_second_run_changes_nothing(rule: Rule, example: Example) -> None:
    assert not migrated(example.after, example.blind).texts or example.after == example.before


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_rule_explains_itself(rule: Rule) -> None:
    assert rule.title and rule.why.endswith(".") and len(rule.why) < 200
    assert rule.examples, "a rule shows what becomes of code"


def test_ids_are_unique() -> None:
    ids = [rule.id for rule in all_rules()]
    assert len(set(ids)) == len(ids)


def test_the_rule_of_the_contributors_page_works(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    module: dict[str, Any] = {"__package__": "to_fsdp2.transforms.rules", "__name__": "to_fsdp2.transforms.rules.example"}
    exec(compile(code, "CONTRIBUTING.md", "exec"), module)
    written = module["RULE"]
    known = all_rules()
    monkeypatch.setattr("to_fsdp2.transforms.rule.all_rules", lambda: (*known, written))
    rule_for.cache_clear()
    try:
        for example in written.examples:
            test_example(written, example)
            test_messages_are_short(written, example)
        test_rule_explains_itself(written)
    finally:
        rule_for.cache_clear()
