"""Intended differences are *expected* only where the record proves what it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hand_made import SHAPES, Events, entry, of, replace_tensor, sketch, training, values_of, written
from to_fsdp2.equivalence import expected
from to_fsdp2.equivalence.comparison import Comparison, compare
from to_fsdp2.equivalence.tolerance import Tolerance


def judged(old: Events, new: Events, tmp_path: Path) -> Comparison:
    comparison = compare(written(old, tmp_path / "old"), written(new, tmp_path / "new"), Tolerance())
    expected.apply(comparison, expected.explain(comparison))
    return comparison


def outcomes(comparison: Comparison, outcome: str) -> set[str]:
    return {name for name, result in comparison.results.items() if result.outcome == outcome}


def low_precision_pair(micros: int = 2, gathered: str = "bfloat16", error: float = 2e-3) -> tuple[Events, Events]:
    old, new = training("fsdp1", micros=micros), training(micros=micros)
    for events in (old, new):
        for event in of(events, "step"):
            event["collectives"][0]["dtype"] = gathered
    for name in SHAPES:
        for step in range(3):
            values = [v * (1 + error * (-1) ** i) for i, v in enumerate(values_of(name, step, "gradient"))]
            replace_tensor(new, "fsdp2", "gradient", step, name, values)
    return old, new


def test_accumulation_in_low_precision_is_expected(tmp_path: Path):
    comparison = judged(*low_precision_pair(), tmp_path)
    assert outcomes(comparison, "fail") == set()
    assert "FSDP1 adds up gradients under no_sync" in comparison.results["gradients"].reason


@pytest.mark.parametrize("change", [{"micros": 1}, {"gathered": "float32"}, {"error": 0.3}])
def test_without_its_conditions_it_is_not(tmp_path: Path, change: dict):
    assert outcomes(judged(*low_precision_pair(**change), tmp_path), "fail") == {"gradients"}


def test_it_does_not_excuse_a_loss_that_differs_from_the_start(tmp_path: Path):
    old, new = low_precision_pair()
    for event in of(new, "loss", 0):
        event["value"] *= 1.01
    assert "gradients" in outcomes(judged(old, new, tmp_path), "fail")


def test_it_does_not_excuse_a_clip_call_that_is_missing(tmp_path: Path):
    old, new = low_precision_pair()
    for rank in new:
        new[rank] = [event for event in new[rank] if event["event"] != "clip"]
    assert outcomes(judged(old, new, tmp_path), "fail") == {"clipping"}


def decay_pair(drift: float = 0.0) -> tuple[Events, Events]:
    """Old: no parameter decays. New: the two matrices do, from the first step on."""
    old, new = training("fsdp1"), training()
    matrices, vectors = ["layer.weight", "head.weight"], ["layer.bias"]
    for event in of(old, "hyperparameters"):
        event["groups"] = [{"lr": 0.01, "weight_decay": 0.0}]
    for event in of(new, "optimizer"):
        event["groups"] = [{"names": matrices, "numel": 16}, {"names": vectors, "numel": 4}]
    for event in of(new, "hyperparameters"):
        event["groups"] = [{"lr": 0.01, "weight_decay": 0.1}, {"lr": 0.01, "weight_decay": 0.0}]
    for name in matrices:
        pairs = zip(values_of(name, 0, "parameter"), values_of(name, 0, "initial"), strict=True)
        replace_tensor(new, "fsdp2", "parameter", 0, name, [v - 0.001 * x * (1 + drift) for v, x in pairs])
    return old, new


def test_groups_by_dimension_after_fsdp1_are_expected(tmp_path: Path):
    comparison = judged(*decay_pair(), tmp_path)
    assert outcomes(comparison, "fail") == set()
    assert {"hyperparameters", "parameters"} <= outcomes(comparison, "expected")
    assert "grouped by p.dim()" in comparison.results["hyperparameters"].reason


def test_not_if_the_parameters_differ_by_more_than_decay(tmp_path: Path):
    assert {"hyperparameters", "parameters"} <= outcomes(judged(*decay_pair(drift=0.5), tmp_path), "fail")


def test_not_if_vectors_decay_as_well(tmp_path: Path):
    old, new = decay_pair()
    for event in of(new, "hyperparameters"):
        event["groups"][1]["weight_decay"] = 0.1
    assert "hyperparameters" in outcomes(judged(old, new, tmp_path), "fail")


def test_not_if_the_old_side_is_data_parallel(tmp_path: Path):
    old, new = decay_pair()
    for event in of(old, "optimizer"):
        event["models"][0]["layout"] = "ddp"
    assert "hyperparameters" in outcomes(judged(old, new, tmp_path), "fail")


def evaluation_pair(summoned: bool, gathered: str, error: float = 3e-3) -> tuple[Events, Events]:
    """The same training; what the model answers in eval mode differs."""
    old, new = training("fsdp1"), training()
    for event in of(new, "step"):
        event["collectives"][0]["dtype"] = gathered
    for events, size in ((old, 0.0), (new, error)):
        for rank in events:
            answer = {"shape": [2], "dtype": "float32", **sketch([1.0 + size, 2.0])}
            fields = {"call": 0, "class": "Net", "summoned": summoned and events is old, "outputs": [answer]}
            events[rank].append({"event": "evaluation", "step": 2, **fields})
    return old, new


def test_evaluation_in_the_precision_of_the_policy_is_expected(tmp_path: Path):
    comparison = judged(*evaluation_pair(summoned=True, gathered="bfloat16"), tmp_path)
    assert "evaluation" in outcomes(comparison, "expected")
    assert "summon_full_params" in comparison.results["evaluation"].reason


@pytest.mark.parametrize(
    ("summoned", "gathered", "error"),
    [(False, "bfloat16", 3e-3), (True, "float32", 3e-3), (True, "bfloat16", 0.5)],
)
def test_another_answer_is_not(tmp_path: Path, summoned: bool, gathered: str, error: float):
    assert "evaluation" in outcomes(judged(*evaluation_pair(summoned, gathered, error), tmp_path), "fail")


def buffer_pair(layout: str, rank: int) -> tuple[Events, Events]:
    old, new = training(layout), training()
    for events in (old, new):
        for own in events:
            for step in range(3):
                value = [1.0 + own, 2.0] if events is old or own != rank else [9.0, 2.0]
                found = [entry("norm.running_mean", value, (2,), str(own))]
                events[own].append({"event": "tensors", "step": step, "optimizer": 0, "kind": "buffer", "entries": found})
    return old, new


def test_buffers_of_other_ranks_are_expected_after_data_parallel(tmp_path: Path):
    comparison = judged(*buffer_pair("ddp", rank=1), tmp_path)
    assert outcomes(comparison, "fail") == set()
    assert "rank 0's buffers are equal" in comparison.results["buffers"].reason


def test_but_not_of_rank_0(tmp_path: Path):
    assert outcomes(judged(*buffer_pair("ddp", rank=0), tmp_path), "fail") == {"buffers"}


def test_and_not_after_fsdp1(tmp_path: Path):
    assert outcomes(judged(*buffer_pair("fsdp1", rank=1), tmp_path), "fail") == {"buffers"}
