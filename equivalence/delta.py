"""Delta debugging (Zeller, "Isolating Cause-Effect Chains", 2002): the smallest difference between what passes and what fails.

Not what fails alone is looked for, but two sets of changes, one within the other, of which the smaller passes and the larger
fails. Where changes need each other, most sets do neither; each one that does either brings the two closer together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

Answer = Literal["passes", "fails", "neither"]
Test = Callable[[frozenset[int]], Answer]


def isolate(count: int, test: Test) -> tuple[frozenset[int], frozenset[int]]:
    """A set that passes and one around it that fails, as near to each other as tests of their parts can bring them.

    Of `count` changes, none is known to pass and all are known to fail. No set is tested twice.
    """
    passing, failing = frozenset[int](), frozenset(range(count))
    answers: dict[frozenset[int], Answer] = {passing: "passes", failing: "fails"}
    parts = 2
    while len(failing - passing) > 1:
        between = sorted(failing - passing)
        found = _conclusive(passing, failing, _split(between, parts), test, answers)
        if found is not None:
            passing, failing = (found, failing) if answers[found] == "passes" else (passing, found)
            parts = max(2, min(parts - 1, len(failing - passing)))
        elif parts < len(between):
            parts = min(2 * parts, len(between))
        else:
            break
    return passing, failing


def _conclusive(
    passing: frozenset[int], failing: frozenset[int], parts: list[frozenset[int]], test: Test,
    answers: dict[frozenset[int], Answer],
) -> frozenset[int] | None:  # fmt: skip
    """The first set between the two that passes or fails: all but a part, or a part alone."""
    for part in parts:
        for chosen in (failing - part, passing | part):
            if chosen not in answers:
                answers[chosen] = test(chosen)
            if chosen not in (passing, failing) and answers[chosen] != "neither":
                return chosen
    return None


def _split(items: Sequence[int], parts: int) -> list[frozenset[int]]:
    size, more = divmod(len(items), parts)
    ends = [size * number + min(number, more) for number in range(parts + 1)]
    return [frozenset(items[start:end]) for start, end in pairwise(ends)]
