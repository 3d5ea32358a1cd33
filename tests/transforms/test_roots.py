"""The roots among the units of a model: a function of the migrated file tells which they are."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
TRAIN = "\n\ndef train(net):\n    model = FSDP(net)\n    return reset(model)\n"


def body(text: str) -> str:
    return f"{HEAD}def reset(model):\n{text}{TRAIN}"


@pytest.mark.parametrize("loop", ["for module in model.modules():", "for _, module in model.named_modules():"])
def test_a_unit_of_a_loop_over_modules_is_asked_for(loop: str) -> None:
    test = "        if isinstance(module, FSDP):\n            if module.check_is_root():\n                pass\n"
    text = body(f"    {loop}\n{test}")
    _, results = analyse_texts({"train.py": text})
    assert "            if is_root(module, model):\n" in results["train.py"]
    assert results["train.py"].count("def is_root(module, model):") == 1


def test_a_name_that_is_taken_is_left_alone() -> None:
    text = body("    is_root = [module for module in model.modules() if isinstance(module, FSDP) and module.check_is_root()]\n")
    _, results = analyse_texts({"train.py": text})
    assert "and is_root_unit(module, model)]" in results["train.py"]


@pytest.mark.parametrize("text", ["    return model.check_is_root()\n", "    return [m for m in model if m.check_is_root()]\n"])
def test_where_the_whole_model_is_not_seen_it_is_said_that_asking_raises(text: str) -> None:
    analysis, results = analyse_texts({"train.py": body(text)})
    assert [f.level for f in analysis.findings if f.rule == "FS615"] == [Level.MANUAL]
    assert "check_is_root" in results["train.py"] and "fully_shard" in results["train.py"]


@pytest.mark.parametrize(("argument", "expected"), [(", root_only=True", " and is_root(module, model)"), (", False", "")])
def test_units_are_listed_with_or_without_those_inside_others(argument: str, expected: str) -> None:
    _, results = analyse_texts({"train.py": body(f"    return FSDP.fsdp_modules(model{argument})\n")})
    assert f"[module for module in model.modules() if isinstance(module, FSDPModule){expected}]" in results["train.py"]


def test_roots_that_are_asked_for_at_run_time_wait() -> None:
    analysis, results = analyse_texts({"train.py": body("    return FSDP.fsdp_modules(model, root_only=bool(model))\n")})
    assert "fully_shard" not in results["train.py"]
    assert any(f.rule == "FS606" and f.level is Level.MANUAL for f in analysis.findings)


def test_modules_of_a_model_that_may_also_be_under_ddp_are_asked_for() -> None:
    text = (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        + body("    return [m for m in model.modules() if isinstance(m, FSDP) and m.check_is_root()]\n")
        + "\n\ndef is_ddp(model):\n    return isinstance(model, DDP)\n\n\n"
        "def other(net):\n    model = DDP(net)\n    print(is_ddp(model))\n    return reset(model)\n"
    )
    _, results = analyse_texts({"train.py": text})
    assert "model = DDP(net)" in results["train.py"] and "and is_root(m, model)]" in results["train.py"]
