"""Exact mode: DDP, FSDP1 and FSDP2 give the same bits; FSDP1's defects on the CPU are out of the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from inject_runs import SCRIPTS, Event, Forks, bits, launch, read, select, torchrun, wholes

pytestmark = pytest.mark.slow

Run = Callable[..., list[list[Event]]]
STEPS = ("--steps", "3")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a script once for each set of arguments: with emulated devices under torchrun, else as forks of one process."""
    forks = Forks()
    done: dict[Any, list[list[Event]]] = {}

    def run(*arguments: str, script: str = "inject_gpt.py", ranks: int = 2, **variables: str) -> list[list[Event]]:
        key = (script, arguments, ranks, *variables.items())
        if key not in done:
            record = tmp_path_factory.mktemp("run") / "record"
            start = torchrun if "TO_FSDP2_EMULATE_CUDA" in variables else forks.run
            done[key] = start(script, *arguments, record=record, ranks=ranks, **variables)
            assert not [event["text"] for events in done[key] for event in select(events, "warning")]
        return done[key]

    yield run
    forks.close()


def gpt(run: Run, wrap: str, *arguments: str, ranks: int = 2, **variables: str) -> list[list[Event]]:
    return run("--wrap", wrap, *STEPS, *arguments, ranks=ranks, **variables)


@pytest.mark.parametrize(("wrap", "ranks"), [("ddp", 2), ("fsdp1", 2), ("fsdp1-flat", 2), ("ddp", 4), ("fsdp1", 4)])
def test_full_precision_with_accumulation_and_clipping(run: Run, wrap: str, ranks: int) -> None:
    old = bits(gpt(run, wrap, "--accumulate", "2", ranks=ranks))
    new = bits(gpt(run, "fsdp2", "--accumulate", "2", ranks=ranks))
    assert old == new
    assert len(new["tensors"]) > 500 and len(new["losses"][0]) == 6
    assert all(norm > 0.2 for _, norm in new["norms"]), "clipping has to bite"


def test_clipping_in_parts_with_one_norm(run: Run) -> None:
    old = gpt(run, "ddp", "--accumulate", "2")
    new = gpt(run, "fsdp2", "--accumulate", "2", "--clip-parts")
    assert bits(old)["tensors"] == bits(new)["tensors"]
    assert [e["norm"] for e in select(old[0], "clip")] == [e["norm"] for e in select(new[0], "clip")[::2]]
    assert [e["call"] for e in select(new[0], "clip")] == [0, 0] * 3


@pytest.mark.parametrize(("wrap", "precision"), [("fsdp1", "bf16"), ("fsdp1-flat", "fp16")])
def test_mixed_precision(run: Run, wrap: str, precision: str) -> None:
    assert bits(gpt(run, wrap, "--precision", precision)) == bits(gpt(run, "fsdp2", "--precision", precision))


def test_accumulation_in_low_precision_differs(run: Run) -> None:
    # FSDP1 accumulates in the parameters' dtype, FSDP2 in the reduction's: exactness must not hide it.
    arguments = ("--precision", "bf16", "--accumulate", "2")
    old, new = gpt(run, "fsdp1", *arguments), gpt(run, "fsdp2", *arguments)
    assert wholes(old, "gradient", 0) != wholes(new, "gradient", 0)
    assert select(old[0], "loss", step=0) == select(new[0], "loss", step=0)


@pytest.mark.parametrize("wrap", ["ddp", "fsdp1"])
def test_frozen_parameters_and_activation_checkpointing(run: Run, wrap: str) -> None:
    old = gpt(run, wrap, "--frozen", "--checkpointing")
    new = gpt(run, "fsdp2", "--frozen", "--checkpointing")
    assert bits(old) == bits(new)
    frozen = [e for e in select(new[0], "tensors", kind="initial")[0]["entries"] if not e["trainable"]]
    assert frozen and all(entry["name"].startswith("blocks.0.") for entry in frozen)
    assert [select(side[0], "optimizer")[0]["models"][0]["checkpointed"] for side in (old, new)] == [3, 3]
    kept = [select(side[0], "step", step=1)[0]["memory"]["saved"] for side in (old, new)]
    without = select(gpt(run, wrap, "--accumulate", "2")[0], "step", step=1)[0]["memory"]["saved"]
    assert kept[0] == kept[1] < without / 2


def test_hybrid_sharding(run: Run) -> None:
    old, new = gpt(run, "fsdp1", "--hybrid", ranks=4), gpt(run, "fsdp2", "--hybrid", ranks=4)
    assert bits(old) == bits(new)
    assert {whole.replicas for whole in wholes(old, "parameter", 0).values()} == {2}
    assert {whole.replicas for whole in wholes(new, "parameter", 0).values()} == {2}


def test_layouts_say_what_they_are(run: Run) -> None:
    for wrap, units in (("ddp", 1), ("fsdp1", 4), ("fsdp1-flat", 4), ("fsdp2", 4)):
        (optimizer,) = select(gpt(run, wrap, "--accumulate", "2")[0], "optimizer")
        (model,) = optimizer["models"]
        assert (model["class"], model["layout"], model["units"], model["parameters"]) == ("GPT", wrap, units, 40640)
        assert optimizer["found"] == optimizer["total"] and not optimizer["not_in_optimizer"]
        assert optimizer["aliases"] == {"head.weight": ["tokens.weight"]}
        names = [name for group in optimizer["groups"] for name in group["names"]]
        assert len(names) == len(set(names)) == 40
    ddp = wholes(gpt(run, "ddp", "--accumulate", "2"), "parameter", 0)
    assert {whole.replicas for whole in ddp.values()} == {2}


def test_an_optimizer_from_before_sharding_holds_dead_parameters(run: Run) -> None:
    events = gpt(run, "fsdp2", "--early-optimizer", "--clip", "0")[0]
    (optimizer,) = select(events, "optimizer")
    assert (optimizer["found"], optimizer["total"], optimizer["models"]) == (0, 40, [])
    (gradients,) = select(events, "tensors", kind="gradient", step=0)
    assert all(entry["missing"] and entry["name"].startswith("?") for entry in gradients["entries"])


def test_traffic_is_that_of_the_wrapper(run: Run) -> None:
    def traffic(side: list[list[Event]]) -> dict[str, int]:
        return {entry["op"]: entry["count"] for entry in select(side[0], "step", step=2)[0]["collectives"]}

    assert traffic(gpt(run, "fsdp1", "--precision", "bf16")) == {"all_gather": 7, "reduce_scatter": 4}
    assert traffic(gpt(run, "fsdp2", "--precision", "bf16")) == {"all_gather": 7, "reduce_scatter": 4}
    assert traffic(gpt(run, "fsdp2", "--accumulate", "2")) == {"all_gather": 14, "reduce_scatter": 4}
    assert traffic(gpt(run, "ddp", "--accumulate", "2"))["all_reduce"] == 1
    kinds = {e["op"]: e["dtype"] for e in select(gpt(run, "fsdp2", "--precision", "bf16")[0], "step")[2]["collectives"]}
    assert kinds == {"all_gather": "bfloat16", "reduce_scatter": "float32"}


def test_the_backend_of_the_script_is_observed_too(run: Run) -> None:
    native = gpt(run, "fsdp2", "--accumulate", "2", TO_FSDP2_MODE="noise")
    exact = gpt(run, "fsdp2", "--accumulate", "2")
    # gloo's own clipping and functional collectives apart, the wrapper sends the same.
    for events in (native[0], exact[0]):
        step = select(events, "step", step=1)[0]
        counts = {(e["op"], e["dtype"], e["count"]) for e in step["collectives"] if e["op"] != "all_reduce"}
        assert counts == {("all_gather", "float32", 14), ("reduce_scatter", "float32", 4)}
        assert step["collectives_complete"]
    assert select(native[0], "start")[0]["mode"] == "noise"


def test_perturbed_reductions_stay_within_rounding(run: Run) -> None:
    perturbed = gpt(run, "fsdp2", "--accumulate", "2", TO_FSDP2_PERTURB="1")
    plain = gpt(run, "fsdp2", "--accumulate", "2")
    before, after = wholes(plain, "gradient", 0), wholes(perturbed, "gradient", 0)
    assert sum(before[name].checksum != after[name].checksum for name in before) > 30
    assert all(after[name].norm == pytest.approx(before[name].norm, rel=1e-6) for name in before)
    assert select(plain[0], "loss", step=0) == select(perturbed[0], "loss", step=0)


def test_replicas_agree_under_perturbation(run: Run) -> None:
    ranks = gpt(run, "ddp", "--accumulate", "2", TO_FSDP2_PERTURB="1")
    plain = gpt(run, "ddp", "--accumulate", "2")
    assert wholes(ranks, "parameter", 2) != wholes(plain, "parameter", 2)


def test_fsdp1_without_its_defects(tmp_path: Path) -> None:
    script = str(SCRIPTS / "inject_fsdp1.py")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    done = launch(launcher, tmp_path / "record", TO_FSDP2_MODE="exact")
    assert done.returncode == 0, done.stderr
    assert len(select(read(tmp_path / "record", 2)[0], "step")) == 2


def test_scripts_for_cuda_and_nccl_run_unchanged(run: Run, tmp_path: Path) -> None:
    sides = {}
    for wrap in ("ddp", "fsdp1", "fsdp2"):
        arguments = (wrap, str(tmp_path / f"{wrap}.pt"))
        ranks = run(*arguments, script="inject_cuda.py", TO_FSDP2_EMULATE_CUDA="2")
        (start,) = select(ranks[0], "start")
        assert (start["emulated"], start["backend"]) == (True, "nccl")
        assert [e["scale"] for e in select(ranks[0], "scaler", action="update")] == [4096.0] * 3
        sides[wrap] = bits(ranks)
    assert sides["ddp"] == sides["fsdp1"] == sides["fsdp2"]
    ddp, fsdp1, fsdp2 = (torch.load(tmp_path / f"{wrap}.pt") for wrap in ("ddp", "fsdp1", "fsdp2"))
    for name, weight in fsdp2["model"].items():
        assert torch.equal(weight, fsdp1["model"][name]) and torch.equal(weight, ddp["model"][name])
    for name, state in fsdp2["optimizer"]["state"].items():
        for key, value in state.items():
            assert torch.equal(value, fsdp1["optimizer"]["state"][name][key]), (name, key)


def test_what_else_scripts_for_cuda_do(run: Run) -> None:
    ranks = run(script="inject_cuda_features.py", TO_FSDP2_EMULATE_CUDA="2")
    (optimizer,) = select(ranks[0], "optimizer")
    assert (optimizer["class"], optimizer["found"], optimizer["total"]) == ("ZeroRedundancyOptimizer", 8, 8)
    assert optimizer["models"][0]["compiled"] and optimizer["models"][0]["layout"] == "ddp"
    assert {event["optimizer"] for event in select(ranks[0], "step")} == {0}
    # Each rank holds the state of its own part alone.
    states = [select(events, "tensors", kind="optimizer", step=1)[0]["entries"] for events in ranks]
    names = [{entry["name"] for entry in entries} for entries in states]
    assert not names[0] & names[1] and len(names[0] | names[1]) == 8
