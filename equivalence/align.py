"""Which tensor of the new side is which of the old side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .record import Record, TensorKey
from .sketch import Tensor


@dataclass(frozen=True)
class Pair:
    """The same tensor on both sides, under the old side's key; None where one side does not have it."""

    key: TensorKey
    old: Tensor | None
    new: Tensor | None


def match_names(old: Iterable[frozenset[str]], new: Iterable[frozenset[str]]) -> dict[frozenset[str], frozenset[str]]:
    """Which set of names of the new side is which of the old side: equal sets first, then any common name.

    The sets are the names of one tensor (several for a tied one). Each is matched at most once, so that a tie that
    exists on one side only leaves a name over on the other.
    """
    remaining = dict.fromkeys(new)
    matched: dict[frozenset[str], frozenset[str]] = {}
    partial: list[frozenset[str]] = []
    for names in old:
        if names in remaining:
            matched[names] = names
            del remaining[names]
        else:
            partial.append(names)
    by_name = {name: names for names in remaining for name in names}
    for names in partial:
        found = next((by_name[name] for name in sorted(names) if by_name.get(name) in remaining), None)
        if found is not None:
            matched[names] = found
            del remaining[found]
    return matched


def pairs(old: Record, new: Record, step: int, kind: str) -> Iterator[Pair]:
    """All tensors of this kind at this step, in the old side's order; then those that only the new side has."""
    groups_old = _grouped(old.tensors.get(step, {}), kind)
    groups_new = _grouped(new.tensors.get(step, {}), kind)
    for place in dict.fromkeys((*groups_old, *groups_new)):
        tensors_old, tensors_new = groups_old.get(place, {}), groups_new.get(place, {})
        optimizer, state = place
        matched = match_names(tensors_old, tensors_new)
        for names, tensor in tensors_old.items():
            counterpart = tensors_new[matched[names]] if names in matched else None
            yield Pair(TensorKey(kind, optimizer, tensor.name, state), tensor, counterpart)
        used = set(matched.values())
        for names, tensor in tensors_new.items():
            if names not in used:
                yield Pair(TensorKey(kind, optimizer, tensor.name, state), None, tensor)


def _grouped(tensors: dict[TensorKey, Tensor], kind: str) -> dict[tuple[int, str], dict[frozenset[str], Tensor]]:
    groups: dict[tuple[int, str], dict[frozenset[str], Tensor]] = {}
    for key, tensor in tensors.items():
        if key.kind == kind:
            groups.setdefault((key.optimizer, key.state), {})[tensor.names] = tensor
    return groups


def shared_steps(old: Record, new: Record) -> list[int]:
    """Steps that both sides made."""
    return sorted(old.steps.keys() & new.steps.keys())


def recorded_steps(old: Record, new: Record, kind: str) -> list[int]:
    """Steps at which both sides recorded tensors and at least one of them some of this kind: having none of a kind is a
    difference."""
    return [
        step
        for step in sorted(old.tensors.keys() & new.tensors.keys())
        if any(key.kind == kind for side in (old, new) for key in side.tensors[step])
    ]
