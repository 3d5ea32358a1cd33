"""State dicts, optimizer state and early Distributed Checkpoint: whole programs in, whole programs out."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Finding, Level

DDP = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

"""
FSDP = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType,
)

"""


def migrated(header: str, body: str) -> str:
    """The migrated body of a program."""
    _, results = analyse_texts({"train.py": header + textwrap.dedent(body)})
    return results["train.py"]


def findings(header: str, body: str, rule: str) -> list[Finding]:
    """What a rule says about a program."""
    analysis, _ = analyse_texts({"train.py": header + textwrap.dedent(body)})
    return [finding for finding in analysis.findings if finding.rule == rule]


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
    assert "behind a rank guard" in finding.message


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


def test_summoned_parameters_that_are_written_hold_the_group() -> None:
    after = migrated(
        FSDP,
        """
        def main(net):
            model = FSDP(net)
            with FSDP.summon_full_params(model):
                torch.nn.init.normal_(model.weight)
        """,
    )
    assert "FSDP.summon_full_params(model)" in after


def test_evaluation_with_data_of_rank_zero_alone_holds_the_group() -> None:
    (finding,) = findings(
        DDP,
        """
        def main(net, rank, load):
            model = DDP(net)
            if rank == 0:
                batch = load()
            if rank == 0:
                output = model(batch)
                print(output)
        """,
        "FS414",
    )
    assert finding.level is Level.MANUAL
    assert "batch exists on some ranks only" in finding.message


TRAINING = DDP + textwrap.dedent(
    '''
    def is_main():
        return dist.get_rank() == 0


    def save(network, optimizer, path):
        torch.save({"model": network.state_dict(), "optimizer": optimizer.state_dict()}, path)


    class Trainer:
        def __init__(self):
            torch.manual_seed(dist.get_rank())
            self.net = DDP(torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Dropout(0.5), torch.nn.Linear(7, 3)))
            self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-2)

        @torch.no_grad()
        def sample(self):
            self.net.eval()
            output = self.net(torch.randn(4, 5)).sum().item()
            self.net.train()
            return output

        def fit(self):
            for step in range(4):
                loss = self.net(torch.randn(4, 5)).pow(2).mean()
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                if is_main() and step % 2 == 1:
                    output = self.sample()
                    print(f"{step} {output:.5f}")
                    save(self.net, self.opt, "checkpoint.pt")
                    state = torch.load("checkpoint.pt")["model"]
                    print({name: round(float(value.double().sum()), 5) for name, value in state.items()})


    dist.init_process_group("gloo")
    Trainer().fit()
    dist.destroy_process_group()
    '''
)


@pytest.mark.slow
def test_evaluation_and_saving_on_rank_zero_train_and_write_the_same(tmp_path: Path) -> None:
    analysis, results = analyse_texts({"train.py": TRAINING})
    assert Level.MANUAL not in {finding.level for finding in analysis.findings}
    written = [run(tmp_path / "old", TRAINING), run(tmp_path / "new", results["train.py"])]
    assert written[0] == written[1]
    assert "module.0.weight" in written[0]


def run(folder: Path, text: str) -> str:
    """What two gloo ranks print."""
    folder.mkdir()
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.stdout, done.stderr[-2000:]
    return done.stdout
