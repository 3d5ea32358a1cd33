"""State dicts of models: whole programs in, whole programs out."""

from __future__ import annotations

import textwrap

import pytest
from migrating import analyse_texts
from state_programs import DDP, FSDP, findings, migrated
from to_fsdp2.transforms.findings import Level


def test_reads_behind_one_guard_move_together() -> None:
    after = migrated(
        DDP,
        """
        def main(net, rank, step):
            model = DDP(net)
            optimizer = torch.optim.SGD(model.parameters())
            if rank == 0 and step > 10:
                torch.save({"o": optimizer.state_dict(), "m": model.module.state_dict()}, "x.pt")
        """,
    )
    assert after.count("if step > 10:") == 1
    moved, _, guarded = after.partition("    if rank == 0 and step > 10:")
    assert moved.index("get_model_state_dict(") < moved.index("get_optimizer_state_dict(")
    assert '{"o": optimizer_state_dict, "m": model_state_dict}' in guarded


def test_state_of_something_made_behind_the_guard_stays() -> None:
    (finding,) = findings(
        DDP,
        """
        def main(net, rank):
            model = DDP(net)
            if rank == 0:
                whole = model.module
                torch.save(whole.state_dict(), "x.pt")
        """,
        "FS402",
    )
    assert finding.level is Level.MANUAL
    assert "whole is only bound behind the rank guard" in finding.message


def test_guard_of_each_node_gives_every_rank_the_state() -> None:
    after = migrated(
        DDP,
        """
        def main(net, local_rank):
            model = DDP(net)
            if local_rank == 0:
                torch.save(model.module.state_dict(), "/local/x.pt")
        """,
    )
    assert "StateDictOptions(full_state_dict=True)" in after
    assert "cpu_offload" not in after


def test_condition_that_only_rank_zero_knows_is_not_repeated() -> None:
    after = migrated(
        DDP,
        """
        def main(net, rank, best):
            model = DDP(net)
            if rank == 0:
                score = float(open("score").read())
                if score > best:
                    torch.save(model.module.state_dict(), "x.pt")
        """,
    )
    gathered = after.index("get_model_state_dict(")
    assert "score" not in after[:gathered]


def test_condition_that_ranks_may_find_different_is_not_repeated() -> None:
    program = """
        def main(net, rank, loss, best):
            model = DDP(net)
            if loss < best and rank == 0:
                torch.save(model.module.state_dict(), "x.pt")
        """
    after = migrated(DDP, program)
    assert after.count("loss < best") == 1
    (finding,) = findings(DDP, program, "FS402")
    assert finding.level is Level.REVIEW
    assert "`loss < best`" in finding.message


def test_state_moves_to_the_callers_of_a_rank_zero_helper() -> None:
    analysis, results = analyse_texts(
        {
            "train.py": DDP
            + textwrap.dedent(
                """
                from saving import save


                def main(net, rank):
                    model = DDP(net)
                    optimizer = torch.optim.SGD(model.parameters())
                    if rank == 0:
                        save(model.module, optimizer, "x.pt")
                """
            ),
            "saving.py": textwrap.dedent(
                """
                import torch


                def save(network, optimizer, path, *, verbose=False):
                    torch.save({"n": network.state_dict(), "o": optimizer.state_dict()}, path)
                """
            ),
        }
    )
    signature = "def save(network, optimizer, path, *, verbose=False, network_state_dict, optimizer_state_dict):"
    assert signature in results["saving.py"]
    assert '{"n": network_state_dict, "o": optimizer_state_dict}' in results["saving.py"]
    moved, _, guarded = results["train.py"].partition("    if rank == 0:")
    assert "model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)" in moved
    assert "optimizer_state_dict=optimizer_state_dict" in guarded
    assert {finding.level for finding in analysis.findings if finding.file == "saving.py"} == {Level.REVIEW}


def test_helper_that_is_called_with_unpacked_arguments_stays() -> None:
    (finding,) = findings(
        DDP,
        """
        def save(model, path):
            torch.save(model.state_dict(), path)

        def main(net, rank, arguments):
            model = DDP(net)
            if rank == 0:
                save(model, *arguments)
        """,
        "FS402",
    )
    assert finding.level is Level.MANUAL


def test_keys_of_ddp_keep_their_prefix_both_ways() -> None:
    after = migrated(
        DDP,
        """
        def main(net, path):
            model = DDP(net)
            model.load_state_dict(torch.load(path))
            state = model.state_dict()
            return state
        """,
    )
    assert '{name.removeprefix("module."): tensor for name, tensor in torch.load(path).items()}' in after
    assert 'f"module.{name}": tensor' in after


def test_names_alone_need_no_gathering() -> None:
    after = migrated(
        DDP,
        """
        def main(net):
            model = DDP(net)
            return sorted(model.module.state_dict().keys())
        """,
    )
    assert "get_model_state_dict" not in after


def test_parts_of_the_model_are_found() -> None:
    after = migrated(
        DDP,
        """
        def main(net, rank):
            model = DDP(net)
            if rank == 0:
                torch.save(model.module.encoder.state_dict(), "encoder.pt")
        """,
    )
    assert "encoder_state_dict = get_model_state_dict(\n        model.encoder," in after


def test_load_before_the_wrap_stays() -> None:
    (finding,) = findings(
        DDP,
        """
        def main(net, path):
            net.load_state_dict(torch.load(path))
            model = DDP(net)
            return model
        """,
        "FS403",
    )
    assert finding.level is Level.OK


def test_load_on_some_ranks_holds_the_group() -> None:
    analysis, results = analyse_texts(
        {
            "train.py": FSDP
            + textwrap.dedent(
                """
                def main(net, rank, path):
                    model = FSDP(net)
                    if rank == 0:
                        model.load_state_dict(torch.load(path))
                """
            )
        }
    )
    assert "model = FSDP(net)" in results["train.py"]
    assert [f.level for f in analysis.findings if f.rule == "FS403"] == [Level.MANUAL]


def test_two_models_of_one_name_get_a_state_each() -> None:
    after = migrated(
        DDP,
        """
        class Holder:
            def __init__(self, net):
                self.model = DDP(torch.nn.Sequential(net))

        def save(model, path):
            torch.save(model.state_dict(), path)

        def main(rank):
            a = Holder(torch.nn.Linear(2, 2))
            b = Holder(torch.nn.Linear(3, 3))
            if rank == 0:
                save(a.model, "a.pt")
                save(b.model, "b.pt")
        """,
    )
    moved, _, guarded = after.partition("    if rank == 0:")
    assert moved.count("get_model_state_dict(") == 2
    assert 'save(a.model, "a.pt", model_state_dict=model_state_dict)' in guarded
    assert 'save(b.model, "b.pt", model_state_dict=model_state_dict_2)' in guarded


LOAD = """
    def resume(path, strict, group):
        model = DDP(torch.nn.Linear(2, 2){group})
        state = torch.load(path)
        model.module.load_state_dict(state{strict})
    """


@pytest.mark.parametrize("strict", ["", ", strict=True", ", strict=strict"])
def test_missing_keys_still_raise_where_rank_0_hands_the_state_out(strict: str) -> None:
    _, results = analyse_texts({"train.py": DDP + textwrap.dedent(LOAD.format(strict=strict, group=""))})
    assert "broadcast_from_rank0=True" in results["train.py"]


@pytest.mark.parametrize(("strict", "group"), [(", strict=False", ""), ("", ", process_group=group")])
def test_nothing_is_handed_out_where_keys_do_not_matter_or_ranks_differ(strict: str, group: str) -> None:
    analysis, results = analyse_texts({"train.py": DDP + textwrap.dedent(LOAD.format(strict=strict, group=group))})
    finding = next(f for f in analysis.findings if f.rule == "FS403")
    assert "broadcast_from_rank0" not in results["train.py"]
    assert finding.level is Level.REVIEW
    assert ("that it lacks no longer raises" in finding.message) is bool(group)


@pytest.mark.parametrize(("result", "is_named"), [("", False), ("missing, unexpected = ", True), ("return ", True)])
def test_missing_keys_that_are_read_are_said_to_be_empty(result: str, is_named: bool) -> None:
    load = LOAD.replace("model.module.load", result + "model.module.load").format(strict=", strict=False", group="")
    (finding,) = findings(DDP, load, "FS403")
    assert ("missing_keys of what it gives back is always empty" in finding.message) is is_named


_CHILDREN = """
def main(net, rank):
    model = DDP(net)
    {guard}
        for name, child in model.module.named_children():
            torch.save(child.state_dict(), name)
"""


def test_state_of_children_is_gathered() -> None:
    assert "get_model_state_dict(\n" in migrated(DDP, _CHILDREN.replace("{guard}", "if True:"))


def test_state_of_children_behind_a_guard_stays() -> None:
    (finding,) = findings(DDP, _CHILDREN.replace("{guard}", "if rank == 0:"), "FS402")
    assert finding.level is Level.MANUAL
    assert "child is only bound behind the rank guard" in finding.message
