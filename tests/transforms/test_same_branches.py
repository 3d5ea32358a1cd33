"""Conditions whose branches become the same: they go where nothing notices, and are named where they stay."""

from __future__ import annotations

import textwrap

import pytest
from migrating import analyse_texts

_HEAD = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def main(args, ask):
    model = DDP(torch.nn.Linear(2, 2), broadcast_buffers=False)
"""
_SAME = "either way is the same now"


def _after(body: str) -> tuple[str, list[str]]:
    analysis, texts = analyse_texts({"train.py": _HEAD + textwrap.indent(textwrap.dedent(body), "    ")})
    after = texts["train.py"].partition("    fully_shard(model)\n")[2]
    return textwrap.dedent(after), [finding.message for finding in analysis.findings if _SAME in finding.message]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if args.ddp:\n    return model.module\nelse:\n    return model\n", "return model\n"),
        ("if args.ddp:\n    return model.module\n\nreturn model\n", "return model\n"),
        (
            "if args.ddp:  # wrapped\n    # the inner one\n    inner = model.module\nelse:\n    inner = model\nuse(inner)\n",
            "# wrapped\n# the inner one\ninner = model\nuse(inner)\n",
        ),
        (
            "if args.a:\n    if args.ddp:\n        use(model.module)\n    else:\n        use(model)\nelse:\n    use(model)\n",
            "use(model)\n",
        ),
    ],
)
def test_a_condition_goes_with_its_branches(before: str, after: str) -> None:
    text, named = _after(before)
    assert text == after
    assert len(named) == 1
    assert named[0].endswith("so the condition goes")


@pytest.mark.parametrize(
    "body",
    [
        "if ask():\n    use(model.module)\nelse:\n    use(model)\n",
        "if args.ddp:\n    use(model.module)\nelse:\n    # on one device\n    use(model)\n",
    ],
)
def test_a_condition_stays_where_it_would_be_missed(body: str) -> None:
    text, named = _after(body)
    assert text == body.replace(".module", "")
    assert len(named) == 1
    assert named[0].endswith("whatever the condition in line 7 says")


@pytest.mark.parametrize(
    "body",
    [
        "if args.ddp:\n    use(model.module)\nelse:\n    use(args)\n",
        "if args.verbose:\n    print(1)\nelse:\n    print(1)\nuse(model.module)\n",
        "if args.a:\n    use(model.module)\nelif args.b:\n    use(model)\n",
    ],
)
def test_other_conditions_stay(body: str) -> None:
    text, named = _after(body)
    assert text == body.replace(".module", "")
    assert not named


def test_branches_with_imports_of_their_own_stay() -> None:
    branch = "        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n        use({model})\n"
    text = _HEAD + "    if args.ddp:\n" + branch.format(model="model.module") + "    else:\n" + branch.format(model="model")
    _, texts = analyse_texts({"train.py": text})
    assert "    if args.ddp:\n" in texts["train.py"]


def test_an_import_in_text_that_is_written_anew() -> None:
    text = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel


def main(batch):
    model = FullyShardedDataParallel(torch.nn.Linear(2, 2))
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        from torch.distributed.fsdp import FullyShardedDataParallel as Inner

        return model(batch), isinstance(model, Inner)
"""
    _, texts = analyse_texts({"train.py": text})
    assert "    fully_shard(model)\n" in texts["train.py"]


def test_a_comparison_of_versions_goes_with_its_branches() -> None:
    test = 'if compare_version(torch.__version__, "1.11.0"):'
    text, named = _after(f"{test}\n    use(model.module)\nelse:\n    use(model)\n")
    assert text == "use(model)\n"
    assert len(named) == 1
    with_more = f"{test.replace(')', ', warn=True)')}\n    use(model.module)\nelse:\n    use(model)\n"
    assert _after(with_more)[0] == with_more.replace(".module", "")


def test_a_choice_between_two_calls_becomes_one_call() -> None:
    text, _ = _after(
        "other = DDP(torch.nn.Linear(2, 2), broadcast_buffers=False)\n"
        "state = model.module.state_dict() if ask() else other.module.state_dict()\n"
    )
    options = "options=StateDictOptions(full_state_dict=True)"
    assert f"state = get_model_state_dict(\n    model if ask() else other, {options}\n)\n" in text


_INNER = """
if args.ddp:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    # {remark}
    with FSDP.summon_full_params(model, writeback=False, recurse=False):
        return model.generate(args.ids)
else:
    return model.generate(args.ids)
"""


@pytest.mark.parametrize(
    ("remark", "goes"), [("Note: FSDP has to gather the head first.", True), ("see the issue on long prompts", False)]
)
def test_remarks_and_imports_of_the_wrapper_go_with_the_condition(remark: str, goes: bool) -> None:
    wrapper = "torch.nn.parallel import DistributedDataParallel as DDP"
    head = _HEAD.replace(wrapper, "torch.distributed.fsdp import FullyShardedDataParallel")
    head = head.replace("DDP(torch.nn.Linear(2, 2), broadcast_buffers=False)", "FullyShardedDataParallel(Net())")
    body = textwrap.indent(_INNER.format(remark=remark), "    ")
    _, texts = analyse_texts({"train.py": head + body})
    after = texts["train.py"]
    assert ("if args.ddp" in after) is not goes
    assert (remark in after) is not goes
    assert "summon" not in after
