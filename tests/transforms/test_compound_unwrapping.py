"""Choices between a wrapped model and what is in it whose test asks for both: what has no wrapper is read in the other branch."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """class Learner:
    def __init__(self, net, options):
        self.model = DDP(net, **options)

    def state(self):
        if {test}:
            found = self.model.module.state_dict()
        else:
            found = self.model.state_dict()
        return found


def main(net, options, path):
    torch.save(Learner(net, options).state(), path)
"""
)


@pytest.mark.parametrize(
    ("test", "stays"),
    [
        ("hasattr(self.model, 'module')", True),
        ("hasattr(self.model, 'module') and isinstance(self.model.module, nn.Module)", True),
        ("hasattr(self.model, 'module') and self.model.module is not None", True),
        ("isinstance(self.model, DDP) or hasattr(self.model, 'module')", True),
        ("hasattr(self.model, 'module') and self.finished", False),
        ("hasattr(self.model, 'module') and isinstance(self.model.module, nn.Linear)", False),
    ],
)
def test_the_branch_without_a_wrapper_has_no_prefix(test: str, stays: bool) -> None:
    text = migrated(train=PROGRAM.format(test=test))["train"]
    assert ("model_state(self.model)" not in text and " found = self.model.state_dict()\n" in text) == stays


SAVE = (
    HEAD
    + """class Trainer:
    def __init__(self, net, critic, options):
        self.net, self.critic = net, critic
        if options:
            self.net, self.critic = DDP(net, **options), DDP(critic, **options)

    def states(self):
        if isinstance(self.net, nn.DataParallel) or isinstance(self.net, DDP):
            net = self.net.module
            critic = {inside}
        else:
            net = self.net
            critic = self.critic
        return net.state_dict(), critic.state_dict()
"""
)


@pytest.mark.parametrize(("inside", "stays"), [("self.critic.module", True), ("self.critic.module.head", False)])
def test_several_models_are_taken_out_in_one_branch(inside: str, stays: bool) -> None:
    text = migrated(train=SAVE.format(inside=inside))["train"]
    assert ("        if isinstance(self.net, nn.DataParallel) or isinstance(self.net, DDP):\n" in text) == stays
    assert ("            net = self.net.module\n" in text) == stays


LOAD = (
    HEAD
    + """def put(module, values):
    own = module.state_dict()
    for name, value in values.items():
        if name in own:
            own[name].copy_(value)


def load(model, path):
    values = torch.load(path)
    if {test}:
        put(model.module, values)
    else:
        put(model, values)


def main(net, options, path):
    model = DDP(net, **options)
    load(model, path)
"""
)


@pytest.mark.parametrize(
    ("test", "stays"), [('hasattr(model, "module")', True), ("path", True), ('hasattr(model, "module") and path', False)]
)
def test_a_function_gets_what_is_inside_where_a_test_tells_wrappers_apart(test: str, stays: bool) -> None:
    text = migrated(train=LOAD.format(test=test))["train"]
    assert ("    own = module.state_dict()\n" in text) == stays


OTHER = """import apex
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, net, amp):
        self.net = {wrapper}(net) if amp else DDP(net)

    def head(self, distributed):
        net = self.net.module if distributed else self.net
        return net.head
"""


@pytest.mark.parametrize(
    ("wrapper", "asks"),
    [("apex.parallel.DistributedDataParallel", True), ("torch.nn.DataParallel", True), ("DDP", False)],
)
def test_another_wrapper_has_a_module_still(wrapper: str, asks: bool) -> None:
    text = migrated(train=OTHER.format(wrapper=wrapper))["train"]
    assert ("net = unwrap(self.net) if distributed else self.net\n" in text) == asks


USES = (
    HEAD
    + """class Net(nn.Linear):
    def losses(self, x):
        return (x @ self.weight).sum()


def evaluate(model, x):
    {use}


def main(options, x):
    model = DDP(Net(2, 2), **options)
    evaluate(model, x)
"""
)


@pytest.mark.parametrize(
    ("use", "is_right"),
    [
        ("raw = model\n    if hasattr(model, 'module'):\n        raw = model.module\n    return raw.losses(x)", True),
        ("raw = None\n    if hasattr(model, 'module'):\n        raw = model.module\n    return raw.losses(x)", False),
        ("return model(x) if not hasattr(model, 'module') else model.module(x)", True),
        ("return model(x) if not hasattr(model, 'module') else model.module.losses(x)", False),
        ("if not hasattr(model, 'module'):\n        return model(x)\n    else:\n        return model.module(x)", True),
    ],
)
def test_a_choice_that_only_takes_the_wrapper_off_stays(use: str, is_right: bool) -> None:
    text = migrated(train=USES.format(use=use))["train"]
    assert ("isinstance(model, FSDPModule) or hasattr(model, 'module')" not in text) == is_right


LOOPS = (
    HEAD
    + """def inner(model):
    {body}


def main(net, options):
    model = DDP(net, **options)
    return inner(model)
"""
)


LOOP = "while True:\n        {first}if hasattr(model, 'module'):\n            model = model.module\n        "
ONCE = "if hasattr(model, 'module'):\n        model = model.module\n    "
OF_FSDP1 = "elif hasattr(model, '_fsdp_wrapped_module'):\n{indent}    model = model._fsdp_wrapped_module\n{indent}"


@pytest.mark.parametrize(
    ("body", "stays"),
    [
        (LOOP.format(first="") + "else:\n            return model", True),
        (LOOP.format(first="") + OF_FSDP1.format(indent=" " * 8) + "else:\n            break\n    return model", True),
        (ONCE + OF_FSDP1.format(indent=" " * 4) + "return model", True),
        (ONCE + "else:\n        print('plain')\n    return model", False),
        (LOOP.format(first="print(model)\n        ") + "else:\n            return model", False),
    ],
)
def test_a_loop_over_wrappers_ends_at_what_has_none(body: str, stays: bool) -> None:
    text = migrated(train=LOOPS.format(body=body))["train"]
    assert (f"def inner(model):\n    {body}\n" in text) == stays


@pytest.mark.parametrize(("use", "stays"), [("pass", True), ("print(wrapped)", False)])
def test_a_test_in_a_variable_that_is_asked_once_only_unwraps(use: str, stays: bool) -> None:
    program = HEAD + (
        "def bare(model):\n    wrapped = isinstance(model, DDP)\n"
        f"    {use}\n    return model.module if wrapped else model\n\n\n"
        "def main(net, options, path):\n    model = DDP(net, **options) if options else net\n"
        "    torch.save(bare(model).state_dict(), path)\n"
    )
    assert ("    return model.module if wrapped else model\n" in migrated(train=program)["train"]) is stays
