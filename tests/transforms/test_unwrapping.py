"""``.module``, type tests and their helpers, with and without DataParallel beside."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

HEAD = "import torch.nn as nn\nfrom torch.nn.parallel import DataParallel, DistributedDataParallel as DDP\n\n"


def migrate(body: str) -> str:
    return analyse_texts({"train.py": HEAD + body})[1]["train.py"]


WRAP = "model = DDP(nn.Linear(2, 2))\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("raw = model.module\n", "raw = model\n"),
        ("raw = model.module if ddp else model\n", "raw = model\n"),
        ("raw = model if not ddp else model.module\n", "raw = model\n"),
        ("print(model.module.weight)\n", "print(model.weight)\n"),
        ('raw = getattr(model, "module", model)\n', 'raw = getattr(model, "module", model)\n'),
        ('raw = model.module if hasattr(model, "module") else model\n', "raw = model\n"),
    ],
)
def test_the_model_is_itself(before: str, after: str) -> None:
    assert migrate(WRAP + before).endswith("fully_shard(model)\n" + after)


def test_an_assignment_to_itself_goes_with_its_branch() -> None:
    text = migrate(WRAP + "if ddp:\n    model = model.module\nprint(model)\n")
    assert text.endswith("fully_shard(model)\nprint(model)\n")


def test_a_helper_for_data_parallel_stays() -> None:
    helper = (
        "def is_parallel(model):\n    return type(model) in (nn.parallel.DataParallel, {ddp})\n\n\n"
        "def unwrap(model):\n    return model.module if is_parallel(model) else model\n\n\n"
    )
    text = migrate(helper.format(ddp="nn.parallel.DistributedDataParallel") + WRAP + "print(unwrap(model))\n")
    assert "return type(model) is nn.parallel.DataParallel\n" in text
    assert "return model.module if is_parallel(model) else model\n" in text


def test_a_model_that_may_be_data_parallel_is_asked() -> None:
    text = migrate(
        "model = nn.Linear(2, 2)\nif ddp:\n    model = DDP(model)\nelif many:\n    model = DataParallel(model)\n"
        "print(model.module)\n"
    )
    assert text.endswith('print(getattr(model, "module", model))\n')


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("isinstance(model, DDP)", "isinstance(model, FSDPModule)"),
        ("isinstance(model, (DDP, nn.Linear))", "isinstance(model, (FSDPModule, nn.Linear))"),
        ("type(model) is DDP", "isinstance(model, FSDPModule)"),
        ("type(model) != DDP", "not isinstance(model, FSDPModule)"),
    ],
)
def test_type_tests_ask_for_fsdp_modules(before: str, after: str) -> None:
    assert f"if {after}:\n" in migrate(f"{WRAP}if {before}:\n    run()\n")


def test_a_loop_that_unwraps_goes() -> None:
    text = migrate(WRAP + "raw = model\nwhile isinstance(raw, DDP):\n    raw = raw.module\nprint(raw)\n")
    assert text.endswith("fully_shard(model)\nraw = model\nprint(raw)\n")


@pytest.mark.parametrize("test", ['hasattr(raw, "module")', "isinstance(raw, (DataParallel, DDP))"])
def test_a_loop_for_other_wrappers_ends(test: str) -> None:
    text = migrate(f"{WRAP}raw = model\nwhile {test}:\n    raw = raw.module\nprint(raw)\n")
    assert "    raw = raw.module\n" in text
    assert "FSDPModule" not in text


def test_a_loop_that_does_more_holds_the_group() -> None:
    body = f"{WRAP}raw = model\nwhile isinstance(raw, DDP):\n    raw = raw.module\n    count += 1\n"
    assert migrate(body) == HEAD + body


def test_a_helper_that_returns_early_for_other_models() -> None:
    text = migrate(
        "def unwrap(m):\n    if not isinstance(m, (DataParallel, DDP)):\n        return m\n    return m.module\n\n\n"
        f"{WRAP}print(unwrap(model))\n"
    )
    assert '    return getattr(m, "module", m)\n' in text


def test_a_loop_that_ends_in_its_body_holds_the_group() -> None:
    loop = "while True:\n    if isinstance(raw, DDP):\n        raw = raw.module\n    else:\n        break\n"
    body = f"{WRAP}raw = model\n{loop}"
    assert migrate(body) == HEAD + body


def test_another_fsdp_class_is_none_of_our_business() -> None:
    body = (
        "class FullyShardedDataParallel(nn.Module):\n    def __init__(self, module):\n        super().__init__()\n"
        "        self._fsdp_wrapped_module = module\n\n    def names(self):\n"
        '        return [n.replace("_fsdp_wrapped_module.", "") for n in self._fsdp_wrapped_module.state]\n'
    )
    assert migrate(body) == HEAD + body
