"""Code that nothing reaches behind fully_shard: branches for old torch, and patches of FSDP1 with what they call."""

from __future__ import annotations

import ast

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.analysis.versions import outcome
from to_fsdp2.transforms.analysis.written_names import Names
from to_fsdp2.transforms.findings import Level

WRAP = """\
import torch
from packaging import version
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    return FSDP(model)
"""


@pytest.mark.parametrize(
    ("test", "known"),
    [
        ("version.parse(torch.__version__) >= version.parse('2.2.0')", True),
        ("version.parse(torch.__version__.split('.dev')[0]) < version.parse('2.0.1')", False),
        ("version.parse('1.13') <= Version(torch.__version__)", True),
        ("not parse_version(torch.__version__) < parse_version('2.1.0.dev')", True),
        ("flag and version.parse(torch.__version__) < version.parse('2.0.1')", False),
        ("flag or version.parse(torch.__version__) < version.parse('2.0.1')", None),
        ("version.parse(torch.__version__) >= version.parse('2.6')", None),
        ("version.parse(torch.__version__) < version.parse('2.9')", None),
        ("version.parse(numpy.__version__) < version.parse('1.9')", None),
        ("torch.__version__ < '2.1'", False),
        ("torch.__version__ >= (2, 0)", True),
        ("str(torch.__version__) < '2.1'", False),
        ("str(torch.__version__) < '2.3'", None),
        ("digit_version(torch.__version__) < digit_version('2.0.1')", False),
        ("digit_version('1.5.0') <= digit_version(torch.__version__) < digit_version('1.10.0')", False),
        ("tidy_version(torch.__version__) < tidy_version('2.3')", None),
        ("minor_version(torch.__version__) < minor_version('1.8')", None),
        ("int(torch.__version__.split('.')[0]) < 2", False),
        ("int(torch.__version__.split('.')[1]) < 9", None),
        ("[int(n) for n in torch.__version__.split('.')[:2]] >= [1, 12]", True),
        ("tuple(map(int, torch.__version__.split('.')[:2])) < (2, 3)", False),
        ("float(torch.__version__[:3]) >= 1.8", True),
        ("float(torch.__version__[:3]) >= 2.5", None),
        ("torch.__version__.startswith('1.')", False),
        ("torch.__version__.startswith('2.')", None),
        ("version.parse(torch.__version__).major >= 2", True),
        ("version.parse(torch.__version__).release[:2] < (2, 1)", False),
        ("Version(importlib.metadata.version('torch')) < Version('2.1')", False),
        ("is_torch_version('>=', '2.1')", True),
        ("'parrots' not in torch.__version__", None),
        ("len(torch.__version__) > len('1.8')", None),
        ("False", None),
        ("3 > 2", None),
    ],
)
def test_what_a_version_test_comes_out_as(test: str, known: bool | None) -> None:
    tree = ast.parse(test, mode="eval")
    assert outcome(tree.body, Names(tree)) is known


def test_a_branch_for_old_torch_neither_counts_nor_holds() -> None:
    old = """\
if version.parse(torch.__version__) < version.parse("2.1"):

    def hand_on(registry):
        registry["fsdp"] = FSDP


def train(model):
    model = shard(model)
    if version.parse(torch.__version__) >= version.parse("2.1"):
        model.clip_grad_norm_(1.0)
    else:
        FSDP.rekey_optim_state_dict({}, "names", model)
"""
    analysis, results = analyse_texts({"train.py": WRAP + old})
    assert "fully_shard(model)" in results["train.py"]
    assert "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)" in results["train.py"]
    left = [finding for finding in analysis.findings if "before 2.6" in finding.message]
    assert {finding.level for finding in left} == {Level.OK}
    assert any("rekey_optim_state_dict" in finding.symbol for finding in left)


def test_what_only_a_patch_of_private_code_uses_does_not_hold() -> None:
    patch = """\
from torch.distributed.fsdp import _state_dict_utils


def names_of(kinds):
    return {"fsdp": FSDP, **kinds}


def load_hook(module, *rest):
    return names_of({})


_state_dict_utils._sharded_pre_load_state_dict_hook = load_hook
"""
    analysis, results = analyse_texts({"train.py": WRAP + patch})
    unchanged = patch[patch.index("def names_of") :]
    assert "fully_shard(model)" in results["train.py"] and unchanged in results["train.py"]
    handed_on = next(f for f in analysis.findings if f.rule == "FS113")
    assert "names_of is used by nothing but" in handed_on.message

    _, results = analyse_texts({"train.py": WRAP + patch, "other.py": "from train import names_of\nnames_of({})\n"})
    assert "fully_shard(model)" not in results["train.py"], "somebody else uses it"


def test_a_patch_of_the_class_itself_holds() -> None:
    patch = """\
def clip(self, limit):
    return custom_clipping(self, limit)


FSDP.clip_grad_norm_ = clip
"""
    analysis, results = analyse_texts({"train.py": WRAP + patch})
    assert results["train.py"] == WRAP + patch
    holding = next(f for f in analysis.findings if f.level is Level.MANUAL and f.blocked_by is None)
    assert "clip_grad_norm_ of FSDP1's class is replaced here" in holding.message
