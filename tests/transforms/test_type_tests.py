"""``.module`` behind a type test, and state behind the functions that answer with one."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

HEAD = """\
import torch.nn as nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP
from torch.nn.parallel import DataParallel, DistributedDataParallel as DDP


def is_wrapped(model):
    return isinstance(model, ({classes}))


def is_sharded(model):
    \"\"\"Whether it is.\"\"\"
    return isinstance(model, FSDP) or isinstance(model, FSDPModule)


"""
TRAIN = "\n\nmodel = FSDP(nn.Linear(2, 2)) if large else DDP(nn.Linear(2, 2))\n"


def migrate(body: str, classes: str = "DataParallel, DDP, FSDP, FSDPModule") -> str:
    text = HEAD.format(classes=classes) + body + TRAIN
    return analyse_texts({"train.py": text})[1]["train.py"]


@pytest.mark.parametrize(
    "unwrap",
    [
        "def unwrap(it):\n    if not is_wrapped(it):\n        return it\n    return {module}\n",
        "def unwrap(it):\n    wrapped = is_wrapped(it)\n    if wrapped:\n        it = {module}\n    return it\n",
        "def weight(it):\n    return is_wrapped(it) and {module}\n",
    ],
)
def test_module_of_something_unknown_that_is_asked_for_wrappers(unwrap: str) -> None:
    assert unwrap.format(module='getattr(it, "module", it)') in migrate(unwrap.format(module="it.module"))
    alone = migrate(unwrap.format(module="it.module"), "DDP, FSDP")
    assert "it.module" not in alone and "getattr" not in alone


def test_choice_of_something_unknown_that_is_asked_for_wrappers() -> None:
    unwrap = "def unwrap(it):\n    return it.module if {test} else it\n"
    assert unwrap.format(test="isinstance(it, DataParallel)") in migrate(unwrap.format(test="is_wrapped(it)"))
    assert "    return it\n" in migrate(unwrap.format(test="is_wrapped(it)"), "DDP, FSDP")


@pytest.mark.parametrize("body", ["return it.module if is_large(it) else it", "return it.module"])
def test_nothing_asks_for_wrappers(body: str) -> None:
    body = f"def is_large(it):\n    return isinstance(it, nn.Linear)\n\n\ndef unwrap(it):\n    {body}\n"
    assert body in migrate(body)


def test_file_without_anything_else() -> None:
    helper = HEAD.format(classes="DDP, FSDP") + TRAIN
    unwrap = "from helper import is_wrapped\n\n\ndef unwrap(it):\n    return it.module if is_wrapped(it) else it\n"
    analysis, results = analyse_texts({"helper.py": helper, "unwrap.py": unwrap})
    assert results["unwrap.py"].endswith("def unwrap(it):\n    return it\n")
    (finding,) = [f for f in analysis.findings if f.file == "unwrap.py"]
    assert (finding.rule, finding.level) == ("FS601", Level.REVIEW)


def test_what_is_found_by_a_search_may_be_inside() -> None:
    search = "def holds_one(it):\n    return any(isinstance(part, FSDP) for part in it.modules())\n\n\n"
    text = migrate(search + "def unwrap(it):\n    return it.module if holds_one(it) else it\n", "DDP, FSDP")
    assert 'return getattr(it, "module", it) if holds_one(it) else it\n' in text


LOADS = """\
def load(model, state, strict):
    if is_sharded(model):
        set_model_state_dict(model, state)
        return
    target = model.module if is_wrapped(model) else model
    target.load_state_dict(state, strict=strict)


def state_of(model):
    return None if is_sharded(model) else {state}
"""


@pytest.mark.parametrize("state", ["model.state_dict()", "model.module.state_dict()"])
def test_lines_that_sharded_models_leave_before_stay(state: str) -> None:
    body = LOADS.format(state=state)
    assert body in migrate(body + "\n\ndef main():\n    load(model, {}, True)\n    state_of(model)\n")


def test_name_that_is_made_of_more_is_not_plain() -> None:
    body = LOADS.format(state="model.state_dict()").replace("else model\n", "else other\n")
    assert "set_model_state_dict(\n        target" in migrate(
        body.replace("(model, state, strict)", "(model, state, strict, other)")
        + "\n\ndef main():\n    load(model, {}, True, model)\n"
    )


BESIDE = """\
import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel as DDP


def run(config):
    model = torch.nn.Linear(2, 2)
    if config.one_process:
        model = DataParallel(model)
    else:
        model = DDP(model, broadcast_buffers=False)
    return inner(model)


def inner(model):
    {unwrap}
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "model.module if type(model) in (DataParallel, DDP) else model",
            "model.module if type(model) is DataParallel else model",
        ),
        (
            "model.module if type(model) in [DDP, DataParallel] else model",
            "model.module if type(model) is DataParallel else model",
        ),
        (
            "model if type(model) not in {DataParallel, DDP} else model.module",
            'model if type(model) is not DataParallel else getattr(model, "module", model)',
        ),
        (
            "model.module if model.__class__ in (DataParallel, DDP) else model",
            "model.module if model.__class__ is DataParallel else model",
        ),
        (
            "model.module if type(model) == DataParallel or type(model) == DDP else model",
            'getattr(model, "module", model) if type(model) == DataParallel or isinstance(model, FSDPModule) else model',
        ),
        ("model.module if type(model) is DDP else model", "model"),
    ],
)
def test_classes_that_are_compared(before: str, after: str) -> None:
    _, results = analyse_texts({"train.py": BESIDE.format(unwrap=f"return {before}")})
    assert results["train.py"].endswith(f"    return {after}\n")


def test_what_only_wrapped_models_come_to_needs_no_look_for_a_module() -> None:
    unwrap = "if type(model) == DDP:\n        return model.module\n    return model"
    _, results = analyse_texts({"train.py": BESIDE.format(unwrap=unwrap)})
    assert results["train.py"].endswith("def inner(model):\n    return model\n")
