# pyright: reportOptionalSubscript=false, reportOptionalMemberAccess=false, reportArgumentType=false
"""Predicted memory and communication: against arithmetic, against each other, and against real steps on two ranks."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from to_fsdp2.equivalence import plan  # noqa: E402

SCRIPT = Path(__file__).parent / "scripts" / "plan_sizes.py"
pytestmark = pytest.mark.filterwarnings("ignore")


@cache
def predicted(name, world_size):
    return plan.predict(plan.load(f"{SCRIPT}:{name}"), world_size)


def sizes():
    plan.load(f"{SCRIPT}:full")
    return sys.modules["plan_sizes"]


def calls(prediction):
    return {(t.kind, t.dtype): t.calls for t in prediction.traffic}


def volume(prediction, kind):
    return sum(t.bytes for t in prediction.traffic if t.kind == kind)


@pytest.mark.parametrize("world_size", [2, 8, 64])
def test_sharded_state_is_a_share_of_the_model(world_size):
    prediction = predicted("full", world_size)
    share = 4 * sizes().PARAMETERS / world_size
    assert prediction.layout == "fsdp2"
    assert prediction.parameters == sizes().PARAMETERS
    assert prediction.memory["sharded parameters"] == pytest.approx(share, rel=0.1)
    assert prediction.memory["optimizer state"] == pytest.approx(2 * share, rel=0.1)
    assert prediction.memory["total"] == sum(v for k, v in prediction.memory.items() if k != "total")


def test_traffic_is_what_the_units_need():
    prediction = predicted("full", 8)
    units = sizes().BLOCKS + 1
    # Blocks gather in forward and backward, the root, which stays unsharded between them, once.
    assert calls(prediction)["all_gather", "float32"] == 2 * units - 1
    assert calls(prediction)["reduce_scatter", "float32"] == units
    assert volume(prediction, "reduce_scatter") == pytest.approx(4 * sizes().PARAMETERS, rel=0.01)


def test_the_norm_of_sharded_gradients_is_reduced():
    assert calls(predicted("full", 8))["all_reduce", "float32"] == 1


def test_mixed_precision_halves_what_is_gathered_and_not_what_is_reduced():
    full, half = predicted("full", 8), predicted("half", 8)
    assert calls(half)["all_gather", "bfloat16"] == calls(full)["all_gather", "float32"]
    assert volume(half, "all_gather") == pytest.approx(volume(full, "all_gather") / 2, rel=0.01)
    assert volume(half, "reduce_scatter") == pytest.approx(volume(full, "reduce_scatter"), rel=0.01)


def test_keeping_parameters_unsharded_costs_memory_and_saves_gathers():
    full, kept = predicted("full", 8), predicted("kept", 8)
    assert kept.memory["total"] > full.memory["total"]
    assert calls(kept)["all_gather", "float32"] == sizes().BLOCKS + 1 < calls(full)["all_gather", "float32"]


def test_activation_checkpointing_shows_in_memory_alone():
    full, checkpointed = predicted("full", 8), predicted("checkpointed", 8)
    assert checkpointed.memory["activations"] < full.memory["activations"] / 2
    assert calls(checkpointed) == calls(full)


def test_accumulation_multiplies_traffic_and_hardly_memory():
    full, accumulated = predicted("full", 8), predicted("accumulated", 8)
    for kind in ("all_gather", "reduce_scatter"):
        assert calls(accumulated)[kind, "float32"] == 3 * calls(full)[kind, "float32"]
    assert accumulated.memory["total"] == pytest.approx(full.memory["total"], rel=0.2)
    plain = [predicted(name, 8).memory["total"] for name in ("plain", "plain_accumulated")]
    assert plain[1] == pytest.approx(plain[0], rel=0.2)


def test_hybrid_sharding_shards_over_its_own_dimension_only():
    hybrid, full = predicted("hybrid", 16), predicted("full", 16)
    assert hybrid.memory["sharded parameters"] == pytest.approx(4 * full.memory["sharded parameters"], rel=0.1)
    assert calls(hybrid)["all_reduce", "float32"] == sizes().BLOCKS + 1 + 1


def test_ddp_holds_everything_and_reduces_gradients_once():
    plain = predicted("plain", 8)
    everything = 4 * sizes().PARAMETERS
    assert plain.layout == "ddp"
    assert plain.memory["parameters"] == pytest.approx(everything, rel=0.1)
    assert plain.memory["buckets"] == everything
    assert [(t.kind, t.calls, t.bytes) for t in plain.traffic] == [("all_reduce", 1, everything)]
    assert plain.memory["total"] > predicted("full", 8).memory["total"]


def test_fsdp1_communicates_like_fsdp2_and_its_memory_is_not_guessed():
    old, new = predicted("fsdp1", 8), predicted("full", 8)
    assert old.memory is None
    assert old.parameters == sizes().PARAMETERS
    for kind in ("all_gather", "reduce_scatter"):
        assert calls(old)[kind, "float32"] == calls(new)[kind, "float32"]
        assert volume(old, kind) == pytest.approx(volume(new, kind), rel=0.01)


@pytest.mark.slow
def test_predicted_calls_are_those_of_real_steps():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if "COUNTED" in line)
    for name, counted in json.loads(line.split("COUNTED ")[1]).items():
        prediction = calls(predicted(name, 2))
        for operation, kind in [("allgather", "all_gather"), ("reduce_scatter", "reduce_scatter")]:
            real = sum(count for key, count in counted.items() if operation in key)
            assert real == prediction[kind, "float32"] > 0, (name, counted, prediction)


def test_a_process_group_of_the_caller_is_left_alone():
    predicted("full", 2)
    assert not torch.distributed.is_initialized()
    torch.distributed.init_process_group("fake", store=plan.FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(RuntimeError, match="process that has none"):
            plan.predict(lambda: None, 2)
        assert torch.distributed.is_initialized()
    finally:
        torch.distributed.destroy_process_group()


def test_an_error_in_build_leaves_nothing_behind():
    def build():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        plan.predict(build, 2)
    assert not torch.distributed.is_initialized()
    assert torch.ones(2).sum().item() == 2


def test_the_command_prints_a_table_and_json(capsys):
    assert plan.main([f"{SCRIPT}:full", "--world-size", "2,8", "--reference", "plain"]) == 0
    text = capsys.readouterr().out
    assert text.count("fsdp2") == 2 and text.count("ddp") == 2
    assert "× reduce-scatter float32" in text
    assert plan.main([f"{SCRIPT}:full", "--world-size", "8", "--format", "json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["world_size"] == 8 and entry["memory"]["total"] > 0
    assert {"kind", "dtype", "calls", "bytes"} == set(entry["traffic"][0])


@pytest.mark.parametrize("target", ["nothing.py:build", f"{SCRIPT}", f"{SCRIPT}:absent", f"{SCRIPT}:not a name"])
def test_wrong_targets_are_usage_errors(target, capsys):
    assert plan.main([target]) == 64
    assert target.rpartition(":")[2] in capsys.readouterr().err
