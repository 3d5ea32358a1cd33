"""What is concluded from two records: one change to a clean record at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
from hand_made import SHAPES, Events, of, optimizer_event, pieces, replace_tensor, training, values_of, written
from to_fsdp2.equivalence.causes import add_causes
from to_fsdp2.equivalence.comparison import Comparison, compare
from to_fsdp2.equivalence.record import read_record
from to_fsdp2.equivalence.tolerance import Tolerance


@pytest.fixture
def judge(tmp_path: Path) -> Callable[..., Comparison]:
    def run(old: Events, new: Events, control: Events | None = None) -> Comparison:
        records = written(old, tmp_path / "old"), written(new, tmp_path / "new")
        tolerance = Tolerance()
        if control is not None:
            tolerance = Tolerance.from_control(records[0], written(control, tmp_path / "control"))
        comparison = compare(*records, tolerance)
        add_causes(comparison)
        return comparison

    return run


def failing(comparison: Comparison) -> dict[str, int | None]:
    """Failed checks with the first step."""
    return {name: result.step for name, result in comparison.results.items() if result.outcome == "fail"}


@pytest.mark.parametrize("old", ["ddp", "fsdp1", "fsdp2", "plain"])
@pytest.mark.parametrize("world", [2, 4])
def test_the_same_training_in_another_layout_has_no_difference(judge, old: str, world: int):
    comparison = judge(training(old, world), training("fsdp2", world))
    assert failing(comparison) == {}
    assert comparison.results["gradients"].outcome == "pass"
    assert "3 tensors at 3 steps" in comparison.results["gradients"].reason


def test_a_difference_in_one_gradient_names_step_tensor_and_size(judge):
    new = training()
    changed = values_of("layer.weight", 1, "gradient")
    changed[3] += 0.5
    replace_tensor(new, "fsdp2", "gradient", 1, "layer.weight", changed)
    result = judge(training("ddp"), new).results["gradients"]
    assert (result.outcome, result.step, result.tensor) == ("fail", 1, "layer.weight")
    norm = sum(v * v for v in changed) ** 0.5
    assert result.difference == pytest.approx(0.5 / norm, rel=0.7)


def test_two_swapped_elements_are_seen_although_norm_and_sum_are_equal(judge):
    new = training()
    values = values_of("layer.weight", 0, "parameter")
    values[0], values[5] = values[5], values[0]
    replace_tensor(new, "fsdp2", "parameter", 0, "layer.weight", values)
    assert failing(judge(training(), new)) == {"parameters": 0}


def test_equal_gradients_and_other_parameters_point_at_the_optimizer(judge):
    new = training()
    replace_tensor(new, "fsdp2", "parameter", 2, "head.weight", values_of("head.weight", 9, "parameter"))
    result = judge(training(), new).results["parameters"]
    assert "gradients equal, parameters differ: optimizer groups or hyperparameters" in result.causes[0]


@pytest.mark.parametrize(("factor", "words"), [(2.0, "summed over the ranks"), (0.5, "divided by the number of ranks twice")])
def test_a_common_factor_of_all_gradients_is_named(judge, factor: float, words: str):
    new = training()
    for name in SHAPES:
        replace_tensor(new, "fsdp2", "gradient", 0, name, [factor * v for v in values_of(name, 0, "gradient")])
    result = judge(training(), new).results["gradients"]
    assert result.step == 0
    assert words in result.causes[0]


def test_left_over_gradients_point_at_zero_grad(judge):
    new = training()
    for name in SHAPES:
        both = zip(values_of(name, 1, "gradient"), values_of(name, 0, "gradient"), strict=True)
        replace_tensor(new, "fsdp2", "gradient", 1, name, [v + w for v, w in both])
    result = judge(training(), new).results["gradients"]
    assert result.step == 1
    assert "zero_grad() is missing" in result.causes[0]


def test_missing_gradients(judge):
    new = training()
    for event in of(new, "tensors", 0, kind="gradient"):
        for entry in event["entries"]:
            keep = {field: entry[field] for field in ("name", "shape", "dtype", "replica", "count")}
            entry.clear()
            entry.update(keep, missing=True)
    result = judge(training(), new).results["gradients"]
    assert result.step == 0
    assert "has no gradient on the new side" in result.reason
    assert any("built before fully_shard" in cause for cause in result.causes)


def test_copies_that_differ_between_ranks(judge):
    new = training("ddp")
    entry = of(new, "tensors", 0, kind="gradient")[1]["entries"][0]
    entry.update(pieces(entry["name"], [9.0] * 8, 1, 2, "ddp")[0])
    result = judge(training("ddp"), new).results["gradients"]
    assert "differs between the ranks of the new side" in result.reason
    assert "ignored_params" in result.causes[0]


def test_a_part_that_no_rank_holds(judge):
    new = training()
    entries = of(new, "tensors", 0, kind="parameter")[1]["entries"]
    entries[:] = [entry for entry in entries if entry["name"] != "head.weight"]
    result = judge(training(), new).results["parameters"]
    assert "in part on no rank" in result.reason
    assert "4 of 8" in result.reason


def test_initial_weights_come_before_everything_else(judge):
    new = training()
    replace_tensor(new, "fsdp2", "initial", 0, "layer.weight", [0.1] * 8)
    comparison = judge(training("ddp"), new)
    result = comparison.results["parameters"]
    assert result.reason.startswith("before the first step")
    assert "does not broadcast" in result.causes[0]


def test_initial_zeros_point_at_meta_initialisation(judge):
    new = training()
    for name, shape in SHAPES.items():
        replace_tensor(new, "fsdp2", "initial", 0, name, [0.0] * (shape[0] * (shape[1] if len(shape) > 1 else 1)))
    assert "meta initialisation" in judge(training("ddp"), new).results["parameters"].causes[0]


def test_no_optimizer_state(judge):
    new = training()
    for event in of(new, "tensors", kind="optimizer"):
        event["entries"] = []
    result = judge(training(), new).results["optimizer"]
    assert result.step == 0
    assert "no optimizer state for 3 of 3 parameters" in result.reason
    assert "built before fully_shard" in result.causes[0]


def test_loss_is_compared_rank_by_rank_and_micro_step_by_micro_step(judge):
    new = training(micros=2)
    of(new, "loss", 1, micro=1)[1]["value"] *= 1 + 1e-9
    result = judge(training(micros=2), new).results["loss"]
    assert (result.outcome, result.step) == ("fail", 1)
    assert "rank 1, backward pass 1" in result.reason
    assert "rank 0's loss is equal" in result.causes[0]


def test_equal_nan_losses_are_equal(judge):
    old, new = training(), training()
    for events in (old, new):
        of(events, "loss", 2)[0]["value"] = float("nan")
    assert failing(judge(old, new)) == {}


def test_nan_against_a_number_is_a_difference(judge):
    new = training()
    of(new, "loss", 2)[0]["value"] = float("nan")
    result = judge(training(), new).results["loss"]
    assert (result.step, result.difference) == (2, None)


def test_only_the_loss_differs(judge):
    new = training()
    for event in of(new, "loss"):
        event["value"] *= 1.01
    assert "only the reported loss differs" in judge(training(), new).results["loss"].causes[0]


@pytest.mark.parametrize(("factor", "words"), [(2.0, "is not divided by the number"), (0.5, "micro-steps twice")])
def test_accumulation_that_is_scaled_otherwise_is_named(judge, factor: float, words: str):
    new = training(micros=2)
    for event in of(new, "loss"):
        event["value"] *= factor
    for name in SHAPES:
        replace_tensor(new, "fsdp2", "gradient", 0, name, [factor * v for v in values_of(name, 0, "gradient")])
    assert words in judge(training(micros=2), new).results["loss"].causes[0]


def test_an_optimizer_that_never_steps_shifts_no_numbers(judge):
    new = training()
    for events in new.values():
        described = next(event for event in events if event["event"] == "optimizer")
        for event in events:
            if "optimizer" in event:
                event["optimizer"] += 1
        gradients = next(event for event in events if event["event"] == "tensors" and event["kind"] == "gradient")
        events[events.index(described) : events.index(described)] = [{**e, "optimizer": 0} for e in (described, gradients)]
    assert failing(judge(training(), new)) == {}


def test_an_optimizer_that_begins_with_another_learning_rate_was_not_loaded(judge):
    sides = training(), training()
    for side in sides:
        for events in side.values():
            for event in events:
                if "optimizer" in event and event["step"] > 0:
                    event["optimizer"] = 1
            described = next(event for event in events if event["event"] == "optimizer")
            events.insert(events.index(described) + 1, {**described, "optimizer": 1, "step": 1})
    for event in of(sides[1], "hyperparameters", 1):
        event["groups"][0]["lr"] = 0.5
    result = judge(*sides).results["hyperparameters"]
    assert (result.outcome, result.step) == ("fail", 1)
    assert "was not loaded" in result.causes[0]


def test_another_number_of_micro_steps(judge):
    result = judge(training(micros=2), training(micros=1)).results["loss"]
    assert "1 backward passes, on the old side 2" in result.reason


def test_a_clip_call_that_is_gone_is_seen_although_all_numbers_are_equal(judge):
    new = training()
    for rank in new:
        new[rank] = [event for event in new[rank] if event["event"] != "clip"]
    comparison = judge(training(), new)
    assert failing(comparison) == {"clipping": 0}
    assert "the old side clips gradients, the new one does not" in comparison.results["clipping"].reason


def test_a_clip_call_in_parts_with_one_norm_is_one_call(judge):
    new = training()
    for rank in new:
        split = []
        for event in new[rank]:
            if event["event"] == "clip":
                split.append({**event, "norm_type": None, "tensors": 1, "covered": 1})
                event = {**event, "norm_type": None, "tensors": 2, "covered": 2}
            split.append(event)
        new[rank] = split
    assert judge(training(), new).results["clipping"].outcome == "pass"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_norm": 2.0}, "the limit is 2.0, on the old side 1.0"),
        ({"norm": 1.4}, "the norm is 1.4"),
        ({"norm_type": 1.0}, "type of norm"),
        ({"covered": 2}, "covers 2 of 3 parameters"),
    ],
)
def test_a_clip_call_with_other_arguments(judge, change: dict, words: str):
    new = training()
    for event in of(new, "clip", 1):
        event.update(change)
    result = judge(training(), new).results["clipping"]
    assert (result.outcome, result.step) == ("fail", 1)
    assert words in result.reason


def test_a_learning_rate_names_both_values_and_the_scheduler(judge):
    new = training()
    for event in of(new, "hyperparameters", 1):
        event["groups"][0]["lr"] = 0.02
    result = judge(training(), new).results["hyperparameters"]
    assert (result.outcome, result.step) == ("fail", 1)
    assert "lr of 3 of 3 parameters is 0.02, on the old side 0.01" in result.reason
    assert any("scheduler" in cause for cause in result.causes)


def test_groups_in_another_order_are_the_same_groups(judge):
    old, new = training(), training()
    for events, order in ((old, (0, 1)), (new, (1, 0))):
        names = [["layer.weight", "head.weight"], ["layer.bias"]]
        values = [{"lr": 0.01, "weight_decay": 0.1}, {"lr": 0.01, "weight_decay": 0.0}]
        for event in of(events, "optimizer"):
            event["groups"] = [{"names": names[i], "numel": 1} for i in order]
        for event in of(events, "hyperparameters"):
            event["groups"] = [values[i] for i in order]
    assert failing(judge(old, new)) == {}


def scaler_events(step: int, found_inf: float = 0.0) -> list[dict]:
    return [
        {"event": "scaler", "step": step, "action": "scale", "scale": 1024.0, "class": "GradScaler", "enabled": True},
        {"event": "scaler", "step": step, "action": "unscale", "optimizer": 0, "found_inf": found_inf},
        {"event": "scaler", "step": step, "action": "step", "optimizer": 0, "skipped": bool(found_inf)},
        {"event": "scaler", "step": step, "action": "update", "scale": 1024.0},
    ]


def with_scaler(events: Events) -> Events:
    for rank in events:
        for step in range(3):
            events[rank] += scaler_events(step)
    return events


def test_a_lost_scaler_is_seen_although_all_numbers_are_equal(judge):
    comparison = judge(with_scaler(training()), training())
    assert failing(comparison) == {"scaler": 0}


def test_a_step_that_only_one_side_skips(judge):
    new = with_scaler(training())
    of(new, "scaler", 2, action="unscale")[0]["found_inf"] = 1.0
    result = judge(with_scaler(training()), new).results["scaler"]
    assert (result.outcome, result.step) == ("fail", 2)


def test_unscale_that_is_missing(judge):
    new = with_scaler(training())
    for rank in new:
        new[rank] = [event for event in new[rank] if event.get("action") != "unscale"]
    result = judge(with_scaler(training()), new).results["scaler"]
    assert "unscale_" in result.causes[0]


@pytest.mark.parametrize(
    ("op", "change", "words"),
    [
        ("reduce_scatter", {"count": 4, "bytes": 160}, "more micro-steps"),
        ("all_gather", {"count": 2, "bytes": 160}, "reshard_after_forward=False"),
        ("all_gather", {"count": 1}, "units differ"),
        ("reduce_scatter", {"dtype": "bfloat16"}, "reduce_dtype"),
        ("all_gather", {"dtype": "bfloat16"}, "param_dtype"),
    ],
)
def test_communication_that_numbers_do_not_show(judge, op: str, change: dict, words: str):
    new = training()
    for event in of(new, "step"):
        next(entry for entry in event["collectives"] if entry["op"] == op).update(change)
    comparison = judge(training("fsdp1"), new)
    assert failing(comparison) == {"communication": 1}
    assert words in comparison.results["communication"].causes[0]


@pytest.mark.parametrize("layout", ["fsdp1", "ddp"])
def test_gradients_that_travel_as_parameters_do_are_no_fault_of_reduce_dtype(judge, layout: str):
    new = training()
    for event in of(new, "step"):
        for entry in event["collectives"]:
            entry.update(dtype="bfloat16", bytes=entry["bytes"] // 2)
    assert "param_dtype" in judge(training(layout), new).results["communication"].causes[0]


def test_hybrid_sharding_without_its_all_reduce(judge):
    old = training("fsdp1")
    for event in of(old, "step"):
        event["collectives"].append({"op": "all_reduce", "dtype": "float32", "count": 2, "bytes": 40})
    assert "replicate dimension" in judge(old, training()).results["communication"].causes[0]


def test_data_parallel_against_shards_is_expected_to_communicate_otherwise(judge):
    result = judge(training("ddp"), training()).results["communication"]
    assert result.outcome == "expected"
    assert "as often as before" in result.reason


def test_data_parallel_against_shards_that_reduce_twice(judge):
    new = training()
    for event in of(new, "step"):
        event["collectives"][1].update(count=4, bytes=160)
    result = judge(training("ddp"), new).results["communication"]
    assert (result.outcome, result.step) == ("fail", 1)
    assert "reduced 2 times, on the old side 1 times" in result.reason


def test_activations_that_are_kept_again(judge):
    new = training()
    for event in of(new, "step", 1):
        event["memory"]["saved"] = 1_000_000
    old = training()
    for event in of(old, "optimizer"):
        event["models"][0]["checkpointed"] = 2
    comparison = judge(old, new)
    assert failing(comparison) == {"memory": 1}
    assert "activation checkpointing: 0 modules" in comparison.results["memory"].causes[0]


def test_a_tied_tensor_is_matched_by_any_of_its_names(judge):
    old, new = training(), training()
    for events, name, alias in ((old, "head.weight", "embedding.weight"), (new, "embedding.weight", "head.weight")):
        for event in of(events, "tensors"):
            for entry in event["entries"]:
                if entry["name"] == "head.weight":
                    entry.update(name=name, aliases=[alias])
    assert failing(judge(old, new)) == {}


def test_a_broken_tie_leaves_a_tensor_over(judge):
    old, new = training(), training()
    for event in of(old, "tensors"):
        for entry in event["entries"]:
            if entry["name"] == "head.weight":
                entry["aliases"] = ["embedding.weight"]
    for event in of(new, "tensors"):
        extra = [copy.deepcopy(entry) for entry in event["entries"] if entry["name"] == "head.weight"]
        event["entries"] += [{**entry, "name": "embedding.weight"} for entry in extra]
    result = judge(old, new).results["gradients"]
    assert (result.step, result.tensor) == (0, "head.weight")
    assert "exists on the new side only" in result.reason


def test_steps_without_tensors_are_not_compared_and_do_not_fail(judge):
    old, new = training(), training()
    for events in (old, new):
        for rank in events:
            events[rank] = [event for event in events[rank] if event["event"] != "tensors"]
    comparison = judge(old, new)
    assert failing(comparison) == {}
    assert comparison.results["gradients"].outcome == "not compared"


def test_a_killed_rank_leaves_half_a_line(tmp_path: Path):
    written(training(steps=2), tmp_path)
    with open(tmp_path / "rank1.jsonl", "a") as file:
        file.write('{"event": "loss", "st')
    assert read_record(tmp_path).step_count == 2


def test_a_rank_that_trains_twice_goes_on_counting(tmp_path: Path):
    events = training(steps=2)
    written(events, tmp_path)
    for rank in events:
        (tmp_path / f"rank{rank}-1.jsonl").write_text((tmp_path / f"rank{rank}.jsonl").read_text())
    record = read_record(tmp_path)
    assert record.step_count == 4
    assert (3, 0, 0) in record.losses


def test_noise_of_the_old_side_is_the_measure_in_noise_mode(judge):
    def noisy(size: float) -> Events:
        events = training()
        for name in SHAPES:
            for step in range(3):
                values = [v * (1 + size * (-1) ** i) for i, v in enumerate(values_of(name, step, "gradient"))]
                replace_tensor(events, "fsdp2", "gradient", step, name, values)
        return events

    assert failing(judge(training(), noisy(5e-5), control=noisy(1e-5))) == {}
    assert failing(judge(training(), noisy(1e-3), control=noisy(1e-5))) == {"gradients": 0}


def test_parameters_with_zero_gradient_are_left_out_in_noise_mode(judge):
    def with_dead_bias(seed: int) -> Events:
        events = training()
        for step in range(3):
            for kind, scale in (("gradient", 1e-9), ("parameter", 1.0)):
                values = [scale * v for v in values_of("layer.bias", step + seed, kind)]
                replace_tensor(events, "fsdp2", kind, step, "layer.bias", values)
        return events

    comparison = judge(with_dead_bias(0), with_dead_bias(7), control=with_dead_bias(0))
    assert failing(comparison) == {}
    assert "zero gradient left out" in comparison.results["parameters"].reason


def test_a_changed_optimizer_is_described_again(tmp_path: Path):
    events = training(steps=2)
    later = {**optimizer_event("fsdp2"), "step": 1}
    later["groups"] = [{"names": ["layer.weight"], "numel": 8}]
    for rank in events:
        events[rank].insert(2, later)
    record = written(events, tmp_path)
    from to_fsdp2.equivalence.check_scalars import by_parameter

    assert len(by_parameter(record, 0, 0)) == 3
    assert list(by_parameter(record, 1, 0)) == [frozenset(("layer.weight",))]
