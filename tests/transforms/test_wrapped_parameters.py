"""Names that FSDP1 had marked are asked for no more: their parameters are."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

HEAD = """\
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)


"""
PARTS = "net = Net()\nif by_parts:\n    net.body = FSDP(net.body)\n    model = net\nelse:\n    model = DDP(net)\n"
WHOLE = "model = FSDP(Net())\n"
EITHER = "model = FSDP(Net()) if by_parts else DDP(Net())\n"
LOOP = "for name, p in model.named_parameters():\n    if {test}:\n        print(name)\n"

ASKED = {
    "the whole model": (WHOLE, '"fsdp" in name', "if isinstance(p, DTensor):"),
    "none of them": (WHOLE, '"_fsdp_wrapped_module" not in name', "if not isinstance(p, DTensor):"),
    "parts, or all by DDP": (PARTS, '"fsdp" in name', "if isinstance(p, DTensor) and not isinstance(model, FSDPModule):"),
    "the others of these": (
        PARTS, '"fsdp" not in name', "if not (isinstance(p, DTensor) and not isinstance(model, FSDPModule)):"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("model", "test", "asked"), ASKED.values(), ids=ASKED.keys())
def test_the_parameter_is_asked(model: str, test: str, asked: str) -> None:
    analysis, results = analyse_texts({"train.py": HEAD + model + LOOP.format(test=test)})
    (finding,) = [f for f in analysis.findings if f.rule == "FS608"]
    assert finding.level is Level.REVIEW
    assert asked in results["train.py"]


KEPT = {
    "the whole model by either": EITHER + LOOP.format(test='"fsdp" in name'),
    "without the parameter": WHOLE + 'for name, _ in list(model.named_parameters()):\n    print("fsdp" in name)\n',
    "another parameter": WHOLE + LOOP.format(test='"fsdp" in name').replace("    if", "    p = others[name]\n    if"),
    "parameters that were ignored": "model = FSDP(Net(), ignored_states=other)\n" + LOOP.format(test='"fsdp" in name'),
    "compiled models": PARTS + "model = torch.compile(model)\n" + LOOP.format(test='"fsdp" in name'),
}


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT.keys())
def test_what_would_be_another_question_holds(body: str) -> None:
    analysis, results = analyse_texts({"train.py": HEAD + body})
    (finding,) = [f for f in analysis.findings if f.rule == "FS608"]
    assert finding.level is Level.MANUAL
    assert "FSDP(" in results["train.py"]


def test_a_regular_expression_is_no_compiled_model() -> None:
    text = HEAD.replace("import torch\n", "import re\n\nimport torch\n", 1) + PARTS + 'words = re.compile("a")\n'
    _, results = analyse_texts({"train.py": text + LOOP.format(test='"fsdp" in name')})
    assert "not isinstance(model, FSDPModule)" in results["train.py"]


CUT = {
    "in the test": LOOP.format(test='"fsdp" in name.lower()'),
    "before it": LOOP.format(test='"fsdp" in name').replace("    if", '    name = name.removeprefix("module.")\n    if'),
}


@pytest.mark.parametrize("body", CUT.values(), ids=CUT.keys())
def test_names_that_were_cut_are_still_asked(body: str) -> None:
    analysis, results = analyse_texts({"train.py": HEAD + WHOLE + body})
    (finding,) = [f for f in analysis.findings if f.rule == "FS608"]
    assert finding.level in (Level.MANUAL, Level.REVIEW)
    assert ("FSDP(" in results["train.py"]) is (finding.level is Level.MANUAL)


def test_names_without_the_mark_are_not_asked_for_it() -> None:
    body = LOOP.format(test='"fsdp" in name').replace("    if", '    name = name.replace("_fsdp_wrapped_module.", "")\n    if')
    analysis, _ = analyse_texts({"train.py": HEAD + WHOLE + body})
    assert not [f for f in analysis.findings if f.rule == "FS608"]
