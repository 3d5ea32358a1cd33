"""What the verdict begins with: the check that explains the others, and its likeliest cause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hand_made import SHAPES, Events, entry, of, replace_tensor, training, values_of, written
from to_fsdp2.equivalence.causes import add_causes
from to_fsdp2.equivalence.comparison import compare
from to_fsdp2.equivalence.headline import sentence
from to_fsdp2.equivalence.tolerance import Tolerance


@pytest.fixture
def first_words(tmp_path: Path) -> Callable[[Events, Events], str]:
    def run(old: Events, new: Events) -> str:
        comparison = compare(written(old, tmp_path / "old"), written(new, tmp_path / "new"), Tolerance())
        add_causes(comparison)
        return sentence(list(comparison.results.values()))

    return run


def without_gradient(events: Events, names: set[str]) -> None:
    for event in of(events, "tensors", kind="gradient"):
        for found in (found for found in event["entries"] if found["name"] in names):
            keep = {field: found[field] for field in ("name", "shape", "dtype", "replica", "count")}
            found.clear()
            found.update(keep, missing=True)


def test_some_parameters_without_gradients_are_frozen_or_left_out(first_words) -> None:
    new = training()
    without_gradient(new, {"head.weight"})
    assert "head.weight has no gradient on the new side" in first_words(training(), new)
    assert "these parameters alone have none: they are frozen" in first_words(training(), new)


def test_no_gradients_at_all_are_no_frozen_parameters(first_words) -> None:
    new = training()
    without_gradient(new, set(SHAPES))
    assert "gradients are never synchronised again" in first_words(training(), new)


def test_a_clip_call_behind_the_step_is_not_called_gone(first_words) -> None:
    new = training()
    for rank in new:
        for event in of({rank: new[rank]}, "clip"):
            event["step"] += 1
    assert "before the optimizer's step, the new one after it" in first_words(training(), new)


def with_buffer(values: list[list[float]]) -> Events:
    """A run with a buffer that has these values after its steps, and with a loss of its own if they are unusual."""
    events = training()
    for rank in events:
        for step, numbers in enumerate(values):
            tensors = [entry("scale", numbers, (2,), str(rank))]
            place = next(n for n, event in enumerate(events[rank]) if event["event"] == "step" and event["step"] == step)
            events[rank].insert(place, {"event": "tensors", "step": step, "optimizer": 0, "kind": "buffer", "entries": tensors})
    return events


def test_a_buffer_that_training_does_not_change_explains_the_loss(first_words) -> None:
    new = with_buffer([[1.0, 1.5]] * 3)
    for event in of(new, "loss"):
        event["value"] *= 1.01
    assert first_words(with_buffer([[1.0, 1.0]] * 3), new).startswith("buffers: at step 0 scale differs")


def test_a_buffer_that_follows_training_does_not(first_words) -> None:
    new = with_buffer([[1.0, 1.5], [2.0, 2.5], [3.0, 3.5]])
    for event in of(new, "loss"):
        event["value"] *= 1.01
    assert first_words(with_buffer([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]), new).startswith("loss: at step 0")


def test_gradients_that_were_clipped_scaled_name_the_scaler(first_words) -> None:
    old, new = training(), training()
    for events in (old, new):
        for rank in events:
            scale = {"event": "scaler", "step": 0, "action": "scale", "scale": 1024.0}
            events[rank].insert(2, scale)
    for name in SHAPES:
        replace_tensor(new, "fsdp2", "gradient", 0, name, [1024.0 * value for value in values_of(name, 0, "gradient")])
    assert "1024 times as large, the scaler's scale: unscale_() is missing or comes too late" in first_words(old, new)


def test_steps_past_the_scaler_are_named(first_words) -> None:
    old, new = training(), training()
    for events, actions in ((old, ("scale", "step", "update")), (new, ("scale", "update"))):
        for rank in events:
            events[rank][2:2] = [{"event": "scaler", "step": 0, "action": action, "scale": 1024.0} for action in actions]
    assert "optimizer.step() took the place of scaler.step(optimizer)" in first_words(old, new)


def test_other_numbers_of_steps_explain_a_loss_that_differs_later(first_words) -> None:
    new = training(steps=4)
    for event in of(new, "loss", 2):
        event["value"] *= 2
    for name in SHAPES:
        replace_tensor(new, "fsdp2", "gradient", 2, name, [3 * value + 1 for value in values_of(name, 2, "gradient")])
    assert "the new side makes 4 steps, the old one 3" in first_words(training(), new)
