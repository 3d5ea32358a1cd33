"""Helpers come without what the code of a repository surely does not need."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TypeGuard

import pytest
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.rewrites.helper_place import features_left_out, is_current, module_text
from to_fsdp2.transforms.rewrites.helper_source import beside_code, definitions, features_by_file, features_of, with_needs
from to_fsdp2.transforms.text.source import Source

FEATURES = sorted(frozenset[str]().union(*features_by_file().values()))


def test_what_is_left_is_whole(tmp_path: Path) -> None:
    """No name is missing, and none is left that nothing reads: without any one feature, with any one alone, with none."""
    everything = frozenset(FEATURES)
    variants = {f"without_{feature}": everything & {feature, f"{feature}.set"} for feature in FEATURES}
    variants |= {f"with_{feature}": everything - {feature} for feature in FEATURES if not feature.endswith(".set")}
    for name, absent in {**variants, "without_any": everything, "with_all": frozenset[str]()}.items():
        concerned = {file for file, features in features_by_file().items() if features & (absent or everything)}
        names = [one.name for one in definitions().values() if one.file in concerned]
        text = module_text(names, absent)
        assert "needed for:" not in text
        (tmp_path / f"{name.replace('.', '_')}.py").write_text(text)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F", str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout == "All checks passed!\n"


def test_a_module_says_what_it_was_made_for() -> None:
    names = {"shard_like_ddp", "state_of"}
    absent = features_of(names) - {"create_graph", "ddp.static_graph"}
    text = module_text(names, absent)
    assert len(text) < len(module_text(names))
    assert "allow_double_backward(part)" in text and "static_graph: bool" in text and "inference" not in text
    assert features_left_out(text) == absent
    assert is_current(text)
    assert not is_current(text.replace("static_graph: bool", "static: bool"))


def test_an_argument_that_is_not_the_default_is_heeded() -> None:
    """`broadcast_buffers=False` is no missing argument: True is what DDP does without it."""
    source = Source.decode("train.py", (
        b"from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
        b"def wrap(net, ids):\n    return DDP(net, device_ids=ids, broadcast_buffers=False, static_graph=False)\n"
    ))  # fmt: skip
    analysis = analyse([extract(source)], {"train.py": source}.__getitem__, Options(), paths=["train.py"])
    text = "\n".join(analysis.texts.values()) + "\n".join(analysis.new_files.values())
    assert "if broadcast_buffers is False:" in text
    assert "if static_graph" not in text


MODEL = (
    "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.scale = nn.Parameter(torch.ones(3))\n\n    def forward(self, x):\n        return x * self.scale\n\n\n"
)
WRAP = "\n\ndef wrap(**options):\n    return torch.nn.parallel.DistributedDataParallel(Net(), **options)\n"
UPDATE = "\n\n    def update(self, x):\n        self.scale.mul_(2)"
NAMES = "\n\n    def named_parameters(self, prefix=''):\n        return super().named_parameters(prefix)"
KEPT = ("plain_parameters", "keep_class_name", "keep_writes_in_forward", "broadcast_buffers_before_forward")


def helpers_for(text: str) -> str:
    source = Source.decode("train.py", text.encode())
    analysis = analyse([extract(source)], {"train.py": source}.__getitem__, Options(), paths=["train.py"])
    return "\n".join([*analysis.texts.values(), *analysis.new_files.values()])


def test_models_of_the_repository_alone_need_little() -> None:
    text = helpers_for(MODEL + WRAP)
    assert "def shard_like_ddp(" in text
    assert not [name for name in KEPT if f"def {name}(" in text]


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (("torch.ones(3)", "torch.tensor(1.0)"), "plain_parameters"),
        (("torch.ones(3)", "values()"), "plain_parameters"),
        (("torch.ones(3)", "torch.empty(0)"), "plain_parameters"),
        (("torch.ones(3)", "torch.ones(3).half()"), "plain_parameters"),
        (("x * self.scale", "print(type(self).__name__)"), "keep_class_name"),
        (("x * self.scale", "self.update(x)" + UPDATE), "keep_writes_in_forward"),
        (("x * self.scale", "getattr(self, x)()" + UPDATE), "keep_writes_in_forward"),
        (("return x * self.scale", "return nn.BatchNorm1d(3)(x)"), "broadcast_buffers_before_forward"),
        (("x * self.scale", "x * self.scale" + NAMES), "use_torchs_names"),
    ],
)
def test_what_models_do_is_kept(change: tuple[str, str], kept: str) -> None:
    assert f"def {kept}(" in helpers_for(MODEL.replace(*change) + WRAP)


BY_NAME = """

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.ones([]) * 2.0)

    def forward(self, x):
        return x * self.logit_scale


HEADS = {"head": Head}
"""


@pytest.mark.parametrize("module", ["module", "HEADS[part]()"])
def test_parts_that_are_built_by_name_may_be_anything(module: str) -> None:
    built = "        for part in parts:\n            module = getattr(self, 'build_' + part)()\n"
    built += f"            self.add_module(part, {module})\n"
    scale = "        self.scale = nn.Parameter(torch.ones(3))\n"
    assert scale in MODEL
    text = MODEL.replace(scale, scale + built).replace("__init__(self):", "__init__(self, parts=()):") + BY_NAME
    assert "def plain_parameters(" in helpers_for(text + WRAP)


@pytest.mark.parametrize("line", ["import unheard_of\n", "import importlib\nnets = importlib.import_module('nets')\n"])
def test_models_of_unknown_packages_may_need_anything(line: str) -> None:
    text = helpers_for(line + MODEL + WRAP.replace("Net()", "options.pop('net')"))
    assert not [name for name in KEPT if name != "keep_writes_in_forward" and f"def {name}(" not in text]


def test_writes_outside_of_forwards_are_no_concern_of_theirs() -> None:
    average = "\n\ndef average(mine, theirs):\n    mine.data.mul_(0.9).add_(theirs)\n"
    assert "def keep_writes_in_forward(" not in helpers_for(MODEL + average + WRAP)
    kept = "\n\nKINDS = {'average': average}\n"
    by_name = MODEL.replace("return x", "KINDS['average'](self.scale, x)\n        return x")
    assert "def keep_writes_in_forward(" in helpers_for(by_name + average + kept + WRAP)
    hook = "\n\ndef hook(net):\n    net.register_forward_hook(average)\n"
    assert "def keep_writes_in_forward(" in helpers_for(MODEL + average + hook + WRAP)


def test_what_helpers_do_for_each_other_comes_with_the_other() -> None:
    every = frozenset(FEATURES)
    assert "_held_whole" not in module_text({"whole"}, every) and "_held_whole" in module_text({"whole"}, every - {"each_rank"})
    load = MODEL + WRAP + "\n\ndef load(net, options, path):\n    wrap(**options).load_state_dict(torch.load(path))\n"
    assert "own_key(" in helpers_for(load)


def test_names_that_are_only_local_bring_nothing() -> None:
    assert "units" not in definitions()["_whole_model"].needs


FSDP1_PARTS = """

def fsdp(net, **options):
    model = torch.distributed.fsdp.FullyShardedDataParallel(net, **options)
    total = torch.stack([p.grad.pow(2).sum() for p in model.parameters()]).sum()
    torch.distributed.all_reduce(total)
    return model
"""
DDP_MATH = """

def ddp(net, **options):
    model = torch.nn.parallel.DistributedDataParallel(net, **options)
    return model, sum((p * p).sum() for p in model.parameters())
"""


def test_math_of_one_kind_comes_without_that_of_the_other() -> None:
    in_parts, as_whole, both = (helpers_for(MODEL + body) for body in (FSDP1_PARTS, DDP_MATH, FSDP1_PARTS + DDP_MATH))
    kinds = ("def compute_with_parts(", "def compute_as_whole(", "mark_as_part(")
    assert [kind in in_parts for kind in kinds] == [True, False, False]
    assert [kind in as_whole for kind in kinds] == [False, True, False]
    assert [kind in both for kind in kinds] == [True, True, True]
    assert not any("HELPERS" in text for text in (in_parts, as_whole, both))


def test_helpers_beside_code_know_their_names() -> None:
    text = beside_code(with_needs({"compute_as_whole"}))
    names = next(ast.literal_eval(node.value) for node in ast.parse(text).body if _is_named(node, "HELPERS"))
    assert set(names) == {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    assert "compute_as_whole" in names and "is_called_for_shards" in names


def _is_named(node: ast.stmt, name: str) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name


def test_a_copy_has_the_first_paragraphs() -> None:
    text = definitions()["reshard_after_forward"].text
    assert 'always those that an optimizer knows."""\n' in text and "counts for the root" not in text


_READS = "\n\ndef norm(net):\n    return sum(p.norm() for p in net.parameters())\n"


@pytest.mark.parametrize(("line", "more", "is_kept"), [
    ("import pyhessian", "", True),
    ("from higher import innerloop_ctx", "", True),
    ("import unheard_of", _READS, True),
    ("from torch.autograd import (\n    grad,\n)", _READS, True),
    ("from torch.autograd.functional import hessian", _READS, True),
    ("ag = torch.autograd", _READS, True),
    ("import torchvision", _READS, False),
    ("from torch.autograd import Variable", _READS, False),
])  # fmt: skip
def test_gradients_that_others_may_ask_for_are_given(line: str, more: str, is_kept: bool) -> None:
    """A library that gets the model may call `torch.autograd.grad` by its parameters, though no code of the program does."""
    text = helpers_for(f"import torch\n{line}\n{MODEL}{more}{WRAP}")
    assert ("def gradients_of_own_loss(" in text and "compute_as_whole(module)" in text) == is_kept
