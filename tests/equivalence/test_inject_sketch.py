"""Sketches: pieces of any sharding add up, and differences are seen and measured."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from to_fsdp2.equivalence.inject._to_fsdp2_recorder.settings import Level
from to_fsdp2.equivalence.inject._to_fsdp2_recorder.sketch import sketch

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]


def added(*parts: dict) -> dict:
    """What the sketches of the pieces of one tensor add up to."""
    return {
        "count": sum(part["count"] for part in parts),
        "sum": sum(part["sum"] for part in parts),
        "sumsq": sum(part["sumsq"] for part in parts),
        "absmax": max(part["absmax"] for part in parts),
        "projections": [sum(values) for values in zip(*(part["projections"] for part in parts), strict=True)],
        "checksum": f"{sum(int(part['checksum'], 16) for part in parts) % 2**64:016x}",
    }


def difference(a: dict, b: dict) -> float:
    """The estimate of docs/record-format.md."""
    squares = [(x - y) ** 2 for x, y in zip(a["projections"], b["projections"], strict=True)]
    return math.sqrt(sum(squares) / len(squares)) / math.sqrt(max(a["sumsq"], b["sumsq"]))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 300_000),
    st.lists(st.floats(0, 1), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 2**31),
)
def test_pieces_add_up(size: int, cuts: list[float], dtype: torch.dtype, seed: int) -> None:
    values = (torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 50).to(dtype)
    bounds = [0, *sorted(int(cut * size) for cut in cuts), size]
    whole = sketch(values)
    parts = [sketch(values[low:high], low) for low, high in pairwise(bounds) if low < high]
    sums = added(*parts)
    assert (sums["count"], sums["checksum"], sums["absmax"]) == (size, whole["checksum"], whole["absmax"])
    scale = math.sqrt(whole["sumsq"]) + 1
    assert sums["projections"] == pytest.approx(whole["projections"], abs=1e-11 * scale)
    assert sums["sumsq"] == pytest.approx(whole["sumsq"], rel=1e-12)


def test_scattered_pieces_are_those_of_the_whole() -> None:
    values, index = torch.randn(70_000), torch.arange(70_000)
    even = index % 2 == 0
    sums = added(sketch(values[even], index[even]), sketch(values[~even], index[~even]))
    whole = sketch(values)
    assert sums["checksum"] == whole["checksum"]
    assert sums["projections"] == pytest.approx(whole["projections"], abs=1e-9)


def test_exchanged_elements_are_seen() -> None:
    values = torch.arange(1.0, 5001.0)
    exchanged = values.clone()
    exchanged[[10, 4000]] = values[[4000, 10]]
    assert sketch(values)["checksum"] != sketch(exchanged)["checksum"]
    assert sketch(values)["sumsq"] == sketch(exchanged)["sumsq"]
    matrix = torch.randn(64, 64)
    assert difference(sketch(matrix.flatten()), sketch(matrix.T.flatten())) > 0.5


@pytest.mark.parametrize("size", [1e-7, 1e-4, 1e-1])
def test_the_estimate_is_near_the_truth(size: float) -> None:
    random = torch.Generator().manual_seed(3)
    values = torch.randn(50_000, generator=random, dtype=torch.float64)
    changed = values + size * torch.randn(50_000, generator=random, dtype=torch.float64)
    truth = float((values - changed).norm() / changed.norm())
    assert 0.3 * truth < difference(sketch(values), sketch(changed)) < 1.6 * truth


def test_zeros_of_either_sign_are_equal() -> None:
    assert sketch(torch.tensor([0.0, 1.0]))["checksum"] == sketch(torch.tensor([-0.0, 1.0]))["checksum"]


def test_values_that_are_not_finite_are_counted_apart() -> None:
    result = sketch(torch.tensor([1.0, float("nan"), -3.0, float("inf")]))
    assert (result["nonfinite"], result["sum"], result["sumsq"], result["absmax"]) == (2, -2.0, 10.0, 3.0)
    assert all(math.isfinite(value) for value in result["projections"])


def test_complex_elements_count_once() -> None:
    values = torch.complex(torch.randn(100), torch.randn(100))
    parts = added(sketch(values[:30]), sketch(values[30:], 30))
    assert (parts["count"], parts["checksum"]) == (100, sketch(values)["checksum"])


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("auto", [0, 1, 2, 3, 4, 5, 6, 7, 8, 16]),
        ("full", list(range(20))),
        ("every:6", [0, 6, 12, 18]),
        ("first:3", [0, 1, 2]),
        ("loss", []),
    ],
)
def test_levels(text: str, steps: list[int]) -> None:
    level = Level.parse(text)
    assert [step for step in range(20) if level.records(step)] == steps
    assert str(level) == text


@pytest.mark.parametrize("text", ["", "some", "every", "every:0", "first:-1", "auto:3", "every:x"])
def test_levels_that_do_not_exist(text: str) -> None:
    with pytest.raises(ValueError, match="TO_FSDP2_RECORD_LEVEL"):
        Level.parse(text)
