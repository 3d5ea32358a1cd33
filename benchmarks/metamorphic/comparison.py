"""What two outcomes of a corpus program differ in: numbers of the output, tensors of the files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from to_fsdp2.equivalence import checkpoint_files

if TYPE_CHECKING:
    from .launch import Outcome

NUMBER = re.compile(r"-?(?:\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+|\binf\b|\bnan\b)")


def corpus(files: Sequence[str], old: Outcome, new: Outcome, printed_within: float, parameters_within: float) -> str:
    """The first difference between two outcomes, or an empty text.

    The output has to be equal but for decimal numbers; `files` hold tensors. Both may differ by so much.
    """
    for number, (one, other) in enumerate(zip_longest(old.printed, new.printed, fillvalue="")):
        if difference := _printed(one, other, printed_within):
            return f"stage {number}: {difference}"
    for name in files:
        if not (new.folder / name).exists():
            return f"{name} was not written"
        if difference := _tensors(_flat(old.folder / name), _flat(new.folder / name), parameters_within):
            return f"{name}: {difference}"
    return ""


def _printed(old: str, new: str, tolerance: float) -> str:
    for line, other in zip_longest(old.splitlines(), new.splitlines(), fillvalue=""):
        if NUMBER.sub("#", line) != NUMBER.sub("#", other):
            return f"printed {other[:200]!r}, not {line[:200]!r}"
        for one, two in zip(NUMBER.findall(line), NUMBER.findall(other), strict=True):
            if one != two and not abs(float(one) - float(two)) <= tolerance:
                return f"printed {two} for {one} in {line[:200]!r}"
    return ""


def _tensors(old: dict[str, torch.Tensor], new: dict[str, torch.Tensor], tolerance: float) -> str:
    if old.keys() != new.keys():
        return f"keys differ: {sorted(old.keys() ^ new.keys())[:6]}"
    for name, tensor in old.items():
        if difference := different(tensor, new[name], tolerance):
            return f"{name} {difference}"
    return ""


def different(old: torch.Tensor, new: torch.Tensor, tolerance: float) -> str:
    """How two tensors differ, or an empty text; one without dimensions may have got one of size 1."""
    if {old.shape, new.shape} == {torch.Size(()), torch.Size((1,))}:
        old, new = old.reshape(1), new.reshape(1)
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        return f"is {tuple(new.shape)} {new.dtype}, not {tuple(old.shape)} {old.dtype}"
    if torch.equal(old, new):
        return ""
    difference = (old.double() - new.double()).abs().max().item()
    return "" if difference <= tolerance else f"differs by {difference:.3g}"


def _flat(path: Any) -> dict[str, torch.Tensor]:
    return dict(_walk(checkpoint_files.read(path)[1], ""))


def _walk(value: Any, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield prefix, value
    elif isinstance(value, checkpoint_files.Shards):
        raise checkpoint_files.UnreadableCheckpoint(f"{prefix} was saved in shards")
    elif isinstance(value, dict):
        for key, item in value.items():
            # Optimizer states are keyed by position before and by name after the migration.
            if key not in ("optimizer", "optim"):
                yield from _walk(item, f"{prefix}/{key}")
