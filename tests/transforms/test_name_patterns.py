"""Names of a wrapped model that are matched against patterns: only where the first letter counts does the prefix count."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_TEXT = """\
import fnmatch
import re

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

from rules import RULES

EMBED, BIAS = re.compile("^embed"), re.compile("bias$")
net = build()
torch.cuda.set_device(local_rank)
model = {wrap}
for name, parameter in {model}.named_parameters():
    if {test}:
        parameter.requires_grad_(False)
"""


def _levels(test: str, wrap: str = "FSDP(net)", model: str = "model") -> list[str]:
    texts = {"train.py": _TEXT.format(test=test, wrap=wrap, model=model), "rules.py": "RULES = read_yaml('rules.yaml')\n"}
    analysis, _ = analyse_texts(texts)
    return [f.level.value for f in analysis.findings if f.rule == "FS608"]


@pytest.mark.parametrize(
    "test", ["re.match('blocks', name)", "EMBED.search(name)", "fnmatch.fnmatch(name, 'embed.*')", "re.search('^head', name)"]
)
@pytest.mark.parametrize("wrap", ["FSDP(net)", "DDP(net, device_ids=[local_rank])"])
def test_a_pattern_from_the_first_letter_holds(test: str, wrap: str) -> None:
    assert _levels(test, wrap) == ["manual"]


@pytest.mark.parametrize(
    "test",
    [
        "re.search('blocks', name)",
        "BIAS.search(name)",
        "re.match('.*bias', name)",
        "fnmatch.fnmatch(name, '*.bias')",
        "re.match('blocks', name.replace('_fsdp_wrapped_module.', ''))",
    ],
)
def test_a_pattern_from_anywhere_is_right(test: str) -> None:
    assert _levels(test) == []


def test_an_unseen_pattern_is_named() -> None:
    assert _levels("any(re.search(rule, name) for rule in RULES)") == ["review"]


def test_names_of_the_model_before_the_wrap_have_no_prefix() -> None:
    assert _levels("re.match('blocks', name)", model="net") == []


@pytest.mark.parametrize(
    ("test", "levels"),
    [
        ("'blocks.0.up' in name", ["manual"]),
        ("any(part in name for part in ['blocks.1.down'])", ["manual"]),
        ("'blocks.0.' in name", []),
        ("'up.weight' in name", []),
        ("'blocks.0.up' in name.replace('_fsdp_wrapped_module.', '')", []),
    ],
)
def test_a_name_that_goes_on_inside_a_unit(test: str, levels: list[str]) -> None:
    assert _levels(test, "FSDP(net, auto_wrap_policy=policy)") == levels
    assert _levels(test) == []


@pytest.mark.parametrize(
    ("test", "levels"),
    [
        ("{'embed.weight': True}.get(name, False)", ["manual"]),
        ("{'a': True}.get(name.replace('_fsdp_wrapped_module.', ''))", []),
        ("RULES.get(name)", []),
    ],
)
def test_a_name_that_is_looked_up(test: str, levels: list[str]) -> None:
    assert _levels(test) == levels
