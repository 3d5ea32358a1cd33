"""Contexts of state dicts, and the options that take their place."""

from __future__ import annotations

from state_programs import FSDP, findings, migrated
from to_fsdp2.transforms.findings import Level


def test_options_of_a_config_that_decides_at_run_time() -> None:
    after = migrated(
        FSDP,
        """
        def main(net, alone):
            model = FSDP(net)
            with FSDP.state_dict_type(
                model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=alone)
            ):
                return model.state_dict()
        """,
    )
    assert "StateDictOptions(full_state_dict=True, cpu_offload=alone)" in after


def test_full_state_on_the_cpu_of_every_rank_is_said_to_stay_on_the_device() -> None:
    (finding,) = findings(
        FSDP,
        """
        def main(net):
            model = FSDP(net)
            with FSDP.state_dict_type(
                model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=False)
            ):
                return model.state_dict()
        """,
        "FS402",
    )
    assert finding.level is Level.REVIEW
    assert "on its device" in finding.message


def test_context_around_the_caller_counts() -> None:
    after = migrated(
        FSDP,
        """
        def read(model):
            return model.state_dict()

        def main(net):
            model = FSDP(net)
            with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
                return read(model)
        """,
    )
    assert "return get_model_state_dict(model)\n" in after


def test_contexts_that_disagree_hold_the_group() -> None:
    after = migrated(
        FSDP,
        """
        def read(model):
            return model.state_dict()

        def main(net):
            model = FSDP(net)
            with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
                first = read(model)
            with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
                return first, read(model)
        """,
    )
    assert "model = FSDP(net)" in after


def test_context_beside_another_one() -> None:
    after = migrated(
        FSDP,
        """
        def main(net):
            model = FSDP(net)
            with torch.no_grad(), FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
                return model.state_dict()
        """,
    )
    assert "    with torch.no_grad():\n        return get_model_state_dict(" in after


def test_context_chosen_by_a_flag() -> None:
    after = migrated(
        FSDP,
        """
        from contextlib import nullcontext

        def main(net, full):
            model = FSDP(net)
            context = FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT) if full else nullcontext()
            with context:
                return model.state_dict()
        """,
    )
    assert "context = nullcontext() if full else nullcontext()" in after
    assert "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))" in after


def test_comments_of_a_context_stay() -> None:
    after = migrated(
        FSDP,
        """
        def main(net):
            model = FSDP(net)
            with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):  # one file per rank
                # taken here
                state = model.state_dict()  # sharded

            return state
        """,
    )
    taken = "    # one file per rank\n    # taken here\n    state = get_model_state_dict(model)  # sharded\n"
    assert f"{taken}\n    return state\n" in after
