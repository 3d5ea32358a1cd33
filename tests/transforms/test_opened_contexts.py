"""Contexts for state dicts that functions of the repository open for their callers."""

from __future__ import annotations

from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

HEAD = """\
from contextlib import ExitStack, contextmanager

from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardedStateDictConfig, StateDictType


"""
MAIN = """\


def main(net, whole):
    model = FSDP(net, use_orig_params=True)
"""


def migrate(helper: str, body: str) -> tuple[str, dict[str, Level]]:
    """The migrated ``main`` behind the wrap, and the worst level of each rule."""
    analysis, results = analyse_texts({"train.py": HEAD + helper + MAIN + body})
    levels: dict[str, Level] = {}
    for finding in analysis.findings:
        levels[finding.rule] = max(levels.get(finding.rule, Level.OK), finding.level, key=lambda level: level.rank)
    return results["train.py"].partition("def main(net, whole):\n")[2], levels


YIELDING = """\
@contextmanager
def sharded(model):
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        yield
"""


def test_a_function_that_yields_under_the_context_opens_it() -> None:
    text, _ = migrate(YIELDING, "    with sharded(model):\n        return model.state_dict()\n")
    assert "return get_model_state_dict(model)\n" in text


def test_a_function_that_is_done_with_the_context_does_not_open_it() -> None:
    helper = YIELDING.replace("        yield\n", "        print(model.state_dict().keys())\n    yield\n")
    text, _ = migrate(helper, "    with sharded(model):\n        return model.state_dict()\n")
    assert "return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))\n" in text


def test_each_caller_says_which_kind_it_means() -> None:
    text, levels = migrate(
        "def kind_of(model, kind, config=None):\n    return FSDP.state_dict_type(model, kind, config)\n",
        "    with kind_of(model, StateDictType.SHARDED_STATE_DICT):\n        shards = model.state_dict()\n"
        "    with kind_of(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)):\n"
        "        full = model.state_dict()\n    return shards, full\n",
    )
    assert "shards = get_model_state_dict(model)\n" in text
    assert "options=StateDictOptions(full_state_dict=True, cpu_offload=True)\n" in text
    assert levels["FS401"] is Level.SAFE


def test_a_caller_may_leave_the_kind_to_a_variable() -> None:
    text, levels = migrate(
        "def kind_of(model, kind):\n    return FSDP.state_dict_type(model, kind)\n",
        "    kind = StateDictType.FULL_STATE_DICT if whole else StateDictType.SHARDED_STATE_DICT\n"
        "    with kind_of(model, kind):\n        return model.state_dict()\n",
    )
    assert 'StateDictOptions(full_state_dict=kind == "FULL_STATE_DICT")' in text
    assert levels["FS402"] is Level.SAFE


def test_a_function_that_chooses_among_contexts_is_for_a_person() -> None:
    _, levels = migrate(
        "def kind_of(model, whole):\n    if whole:\n"
        "        return FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT)\n"
        "    return FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\n",
        "    with kind_of(model, whole):\n        return model.state_dict()\n",
    )
    assert levels["FS402"] is Level.MANUAL
    assert levels["FS101"] is Level.MANUAL


def test_a_context_on_a_stack_is_for_a_person() -> None:
    _, levels = migrate(
        "",
        "    with ExitStack() as stack:\n"
        "        stack.enter_context(FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT))\n"
        "        return model.state_dict()\n",
    )
    assert levels["FS401"] is Level.MANUAL
    assert levels["FS101"] is Level.MANUAL


def test_options_are_written_out_where_the_config_is_out_of_reach() -> None:
    code = (
        "def state_of(model):\n    return model.state_dict()\n"
        + MAIN
        + "    config = FullStateDictConfig(rank0_only=True)\n"
        "    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):\n        return state_of(model)\n"
    )
    _, results = analyse_texts({"train.py": HEAD + code})
    state_of = results["train.py"].partition("def state_of(model):\n")[2].partition("\n\n\n")[0]
    assert state_of == (
        "    return get_model_state_dict(\n"
        "        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)\n    )"
    )
