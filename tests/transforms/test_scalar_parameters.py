"""Parameters without dimensions in models that DDP wraps: what gets a dimension, and which uses keep their value."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

_TEXT = """\
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Pair(nn.Module):
    def __init__(self, large, given, scale: float = 2.6, bias=None):
        super().__init__()
        self.layer = nn.Linear(8, 8)
{define}

    def forward(self, x):
        x = self.layer(x)
{use}


torch.cuda.set_device(0)
model = DDP(Pair(False, 3), broadcast_buffers=False, device_ids=[0])
{after}
"""


def _migrate(define: str = "self.scale = nn.Parameter(torch.ones([]))", use: str = "", after: str = "") -> tuple[str, str]:
    """(text, messages of FS123) of a model with this definition, this body of forward, and these lines behind the wrap."""
    lines = ["\n".join(" " * 8 + line for line in text.splitlines()) for text in (define, use or "return x * self.scale")]
    text = _TEXT.format(define=lines[0], use=lines[1], after=after)
    analysis, results = analyse_texts({"train.py": text})
    found = [finding for finding in analysis.findings if finding.rule == "FS123"]
    if any(finding.level is Level.MANUAL for finding in found):
        assert results["train.py"] == text
    return results["train.py"], "; ".join(f"{finding.level.value}: {finding.message}" for finding in found)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch.ones([])", "torch.ones(1)"),
        ("torch.zeros(()) + scale", "torch.zeros(1) + scale"),
        ("torch.full((), scale)", "torch.full((1,), scale)"),
        ("torch.tensor(0.07)", "torch.tensor([0.07])"),
        ("torch.tensor(math.log(1 / 0.07))", "torch.tensor([math.log(1 / 0.07)])"),
        ("torch.tensor(scale)", "torch.tensor([scale])"),
        ("torch.tensor(given)", "torch.tensor([given])"),
        ("torch.log(torch.tensor(1 / 0.07))", "torch.log(torch.tensor([1 / 0.07]))"),
        ("torch.tensor(scale).log()", "torch.tensor([scale]).log()"),
        ("torch.ones([], device=None) * bias", "torch.ones(1, device=None) * bias"),
        ("torch.ones([1] if large else [])", "torch.ones([1])"),
        ("torch.tensor(2).float()", "torch.tensor([2]).float()"),
        ("torch.ones([]).to(torch.float64) * scale", "torch.ones(1).to(torch.float64) * scale"),
        ("torch.zeros(3).sum()", "torch.zeros(3).sum().reshape(1)"),
        ("2 * torch.rand(3, 3).mean()", "2 * torch.rand(3, 3).mean().reshape(1)"),
        ("torch.full([], given) if large else torch.tensor(0.5)", "torch.full((1,), given) if large else torch.tensor([0.5])"),
    ],
)
def test_definitions_get_a_dimension(before: str, after: str) -> None:
    text, message = _migrate(f"self.scale = nn.Parameter({before}, requires_grad=True)")
    assert message.startswith("review: ")
    assert f"self.scale = nn.Parameter({after}, requires_grad=True)\n" in text
    assert "        self.register_load_state_dict_pre_hook(add_dimension)\n" in text
    assert "return x * self.scale.squeeze(0)\n" in text
    assert "fully_shard(model)" in text


def test_a_chosen_shape_is_chosen_no_more() -> None:
    define = "shape = [1] if large else []\nself.scale = nn.Parameter(torch.ones(shape) * scale)\nif large:\n"
    define += "    self.shift = nn.Parameter(torch.zeros(shape))\nelse:\n    self.shift = None"
    use = "if self.shift is not None:\n    x = x + self.shift\nreturn x * self.scale.exp()"
    text, message = _migrate(define, use)
    assert "        shape = [1]\n" in text
    assert text.count("register_load_state_dict_pre_hook") == 1 and text.count("def add_dimension(") == 1
    assert "            self.shift = None\n        self.register_load_state_dict_pre_hook(add_dimension)\n" in text
    assert "if self.shift is not None:\n            x = x + self.shift.squeeze(0)\n" in text
    assert "both choices are now the same" in message


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("return F.normalize(x) * self.scale.exp()", "F.normalize(x) * self.scale.squeeze(0).exp()"),
        ("return torch.clamp(self.scale, max=4.6) * x", "torch.clamp(self.scale.squeeze(0), max=4.6) * x"),
        ("x += self.scale\nreturn x", "x += self.scale.squeeze(0)"),
        ('return {"logits": x, "scale": self.scale}', '"scale": self.scale.squeeze(0)}'),
        ("return x, self.scale.float()", "return x, self.scale.squeeze(0).float()"),
        ("self.log(self.scale.exp().item())\nreturn x * self.scale", "self.log(self.scale.exp().item())"),
        ("self.log(float(self.scale))\nreturn x * self.scale", "self.log(float(self.scale))"),
        ("print(f'{self.scale}')\nreturn x * self.scale.data", "return x * self.scale.squeeze(0).data"),
    ],
)
def test_what_computes_takes_the_element(use: str, expected: str) -> None:
    text, message = _migrate(use=use)
    assert message.startswith("review: ")
    assert expected in text


@pytest.mark.parametrize(
    "after",
    [
        "with torch.no_grad():\n    model.module.scale.clamp_(0, 4.6)",
        "nn.init.constant_(model.module.scale, 2.0)",
        'optimizer = torch.optim.SGD([{"params": [model.module.scale], "lr": 0.1}, {"params": model.module.layer.parameters()}])',
        "decayed = [p for p in model.parameters() if p.ndim < 2]",
    ],
)
def test_what_takes_one_element_as_well_stays(after: str) -> None:
    text, message = _migrate(after=after)
    assert message.startswith("review: ")
    assert text.count(".squeeze(0)") == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"define": "self.scales = nn.ParameterList([nn.Parameter(torch.ones([]))])"}, "not assigned to an attribute"),
        ({"define": "self.scale = nn.Parameter(torch.ones([large] if large else []))"}, "may be another one"),
        ({"define": "self.scale = nn.Parameter(torch.ones(2) if large else torch.tensor(0.5))"}, "may be another one"),
        ({"define": "self.scale = nn.Parameter((bias if large else torch.tensor(0.5)).clone())"}, "may be another one"),
        ({"define": "shape = []\nself.b = torch.zeros(shape)\nself.scale = nn.Parameter(torch.ones(shape))"}, "serves something"),
        ({"use": "return x * self.scale.view(-1)[0]"}, ""),
        ({"use": "return x * self.scale[None]"}, "what train.py:17 does with it"),
        ({"after": "loss = criterion(model.module.scale)"}, "what train.py:22 does with it"),
        ({"after": "decayed = [p for p in model.parameters() if p.dim() == 1]"}, "train.py:22 tells parameters without"),
        ({"after": "decayed = [p for p in model.parameters() if len(p.shape) > 0]"}, "train.py:22 tells parameters without"),
    ],
)
def test_what_depends_on_the_shape_holds_the_group(change: dict[str, str], reason: str) -> None:
    text, message = _migrate(**change)
    if not reason:
        assert "self.scale.squeeze(0).view(-1)[0]" in text
        return
    assert message.startswith("manual: ") and reason in message
    assert "fully_shard(" not in text


def test_a_module_inside_the_model_is_followed() -> None:
    text = """\
import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate()

    def forward(self, x):
        return x * self.gate.scale


class Other(nn.Module):
    def forward(self, x):
        return x * self.scale


model = DDP(Net())
"""
    _, results = analyse_texts({"train.py": text})
    assert "return x * self.gate.scale.squeeze(0)\n" in results["train.py"]
    assert "return x * self.scale\n" in results["train.py"]


@pytest.mark.parametrize(
    ("made", "imported"),
    [
        ('CLIPModel.from_pretrained("openai/clip")', "from transformers import CLIPModel"),
        ('open_clip.create_model("ViT-B-32")', "import open_clip"),
    ],
)
def test_a_model_of_another_package_is_held(made: str, imported: str) -> None:
    text = f"""\
{imported}
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = {made}


model = DDP(Net())
"""
    analysis, results = analyse_texts({"train.py": text})
    assert results["train.py"] == text
    assert any("its code is not here" in finding.message for finding in analysis.findings)


def test_files_share_the_hook_where_one_imports_from_the_other() -> None:
    first = """\
import torch
import torch.nn as nn


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))
"""
    second = """\
import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from gate import Gate


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate()
        self.shift = nn.Parameter(torch.zeros(()))


model = DDP(Net())
"""
    _, results = analyse_texts({"gate.py": first, "net.py": second})
    assert "def add_dimension(" in results["gate.py"]
    assert "from gate import Gate, add_dimension\n" in results["net.py"]
    assert "def add_dimension(" not in results["net.py"]
    assert "self.register_load_state_dict_pre_hook(add_dimension)" in results["net.py"]


@pytest.mark.parametrize(
    ("model", "is_found"),
    [("registry[name]()", True), ("Other()", False)],
)
def test_scalars_of_models_that_may_be_chosen_are_named(model: str, is_found: bool) -> None:
    text = _TEXT.format(define="        self.scale = nn.Parameter(torch.ones([]))", use="        return x * self.scale", after="")
    text = text.replace("Pair(False, 3)", model).replace(
        "torch.cuda.set", "class Other(nn.Linear):\n    def __init__(self):\n        super().__init__(2, 2)\n\n\ntorch.cuda.set"
    )
    analysis, results = analyse_texts({"train.py": text})
    found = [finding for finding in analysis.findings if finding.rule == "FS123"]
    assert "fully_shard(model" in results["train.py"]
    assert [finding.level for finding in found] == ([Level.MANUAL] if is_found else [])
    assert all("raises ValueError" in finding.message for finding in found)
