"""Questions about a module's very class, which change their answer where ``fully_shard`` gives the module a new one."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

HEAD = """\
from functools import partial

import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing, checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from blocks import Block, Other


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])


net = Net()
"""
WRAP = "model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block}))\n"

REWRITTEN = {
    "type(m) is not Block": "not isinstance(m, Block)",
    "m.__class__ == Block": "isinstance(m, Block)",
    "type(m) in (Block, Other)": "isinstance(m, (Block, Other))",
    "type(m) not in [Block, Other]": "not isinstance(m, (Block, Other))",
}
HELD = (
    'm.__class__.__name__ == "Block"',
    'type(m).__name__ in ("Block", "Other")',
    'm.__class__.__name__.startswith("Bl")',
    'any("Block" in str(b) for b in m.__class__.__bases__)',
    "type(m) in known",
    "known[type(m)]",
    "known.get(m.__class__, False)",
)
UNTOUCHED = (
    '"Block" in type(m).__name__',
    "isinstance(m, Block)",
    "type(m).is_causal",
    "report(type(m).__name__)",
    "type(m) is type(other)",
    "type(m.training) is bool",
)


def findings(text: str) -> tuple[list[Level], str]:
    analysis, results = analyse_texts({"train.py": text})
    return [finding.level for finding in analysis.findings if finding.rule == "FS609"], results["train.py"]


def loop(test: str) -> str:
    return f"for m in model.modules():\n    if {test}:\n        use(m)\n"


@pytest.mark.parametrize("test", REWRITTEN)
def test_classes_named_are_asked_for_by_isinstance(test: str) -> None:
    levels, text = findings(HEAD + WRAP + loop(test))
    assert levels == [Level.REVIEW]
    assert f"    if {REWRITTEN[test]}:\n" in text


@pytest.mark.parametrize("test", HELD)
def test_other_questions_hold_the_model_back(test: str) -> None:
    before = HEAD + WRAP + loop(test)
    levels, text = findings(before)
    assert (levels, text) == ([Level.MANUAL], before)


@pytest.mark.parametrize("test", UNTOUCHED)
def test_what_is_answered_alike_is_no_finding(test: str) -> None:
    levels, text = findings(HEAD + WRAP + loop(test))
    assert levels == []
    assert "fully_shard(model)" in text or "fully_shard(net)" in text


def test_before_the_wrap_classes_are_as_they_were() -> None:
    levels, _ = findings(HEAD + loop('type(m).__name__ == "Block"').replace("model", "net") + WRAP)
    assert levels == []


def test_parts_of_a_single_unit_keep_their_class() -> None:
    levels, _ = findings(HEAD + "model = FSDP(net)\n" + loop("type(m) is nn.Linear") + loop('type(m).__name__ == "Block"'))
    assert levels == []


def test_the_model_inside_its_wrapper_gets_a_new_class() -> None:
    levels, _ = findings(HEAD + WRAP + 'name = "small" if model.module.__class__.__name__ == "Net" else "large"\n')
    assert levels == [Level.MANUAL]


def test_functions_that_every_module_is_handed_to_are_looked_at() -> None:
    check = 'def visit(m):\n    if m.__class__.__name__ == "Block":\n        use(m)\n\n\n'
    assert findings(HEAD + check + WRAP + "model.apply(visit)\n")[0] == [Level.MANUAL]
    assert findings(HEAD + check + "net.apply(visit)\n" + WRAP)[0] == []


CHECK = """\
def check(layer):
    return any("block" in str(base).lower() for base in layer.__class__.__bases__)


def shard(net):
    model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block}))
"""
NAMED = "    wrapper = partial(checkpoint_wrapper, preserve_rng_state=False)\n"
APPLY = "    apply_activation_checkpointing(model, checkpoint_wrapper_fn=wrapper, check_fn=check)\n    return model\n"


def test_checkpointing_goes_before_the_wrap_with_what_is_named_for_it() -> None:
    text = HEAD + "\n\n" + CHECK.replace("model = FSDP(net", "net = FSDP(net") + NAMED + APPLY.replace("model", "net")
    levels, after = findings(text)
    assert levels == []
    assert after.index("wrapper = partial") < after.index("apply_activation_checkpointing(net") < after.index("fully_shard(net")


def test_checkpointing_that_stays_behind_the_wrap_is_not_to_ask_for_bases() -> None:
    levels, after = findings(HEAD + "\n\n" + CHECK + NAMED + "    warm_up(model)\n" + APPLY)
    assert levels == [Level.MANUAL]
    assert "fully_shard(" not in after
