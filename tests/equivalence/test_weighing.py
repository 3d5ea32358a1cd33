"""What decides: the results of training; how it got there warns, unless the results cannot show it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hand_made import SHAPES, Events, of, replace_tensor, sketch, training, values_of, written
from to_fsdp2.equivalence.comparison import Comparison, compare
from to_fsdp2.equivalence.headline import headline, sentence
from to_fsdp2.equivalence.tolerance import Tolerance
from to_fsdp2.equivalence.verdict import CheckResult
from to_fsdp2.equivalence.weighing import weigh

Unit = tuple[str, str, int, bool, list[int]]


def judged(old: Events, new: Events, tmp_path: Path) -> Comparison:
    comparison = compare(written(old, tmp_path / "old"), written(new, tmp_path / "new"), Tolerance())
    weigh(comparison)
    return comparison


def named(comparison: Comparison, outcome: str) -> set[str]:
    return {name for name, result in comparison.results.items() if result.outcome == outcome}


def without_clip_calls(events: Events) -> Events:
    return {rank: [event for event in lines if event["event"] != "clip"] for rank, lines in events.items()}


def test_a_norm_that_the_script_computes_itself_is_a_warning_where_the_limit_was_reached(tmp_path: Path):
    comparison = judged(training("fsdp1"), without_clip_calls(training()), tmp_path)
    assert (named(comparison, "fail"), named(comparison, "warn")) == (set(), {"clipping"})
    assert "the results of training are the same" in comparison.results["clipping"].reason


def test_but_not_where_no_step_reached_the_limit(tmp_path: Path):
    old, new = training("fsdp1"), without_clip_calls(training())
    for event in of(old, "clip"):
        event["max_norm"] = 100.0
    assert named(judged(old, new, tmp_path), "fail") == {"clipping"}


def test_nor_where_the_limit_that_was_not_reached_is_another_one(tmp_path: Path):
    old, new = training("fsdp1"), training()
    for events, limit in ((old, 100.0), (new, 1.0)):
        for event in of(events, "clip"):
            event["max_norm"] = limit
    assert named(judged(old, new, tmp_path), "fail") == {"clipping"}


def test_a_gradient_that_is_read_at_another_moment_is_a_warning(tmp_path: Path):
    new = training()
    replace_tensor(new, "fsdp2", "gradient", 1, "layer.weight", [9.0] * 8)
    comparison = judged(training(), new, tmp_path)
    assert (named(comparison, "fail"), named(comparison, "warn")) == (set(), {"gradients"})


def test_it_stays_a_failure_where_the_parameters_differ_too_or_were_not_compared(tmp_path: Path):
    new = training()
    replace_tensor(new, "fsdp2", "gradient", 1, "layer.weight", [9.0] * 8)
    replace_tensor(new, "fsdp2", "parameter", 1, "layer.weight", [9.0] * 8)
    assert named(judged(training(), new, tmp_path / "a"), "fail") == {"gradients", "parameters"}
    old, new = training(), training()
    replace_tensor(new, "fsdp2", "gradient", 1, "layer.weight", [9.0] * 8)
    for events in (old, new):
        for rank in events:
            events[rank] = [e for e in events[rank] if e.get("kind") not in ("parameter", "initial")]
    assert named(judged(old, new, tmp_path / "b"), "fail") == {"gradients"}


def with_traffic(events: Events, op: str, **change: int) -> Events:
    for event in of(events, "step"):
        next(entry for entry in event["collectives"] if entry["op"] == op).update(change)
    return events


@pytest.mark.parametrize(
    ("op", "change"),
    [
        ("all_gather", {"count": 5, "bytes": 330}),
        ("all_gather", {"count": 8, "bytes": 640}),
        ("reduce_scatter", {"count": 1}),
        ("reduce_scatter", {"count": 1, "bytes": 60}),
    ],
)
def test_other_calls_that_carry_as_much_or_gather_again_are_a_warning(tmp_path: Path, op: str, change: dict):
    comparison = judged(training("fsdp1"), with_traffic(training(), op, **change), tmp_path)
    assert (named(comparison, "fail"), named(comparison, "warn")) == (set(), {"communication"})


@pytest.mark.parametrize(("op", "change"), [("all_gather", {"bytes": 160}), ("reduce_scatter", {"bytes": 160})])
def test_parameters_that_stay_gathered_and_gradients_reduced_again_decide(tmp_path: Path, op: str, change: dict):
    assert named(judged(training("fsdp1"), with_traffic(training(), op, **change), tmp_path), "fail") == {"communication"}


def test_what_fully_shard_pads_is_not_counted_as_reduced_again(tmp_path: Path):
    old, new = training("ddp"), training()
    for events in (old, new):
        for event in of(events, "tensors"):
            # A layer with one output: its first dimension of 1 is padded to the number of ranks.
            whole = {"shape": [1, 2], **sketch([1.0, 2.0])}
            event["entries"] = [{**entry, **whole} for entry in event["entries"][:1] if event in events[0]]
    with_traffic(old, "all_reduce", bytes=8)
    assert named(judged(old, with_traffic(new, "reduce_scatter", bytes=16), tmp_path / "a"), "fail") == set()
    assert named(judged(old, with_traffic(new, "reduce_scatter", bytes=32), tmp_path / "b"), "fail") == {"communication"}


def with_units(events: Events, *units: Unit) -> Events:
    fields = ("module", "class", "elements", "kept", "ranks")
    for event in of(events, "optimizer"):
        event["models"][0]["unit_modules"] = [dict(zip(fields, unit, strict=True)) for unit in units]
    return events


ROOT: Unit = ("", "Net", 10, True, [0, 1])
BLOCKS: list[Unit] = [("blocks.0", "Block", 5, False, [0, 1]), ("blocks.1", "Block", 5, False, [0, 1])]


def test_a_unit_that_is_missing_is_named(tmp_path: Path):
    old = with_units(training("fsdp1"), ROOT, *BLOCKS)
    new = with_units(training(), ("", "Net", 15, True, [0, 1]), BLOCKS[0])
    result = judged(old, new, tmp_path).results["communication"]
    assert (result.outcome, result.tensor) == ("fail", "blocks.1")
    assert "blocks.1 (Block) is no unit any more" in result.reason


def test_another_choice_of_units_that_gathers_no_more_at_one_time_is_right(tmp_path: Path):
    old = with_units(training("fsdp1"), ROOT, *BLOCKS)
    halves: list[Unit] = [(f"blocks.{i}.half", "Half", 5, False, [0, 1]) for i in range(2)]
    assert named(judged(old, with_units(training(), ROOT, *halves), tmp_path), "fail") == set()


def test_shards_on_other_ranks_are_seen_although_all_numbers_are_equal(tmp_path: Path):
    old = with_units(training("fsdp1", 4), ("", "Net", 20, True, [0, 1]))
    new = with_units(training("fsdp2", 4), ("", "Net", 20, True, [0, 2]))
    result = judged(old, new, tmp_path).results["communication"]
    assert result.outcome == "fail"
    assert "ranks 0, 2 together, on the old side by ranks 0, 1" in result.reason


def evaluated(events: Events, outputs: dict[int, list[float]]) -> Events:
    for rank, values in outputs.items():
        answer = {"shape": [len(values)], "dtype": "float32", **sketch(values)}
        events[rank].append({"event": "evaluation", "step": 2, "call": 0, "class": "Net", "outputs": [answer]})
    return events


def test_outputs_in_eval_mode_are_compared_rank_by_rank(tmp_path: Path):
    old = evaluated(training("ddp"), {0: [1.0, 2.0], 1: [3.0, 4.0]})
    new = evaluated(training(), {0: [1.0, 2.0], 1: [3.0, 4.5]})
    result = judged(old, new, tmp_path).results["evaluation"]
    assert (result.outcome, result.step) == ("fail", 2)
    assert "rank 1, call 0 of Net" in result.reason


def test_a_rank_that_evaluates_on_the_new_side_only_is_not_compared(tmp_path: Path):
    old = evaluated(training("ddp"), {0: [1.0, 2.0]})
    new = evaluated(training(), {0: [1.0, 2.0], 1: [3.0, 4.5]})
    result = judged(old, new, tmp_path).results["evaluation"]
    assert result.outcome == "pass"
    assert "1 calls" in result.reason


def test_a_lost_sync_switch_is_the_headline_of_the_rounding_that_it_makes(tmp_path: Path):
    new = with_traffic(training(micros=2), "reduce_scatter", count=4, bytes=160)
    for name in SHAPES:
        values = [v * (1 + 6e-8 * (-1) ** i) for i, v in enumerate(values_of(name, 0, "gradient"))]
        replace_tensor(new, "fsdp2", "gradient", 0, name, values)
        replace_tensor(new, "fsdp2", "parameter", 0, name, values_of(name, 7, "parameter"))
    results = list(judged(training("fsdp1", micros=2), new, tmp_path).results.values())
    assert headline(results).name == "communication"
    assert "likely: gradients are reduced in more micro-steps" in sentence(results)


def test_a_loss_that_differs_is_the_headline_of_the_gradients_that_follow(tmp_path: Path):
    new = training()
    for event in of(new, "loss", 0):
        event["value"] *= 2
    replace_tensor(new, "fsdp2", "gradient", 0, "layer.weight", [9.0] * 8)
    assert headline(list(judged(training(), new, tmp_path).results.values())).name == "loss"


def test_a_process_that_uses_more_memory_is_a_warning(tmp_path: Path):
    old, new = training("fsdp1"), training()
    for event in of(new, "step"):
        event["memory"]["rss_peak"] = 2 << 30
    comparison = judged(old, new, tmp_path)
    assert (named(comparison, "fail"), named(comparison, "warn")) == (set(), {"memory"})
    assert "up to 2048 MiB" in comparison.results["memory"].reason


def test_other_numbers_of_calls_are_no_headline_of_results_that_differ():
    calls = CheckResult("communication", "fail", "at step 1 the new side makes 2 reduce_scatter calls", 1, difference=0.0)
    clipping = CheckResult("clipping", "fail", "the limit is 0.1, on the old side 1.0", 2)
    assert headline([calls, clipping]) is clipping
    assert headline([replace(calls, conclusive=True), clipping]).name == "communication"


def test_a_tripwire_decides_and_is_the_headline_of_what_follows_from_it(tmp_path: Path):
    new = training()
    event = {"event": "tripwire", "step": 1, "kind": "data", "rule": "FS702", "text": "assigns .data", "place": "train.py:7"}
    for rank in new:
        new[rank].append(event)
    replace_tensor(new, "fsdp2", "parameter", 1, "layer.weight", [9.0] * 8)
    results = list(judged(training(), new, tmp_path).results.values())
    first = headline(results)
    assert (first.name, first.places) == ("tripwires", ["train.py:7 assigns .data (FS702)"])
    assert "also: parameters" in sentence(results)
