"""What the ranks of a traced run saw, as one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .record import Event
from .terminal import ranges

Facts = dict[str, Any]


def join_ranks(observed: Mapping[int, Event], name: Callable[[str], str], hash_of: Callable[[str], str]) -> Facts:
    """The fields of a trace. ``name`` gives a file's name as the trace has it, ``hash_of`` the hash of its content."""
    made: dict[str, list[Facts]] = {"wrap": [], "optimizer": []}
    order: list[str] = []
    numbers = {rank: _numbered(event, made, order) for rank, event in observed.items()}
    renamed = [_renamed(event, numbers[rank], name) for rank, event in observed.items()]
    return {
        "files": _files(observed, name, hash_of),
        "wraps": _renamed(made["wrap"], {}, name), "optimizers": _renamed(made["optimizer"], {}, name), "order": order,
        "calls": _joined((event["calls"] for event in renamed), "called"),
        "values": _joined((event["values"] for event in renamed), "held"),
        "passed": _distinct(fact for event in renamed for fact in event["passed"]),
        "owners": _joined((event["owners"] for event in renamed), "held"),
        "state_dicts": _distinct(fact for event in renamed for fact in event["state_dicts"]),
    }  # fmt: skip


def _numbered(event: Event, made: dict[str, list[Facts]], order: list[str]) -> dict[str, dict[int, int]]:
    """A rank's numbers of wraps and optimizers, and those of all ranks together; new ones are added to ``made``."""
    numbers: dict[str, dict[int, int]] = {"wrap": {}, "optimizer": {}}
    own = {"wrap": event["wraps"], "optimizer": event["optimizers"]}
    for entry in event["order"]:
        kind, number = entry.split()[0], int(entry.split()[1])
        found = own[kind][number]
        taken = set(numbers[kind].values())
        same = (
            index for index, other in enumerate(made[kind])
            if index not in taken and all(other.get(key) == found.get(key) for key in ("places", "wrapper", "class", "module"))
        )  # fmt: skip
        index = next(same, None)
        if index is None:
            index = len(made[kind])
            made[kind].append(dict(found))
            order.append(f"{kind} {index}")
        elif kind == "wrap":
            # Under FSDP1 a rank has gradients of those parameters alone of which it holds a part.
            kept = made[kind][index]
            kept["always_used"] = kept["always_used"] and found["always_used"]
            kept["without_gradient"] = [p for p in kept["without_gradient"] if p in found["without_gradient"]]
        numbers[kind][number] = index
    for number, found in enumerate(own["optimizer"]):
        made["optimizer"][numbers["optimizer"][number]]["wraps"] = [numbers["wrap"][wrap] for wrap in found["wraps"]]
    return numbers


def _renamed(value: Any, numbers: Mapping[str, Mapping[int, int]], name: Callable[[str], str]) -> Any:
    """A tree of facts with files, places and numbers as the trace has them."""
    if isinstance(value, list):
        return [_renamed(item, numbers, name) for item in value]
    if not isinstance(value, dict):
        return value
    renamed = {}
    for key, item in value.items():
        if key == "file":
            renamed[key] = name(item)
        elif key == "place":
            renamed[key] = _placed(item, name)
        elif key == "places":
            renamed[key] = [_placed(place, name) for place in item]
        elif key in numbers and isinstance(item, int):
            renamed[key] = numbers[key][item]
        else:
            renamed[key] = _renamed(item, numbers, name)
    return renamed


def _placed(place: str, name: Callable[[str], str]) -> str:
    file, _, line = place.rpartition(":")
    return f"{name(file)}:{line}" if file else place


def _files(observed: Mapping[int, Event], name: Callable[[str], str], hash_of: Callable[[str], str]) -> Facts:
    """Every file with its hash, the lines that all ranks reached, and for each rank those that not all did."""
    files: Facts = {}
    for file in sorted({file for event in observed.values() for file in event["lines"]}):
        lines = {rank: set(event["lines"].get(file, ())) for rank, event in observed.items()}
        common = set.intersection(*lines.values())
        files[name(file)] = {"sha256": hash_of(file), "lines": ranges(sorted(common))}
        alone = {str(rank): ranges(sorted(own - common)) for rank, own in lines.items() if own - common}
        if alone:
            files[name(file)]["lines_of_some_ranks"] = alone
    return files


def _joined(lists: Iterable[list[Facts]], inner: str) -> list[Facts]:
    """The entries of all ranks by their place, with what each saw there."""
    joined: dict[str, Facts] = {}
    for entry in (entry for entries in lists for entry in entries):
        key = json.dumps({name: value for name, value in entry.items() if name != inner})
        kept = joined.setdefault(key, {**entry, inner: []})
        kept[inner] = _distinct([*kept[inner], *entry[inner]])
    return sorted(joined.values(), key=lambda entry: (entry["file"], entry.get("line", 0), entry.get("end_line", 0)))


def _distinct(facts: Iterable[Facts]) -> list[Facts]:
    return list({json.dumps(fact): fact for fact in facts}.values())
