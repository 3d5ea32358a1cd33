"""The state of optimizers: taken, loaded, and left alone where nothing is to be gathered."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from state_programs import DDP, FSDP, findings, migrated
from to_fsdp2.transforms.findings import Level


def test_tensors_that_files_of_flat_parameters_share_are_cloned() -> None:
    program = """
        def main(net, state):
            model = FSDP(net{flags})
            optimizer = torch.optim.AdamW(model.parameters())
            optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state))
        """
    assert "value.clone()" in migrated(FSDP, program.format(flags=""))
    assert "value.clone()" not in migrated(FSDP, program.format(flags=", use_orig_params=True"))


def test_rank_zero_alone_has_scattered_state() -> None:
    after = migrated(
        FSDP,
        """
        def main(net, full):
            model = FSDP(net, use_orig_params=True)
            optimizer = torch.optim.AdamW(model.parameters())
            state = FSDP.scatter_full_optim_state_dict(full, model)
            optimizer.load_state_dict(state)
        """,
    )
    assert "set_optimizer_state_dict(" in after
    assert "full, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)" in after


def test_old_order_of_arguments() -> None:
    after = migrated(
        FSDP,
        """
        def main(net, state):
            model = FSDP(net, use_orig_params=True)
            optimizer = torch.optim.AdamW(model.parameters())
            loaded = FSDP.optim_state_dict_to_load(state, model, optimizer)
            optimizer.load_state_dict(loaded)
        """,
    )
    assert "model, optimizer, state, options=" in after
    assert "loaded" not in after


def test_optimizer_state_after_an_evaluation_goes_back_to_shards_first() -> None:
    after = migrated(
        FSDP,
        """
        def main(net):
            model = FSDP(net)
            optimizer = torch.optim.AdamW(model.parameters())
            model.eval()
            return FSDP.full_optim_state_dict(model, optimizer)
        """,
    )
    assert after.index("module.reshard()") < after.index("get_optimizer_state_dict(\n")


def test_settings_of_the_optimizer_are_read_as_they_are() -> None:
    after = migrated(
        DDP,
        """
        def main(net):
            model = DDP(net)
            optimizer = torch.optim.AdamW(model.parameters())
            return optimizer.state_dict()["param_groups"][0]["lr"]
        """,
    )
    assert 'optimizer.state_dict()["param_groups"]' in after


def test_optimizer_that_may_be_fresh_is_not_stepped_by_saving() -> None:
    program = """
        def main(net, batches):
            model = DDP(net)
            optimizer = torch.optim.AdamW(model.parameters())
            for step, batch in enumerate(batches):
                if {condition}:
                    torch.save(optimizer.state_dict(), f"{{step}}.pt")
                model(batch).sum().backward()
                optimizer.step()
        """
    assert "if optimizer.state else optimizer.state_dict()" in migrated(DDP, program.format(condition="step % 5 == 0"))
    assert "optimizer.state else" not in migrated(DDP, program.format(condition="step % 5 == 0 and step > 0"))


def test_optimizers_of_several_models_in_one_place_hold_all_of_them() -> None:
    after = migrated(
        DDP,
        """
        def main(first, second):
            first = DDP(torch.nn.Sequential(first))
            second = DDP(torch.nn.ModuleList(second))
            optimizers = [torch.optim.SGD(first.parameters()), torch.optim.SGD(second.parameters())]
            torch.save([optimizer.state_dict() for optimizer in optimizers], "x.pt")
        """,
    )
    assert after.count("DDP(") == 2


@pytest.mark.parametrize(
    ("made", "loaded"),
    [
        ("SGD(model.parameters(), lr=0.1)", "optimizer, state)\n"),
        ("SGD(model.parameters(), 0.1, 0)", "optimizer, state)\n"),
        ("SGD(model.parameters(), 0.1, 0.9)", "full_state_dict=True"),
        ("SGD(model.parameters(), lr=0.1, momentum=momentum)", "full_state_dict=True"),
        ("AdamW(model.parameters())", "full_state_dict=True"),
    ],
)
def test_state_without_tensors_is_not_loaded_as_full(made: str, loaded: str) -> None:
    program = f"""
        def main(net, state, momentum):
            model = DDP(net)
            optimizer = torch.optim.{made}
            optimizer.load_state_dict(state)
        """
    assert loaded in migrated(DDP, program)
    (finding,) = findings(DDP, program, "FS405")
    assert ("without momentum SGD" in finding.message) == ("=momentum" in made)


def test_converted_state_that_nothing_here_loads_is_said_to_be_whole() -> None:
    program = """
        def load(net, path, rank):
            model = FSDP(net)
            state = torch.load(path) if rank == 0 else None
            return FSDP.scatter_full_optim_state_dict(state, model)
        """
    (finding,) = findings(FSDP, program, "FS407")
    assert finding.level is Level.REVIEW
    assert "what loads it is not seen" in finding.message
    assert "broadcast_from_rank0=True" in finding.advice


def test_the_load_of_what_a_function_converts_is_named() -> None:
    program = """
        def convert(state, model, optimizer):
            converted = FSDP.optim_state_dict_to_load(model, optimizer, state)
            return converted


        def main(net, state):
            model = FSDP(net, use_orig_params=True)
            optimizer = torch.optim.AdamW(model.parameters())
            state = convert(state, model, optimizer)
            optimizer.load_state_dict(state)
        """
    (finding,) = findings(FSDP, program, "FS407")
    assert finding.level is Level.SAFE
    assert "as it was saved, at train.py:" in finding.message


@pytest.mark.parametrize(("kind", "silent"), [("AdamW", False), ("SGD", True)])
def test_old_files_are_refused_but_by_sgd(kind: str, silent: bool) -> None:
    extra = ", momentum=0.9" if kind == "SGD" else ""
    program = f"""
model = DDP(torch.nn.Linear(2, 2))
optimizer = torch.optim.{kind}(model.parameters(), lr=0.1{extra})
optimizer.load_state_dict(torch.load("a.pt"))
"""
    (finding,) = findings(DDP, program, "FS405")
    assert ("loses its momentum" in finding.message) == silent


def test_what_is_handed_to_unseen_callers_is_for_review() -> None:
    program = """
model = FSDP(torch.nn.Linear(2, 2))
optimizer = torch.optim.AdamW(model.parameters())
optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, torch.load("a.pt")))


def scattered(state):
    return FSDP.scatter_full_optim_state_dict(state, model)


def full(rank0_only):
    return FSDP.full_optim_state_dict(model, optimizer, rank0_only=rank0_only)
"""
    levels = {(f.symbol.split(".")[-1], f.level) for rule in ("FS406", "FS407") for f in findings(FSDP, program, rule)}
    assert ("optim_state_dict_to_load", Level.SAFE) in levels
    assert ("scatter_full_optim_state_dict", Level.REVIEW) in levels
    assert ("full_optim_state_dict", Level.REVIEW) in levels


_BESIDE_THE_MODEL = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType


def save(model, optimizer):
    cfg = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, cfg):
        weights = model.state_dict()
        moments = FSDP.optim_state_dict(model, optimizer)
    state = {"optimizer": moments, "model": weights}
    {use}


def main():
    model = FSDP(torch.nn.Linear(2, 2))
    save(model, torch.optim.Adam(model.parameters()))
"""


@pytest.mark.parametrize(
    ("use", "options"),
    [
        ("if not dist.is_initialized() or dist.get_rank() == 0:\n        torch.save(state, 'last.pt')", "cfg"),
        ("torch.save(state, str(dist.get_rank()))", "StateDictOptions(full_state_dict=True)"),
    ],
)
def test_state_that_is_written_by_rank_zero_goes_there_alone(use: str, options: str) -> None:
    analysis, texts = analyse_texts({"train.py": _BESIDE_THE_MODEL.replace("{use}", use)})
    assert f"get_optimizer_state_dict(model, optimizer, options={options})" in " ".join(
        texts["train.py"].replace("(\n        ", "(").replace("\n    )", ")").split()
    )
    assert any("on its device now" in finding.message for finding in analysis.findings) is (options != "cfg")


@pytest.mark.parametrize("log", ["    print(f'Scattering {state.keys()}')\n", "    '''Scattering, as a docstring says.'''\n"])
def test_what_has_to_load_state_that_is_handed_on_is_said(log: str) -> None:
    program = f"""
model = FSDP(torch.nn.Linear(2, 2))


def scattered(state):
{log}    return FSDP.scatter_full_optim_state_dict(state, model)
"""
    (found,) = findings(FSDP, program, "FS407")
    assert "with optimizer.load_state_dict() whole tensors of a full state would stand beside sharded parameters" in found.message
    assert ("still speaks of scattering" in found.message) == ("print" in log)
    assert "on all ranks" in found.advice and "broadcast_from_rank0=True" in found.advice
