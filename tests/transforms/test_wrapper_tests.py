"""Functions that tell wrappers from models: where all that ask them take the wrapper off, they stay as they are."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = HEAD + """import torch.distributed as dist
from copy import deepcopy


def is_parallel(model):
    '''Whether a model is in a wrapper.'''
    return {test}


def bare(model):
    return model.module if is_parallel(model) else model


def average(model):
    return deepcopy(model.module if is_parallel(model) else model)


def steps(model):
    {use}


model = DDP(nn.Linear(2, 2)) if dist.is_initialized() else nn.DataParallel(nn.Linear(2, 2))
print(bare(model), average(model), steps(model))
"""
TESTS = ["type(model) in (nn.DataParallel, DDP)", "isinstance(model, DDP)", "isinstance(model, (nn.DataParallel, DDP))"]


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("use", ["state = model.module.state_dict() if is_parallel(model) else model.state_dict()", "pass"])
def test_what_is_only_asked_to_unwrap_stays(test: str, use: str) -> None:
    text = migrated(train=PROGRAM.format(test=test, use=use))["train"]
    assert f"    return {test}\n" in text
    assert "FSDPModule" not in text and "unwrap(" not in text


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("use", ["return 2 if is_parallel(model) else 1", "return list(map(is_parallel, [model]))"])
def test_what_is_asked_otherwise_knows_sharded_models(test: str, use: str) -> None:
    text = migrated(train=PROGRAM.format(test=test, use=use))["train"]
    assert f"    return {test}\n" not in text
    assert "FSDPModule" in text
    assert "model.module if is_parallel(model)" not in text


@pytest.mark.parametrize(("module", "stays"), [("other", True), ("elsewhere", False)])
def test_a_function_of_this_name_in_another_module_is_another_one(module: str, stays: bool) -> None:
    other = "import torch\n\n\ndef is_parallel(model):\n    return isinstance(model, torch.nn.DataParallel)\n"
    use = f"from {module} import is_parallel\n\n\ndef show(model):\n    return 2 if is_parallel(model) else 1\n"
    program = PROGRAM.format(test=TESTS[1], use="pass")
    assert (f"    return {TESTS[1]}\n" in migrated(train=program, other=other, use=use)["train"]) == stays


@pytest.mark.parametrize(("path", "stays"), [("examples/train", True), ("kit/tests/test_all", True), ("kit/train", False)])
def test_a_package_that_wraps_nothing_asks_for_what_its_users_may_still_wrap(path: str, stays: bool) -> None:
    core = "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\ndef scale(model):\n"
    core += "    return 2 if isinstance(model, DDP) else 1\n"
    train = HEAD + "from kit.core import scale\n\n\nprint(scale(DDP(nn.Linear(2, 2))))\n"
    text = migrated(**{"kit/__init__": "", "kit/core": core, path: train})["kit/core"]
    assert ("isinstance(model, (DDP, FSDPModule))" in text) == stays
    assert "FSDPModule)" in text
