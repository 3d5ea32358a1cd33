"""Methods of models that need no parameters gathered around them."""

from __future__ import annotations

import pytest
import torch
from migrated_texts import HEAD, migrated
from to_fsdp2.transforms.flow.tensor_methods import TENSOR_METHODS
from torch import nn


@pytest.mark.parametrize(("method", "stays"), [("no_weight_decay", True), ("save_checkpoint", True), ("encode", False)])
def test_methods_of_libraries_that_compute_nothing(method: str, stays: bool) -> None:
    text = HEAD + "import timm\n\n\ndef run(options):\n    model = DDP(timm.create_model('vit'), **options)\n"
    new = migrated(train=text + f"    return model.{method}()\n")["train"]
    assert (f"return model.{method}()" in new) is stays


@pytest.mark.parametrize(("member", "stays"), [("dropout", True), ("encode", False)])
def test_what_classes_set_as_an_attribute_is_a_part_and_no_method(member: str, stays: bool) -> None:
    net = "class Net(nn.Module):\n    def __init__(self, part):\n        super().__init__()\n        self.dropout = part\n\n"
    net += "    def encode(self, x):\n        return self.dropout(x) @ self.weight\n\n\n"
    run = f"def run(part, options, x):\n    model = DDP(Net(part), **options)\n    return model.module.{member}(x)\n"
    new = migrated(train=HEAD + net + run)["train"]
    assert ("forward_method(" not in new) is stays


FILLS = ["nn.init.normal_(layer.weight)", "layer.reset_parameters()", "fill(layer)", "print(layer(layer.weight))"]


@pytest.mark.parametrize("fills", FILLS)
def test_methods_that_fill_parameters_keep_what_they_write(fills: str) -> None:
    text = HEAD + (
        "def fill(layer):\n    nn.init.trunc_normal_(layer.weight)\n\n\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layers = nn.ModuleList([nn.Linear(2, 2)])\n\n"
        f"    def restart(self):\n        for layer in self.layers:\n            {fills}\n\n\n"
        "def run(options):\n    net = Net()\n    model = DDP(net, **options)\n    net.restart()\n    return model\n"
    )
    expected = "forward_method" if "print" in fills else "method_on_full"
    assert f'{expected}(net, "restart")()' in migrated(train=text)["train"]


@pytest.mark.parametrize(("counts", "stays"), [("self.width", True), ("self.layer.weight.sum()", False)])
def test_methods_that_count_through_many_parts(counts: str, stays: bool) -> None:
    """In each part the method asks the next one, and a part that the model is made without."""
    parts = "".join(
        f"class Part{i}(nn.Module):\n    def __init__(self, extra=None):\n        super().__init__()\n"
        f"        self.inner, self.extra = Part{i - 1}(), extra\n\n    def flops(self):\n        found = self.inner.flops()\n"
        "        if self.extra is not None:\n            found += self.extra.flops()\n        return found\n\n\n"
        for i in range(1, 7)
    )
    text = HEAD + (
        "class Part0(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layer, self.width = nn.Linear(2, 2), 2\n\n"
        f"    def flops(self):\n        return 3 * {counts}\n\n\n{parts}"
        "def main():\n    model = DDP(Part6())\n    return model.module.flops()\n"
    )
    assert ("forward_method(" not in migrated(train=text)["train"]) is stays


@pytest.mark.parametrize("is_module", [True, False])
@pytest.mark.parametrize("layers", ["self.model.layers", "enumerate(self.model.layers)"])
def test_methods_of_own_parts_are_gathered_for_by_whoever_called(is_module: bool, layers: str) -> None:
    """Also of parts that the method has under names of its own; not of parts of a model that the object merely uses."""
    names = "i, layer" if "enumerate" in layers else "layer"
    text = HEAD + (
        "class Layer(nn.Module):\n    def encode(self, x):\n        return x @ self.weight\n\n\n"
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layers = nn.ModuleList()\n        self.layers.append(Layer())\n\n\n"
        f"class Run{'(nn.Module)' if is_module else ''}:\n    def __init__(self):\n        super().__init__()\n"
        "        self.model = Model()\n\n"
        f"    def features(self, x):\n        for {names} in {layers}:\n            x = layer.encode(x)\n        return x\n\n\n"
    )
    wrapped = "run" if is_module else "run.model"
    text += f"def main(x):\n    run = Run()\n    model = DDP({wrapped})\n    run.features(x)\n    return model\n"
    new = migrated(train=text)["train"]
    assert ("x = layer.encode(x)" in new) is is_module
    assert ('forward_method(layer, "encode")(x)' in new) is not is_module
    assert ('forward_method(run, "features")(x)' in new) is is_module


def test_the_methods_of_tensors_are_torchs() -> None:
    left_out = {"backward", "register_hook", "register_post_accumulate_grad_hook", "retain_grad"}
    methods = {name for name in dir(torch.Tensor) if name[0] != "_" and callable(getattr(torch.Tensor, name))}
    assert methods - set(dir(nn.Module)) - left_out == TENSOR_METHODS


@pytest.mark.parametrize(("method", "stays"), [("permute", True), ("new_full", True), ("encode", False)])
def test_methods_of_tensors_are_no_models_ones(method: str, stays: bool) -> None:
    """What comes out of a table may be the model that is in there too; its class has no such method."""
    net = "class Net(nn.Module):\n    def encode(self, x):\n        return x @ self.weight\n\n\n"
    run = f"def run(read, options, x):\n    model = read(options)\n    DDP(model)\n    return model.{method}(x)\n"
    assert (f"return model.{method}(x)" in migrated(train=HEAD + net + run)["train"]) is stays


def test_methods_of_unseen_models_go_by_those_of_their_name() -> None:
    program = (
        HEAD
        + """import importlib


class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)

    def begin(self):
        pass

    def scores(self, x):
        return self.net(x) @ self.net.weight


class Reader:
    def encode(self, x):
        pass


def main(options, name):
    task = DDP(importlib.import_module(name).Other(), **options)
    task.module.begin()
    task.module.encode(1)
    print(task.module.scores(torch.ones(2, 4)))
"""
    )
    text = migrated(train=program)["train"]
    assert "    task.begin()\n" in text
    assert 'forward_method(task, "encode")(1)' in text and 'forward_method(task, "scores")(' in text


@pytest.mark.parametrize(("given", "stays"), [("text: str", True), ("image", False)])
def test_methods_that_turn_texts_into_numbers(given: str, stays: bool) -> None:
    """A part of a class that is not seen asks a tokenizer, which may be one of images: then it is a model."""
    net = (
        "class Reader(nn.Module):\n    def __init__(self, tokenizer):\n        super().__init__()\n"
        f"        self.tokenizer, self.layer = tokenizer, nn.Linear(2, 2)\n\n    def numbers(self, {given}):\n"
        f"        return self.tokenizer.encode({given.partition(':')[0]}, truncate=True)\n\n\n"
        "class Net(nn.Module):\n    def __init__(self, kind, tokenizer):\n        super().__init__()\n"
        "        self.reader = kind(tokenizer)\n\n"
        "    def numbers(self, given):\n        return self.reader.numbers(given)\n\n\n"
    )
    run = "def run(kind, tokenizer, options, x):\n    model = DDP(Net(kind, tokenizer), **options)\n"
    new = migrated(train=HEAD + net + run + "    return model.module.numbers(x)\n")["train"]
    assert ("forward_method(" not in new) is stays


@pytest.mark.parametrize(("others", "stays"), [("'name', {'depth': 2},", True), ("'name',", False)])
def test_methods_of_what_may_be_anything(others: str, stays: bool) -> None:
    """A walk through a configuration, in which the model is one value of many."""
    text = HEAD + (
        "def prepare(thing):\n    thing.defrost()\n    return thing\n\n\n"
        f"def run(net, options):\n    model = DDP(net, **options)\n    return [prepare(one) for one in [{others} model]]\n"
    )
    assert ("    thing.defrost()\n" in migrated(train=text)["train"]) is stays


@pytest.mark.parametrize(("own", "stays"), [("nn.CrossEntropyLoss()", True), ("{}", True), ("nn.Linear(2, 2)", False)])
@pytest.mark.parametrize("makes", ["Net()", "build('net')"])
def test_methods_that_read_a_loss_or_a_table(own: str, stays: bool, makes: str) -> None:
    read = "self.own[x] = self.own.get(x, 0) + 1" if own == "{}" else "return self.own(x)"
    net = (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(2, 2)\n"
        f"        self.own = {own}\n\n    def note(self, x):\n        {read}\n\n\n"
        "def build(name):\n    return globals()[name.title()]()\n\n\n"
    )
    run = f"def run(options, x):\n    model = DDP({makes}, **options)\n    return model.module.note(x)\n"
    assert ("forward_method(" not in migrated(train=HEAD + net + run)["train"]) is stays
