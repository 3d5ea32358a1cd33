"""How two checkpoints differ, in the terms of what people do wrong when they save one.

A local shard saved as if it were the whole tensor, DTensors in a torch.save file, missing buffers, a missing
optimizer, a cast, changed key prefixes: each is told apart, because each breaks another thing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .checkpoint_files import Shards
from .checkpoint_names import Contents, ModelState, OptimizerState
from .verdict import Outcome

_CHUNK = 1 << 20
_VARIES = re.compile(r"time|date|elapsed|duration|seconds|speed|throughput|mfu|tokens_per|hostname|run_id|wandb", re.I)
_MARKS = frozenset({"_wrapped_like"})
"""What helpers note on a plain copy of a model that is pickled as a whole: nothing that a reader of the file computes with."""


@dataclass(frozen=True)
class Difference:
    """One thing that differs. `kind` groups what is reported together; `text` is about the tensor or key."""

    kind: str
    outcome: Outcome
    text: str
    tensor: str | None = None
    size: float | None = None


def relative_difference(old: torch.Tensor, new: torch.Tensor) -> float:
    """‖new - old‖ / max(‖old‖, ‖new‖) in float64; equal infinities and NaNs in the same places are equal."""
    if torch.equal(old, new):
        return 0.0
    total, norm_old, norm_new = 0.0, 0.0, 0.0
    for a, b in zip(old.reshape(-1).split(_CHUNK), new.reshape(-1).split(_CHUNK), strict=True):
        a, b = _wide(a), _wide(b)
        delta = b - a
        if not delta.isfinite().all():
            same = (a == b) | (a.isnan() & b.isnan())
            delta = delta.masked_fill(same, 0)
            a, b = (side.nan_to_num(0.0, 0.0, 0.0) for side in (a, b))
        total += float(delta.dot(delta))
        norm_old += float(a.dot(a))
        norm_new += float(b.dot(b))
    if total == 0:
        return 0.0
    size = max(norm_old, norm_new)
    return math.sqrt(total / size) if math.isfinite(total) and size > 0 else math.inf


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()  # a file may hold parameters
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double().flatten()


def differences(
    old: Contents,
    new: Contents,
    tolerance: float,
    buffers: Iterable[str] = (),
    tied: Iterable[Iterable[str]] = (),
) -> list[Difference]:
    """Everything in which `new` differs from `old`.

    tolerance: the largest relative difference of a tensor that passes (0: bitwise). buffers: canonical names
    of the model's buffers, to tell a missing buffer from a missing parameter. tied: groups of names of one
    parameter.
    """
    found: list[Difference] = []
    aliases = [set(group) for group in tied]
    aliases += [group for side in (old, new) for model in side.models.values() for group in model.aliases()]
    for path_old, path_new in _paired(old.models, new.models):
        if path_old is None:
            found.append(Difference("added", "fail", f"section {path_new!r} is new"))
        elif path_new is None:
            lost = ", ".join(sorted(old.models[path_old].tensors)[:3])
            text = f"the old file's section {path_old!r} ({lost}, …) is missing"
            found.append(Difference("missing section", "fail", text, path_old))
        else:
            found += _moved(path_old, path_new)
            other = _section_held(old.models, path_old, new.models[path_new])
            if other is not None:
                text = f"section {path_new!r} holds what the old file has in {other!r}"
                found.append(Difference("wrong section", "fail", text, path_new))
                continue
            found += _models(old.models[path_old], new.models[path_new], tolerance, set(buffers), aliases)
    for path_old, path_new in _paired(old.optimizers, new.optimizers):
        if path_new is None:
            assert path_old is not None
            count = len(old.optimizers[path_old].state)
            text = f"the optimizer ({path_old!r}, state of {count} parameters) is not saved any more"
            found.append(Difference("missing optimizer", "fail", text))
        elif path_old is None:
            found.append(Difference("added", "fail", f"the optimizer {path_new!r} is new"))
        else:
            found += _moved(path_old, path_new)
            found += _optimizers(old.optimizers[path_old], new.optimizers[path_new], tolerance, aliases)
    return found + list(_values(old.values, new.values, tolerance))


def _paired(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str | None, str | None]]:
    """Sections by equal path; what is left over by order, if as many are left on both sides."""
    pairs: list[tuple[str | None, str | None]] = [(path, path) for path in old if path in new]
    left_old, left_new = [p for p in old if p not in new], [p for p in new if p not in old]
    if len(left_old) == len(left_new):
        return pairs + list(zip(left_old, left_new, strict=True))
    return [*pairs, *((p, None) for p in left_old), *((None, p) for p in left_new)]


def _section_held(old: Mapping[str, ModelState], path: str, new: ModelState) -> str | None:
    """The other section of the old file that a section is equal to, where it is not equal to its own."""
    equal = [name for name, section in old.items() if _is_equal(section, new)]
    return equal[0] if equal and path not in equal else None


def _is_equal(old: ModelState, new: ModelState) -> bool:
    pairs = ((tensor, _whole(new.tensors.get(name))) for name, tensor in old.tensors.items())
    return old.tensors.keys() == new.tensors.keys() and all(
        isinstance(a, torch.Tensor) and b is not None and a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs
    )


def _moved(old: str, new: str) -> Iterator[Difference]:
    if old != new:
        text = f"section {old or '(top)'!r} is now {new or '(top)'!r}"
        yield Difference("section", "fail", text)


def _models(
    old: ModelState, new: ModelState, tolerance: float, buffers: set[str], aliases: list[set[str]]
) -> Iterator[Difference]:
    if any(name.endswith("_flat_param") for name in old.tensors.keys() - new.tensors.keys()):
        text = "the old file holds FSDP1's flat parameters (LOCAL_STATE_DICT), which only FSDP1 can load"
        yield Difference("flat parameters", "not compared", text)
        return
    yield from _keys(old, new)
    tied = {name: group for group in aliases for name in group}
    for name in sorted(old.tensors.keys() - new.tensors.keys()):
        if tied.get(name, set()) & new.tensors.keys():
            yield Difference("tied name", "fail", f"{name} is missing; a name it is tied to is saved", name)
        elif name in buffers or _looks_like_buffer(name):
            yield Difference("missing buffer", "fail", f"buffer {name} is missing", name)
        else:
            yield Difference("missing", "fail", f"{name} is missing", name)
    for name in sorted(new.tensors.keys() - old.tensors.keys()):
        if not tied.get(name, set()) & old.tensors.keys():
            yield Difference("added", "fail", f"{name} is new", name)
    for name, tensor in old.tensors.items():
        if name in new.tensors:
            yield from compare_tensors(name, tensor, new.tensors[name], tolerance)


def _looks_like_buffer(name: str) -> bool:
    return name.rsplit(".", 1)[-1] in ("running_mean", "running_var", "num_batches_tracked")


def _keys(old: ModelState, new: ModelState) -> Iterator[Difference]:
    common = [name for name in old.keys if name in new.keys]
    changed = [name for name in common if old.keys[name] != new.keys[name]]
    if changed:
        name = sorted(changed)[0]
        text = f"{old.keys[name]!r} became {new.keys[name]!r}: programs that load files of the old form break"
        compiled = ("_orig_mod" in old.keys[name].split(".")) != ("_orig_mod" in new.keys[name].split("."))
        yield Difference("compiled keys" if compiled else "key prefix", "fail", text, name)


def compare_tensors(
    name: str, old: torch.Tensor | Shards, new: torch.Tensor | Shards, tolerance: float
) -> Iterator[Difference]:
    """One tensor of both files. Shards that cover the whole tensor are joined and compared like one."""
    whole_old = old.join() if isinstance(old, Shards) else old
    whole_new = new.join() if isinstance(new, Shards) else new
    if whole_old is None:
        yield Difference("old shards", "not compared", f"the old file holds only shards of {name}", name)
        return
    if isinstance(new, Shards):
        text = f"{name} is a {new.kind} of shape {list(new.shape)}"
        if whole_new is None:
            held = sum(part.numel() for _, part in new.parts)
            if held >= math.prod(new.shape):
                yield Difference("shards", "not compared", f"{text}, sharded over more than one dimension", name)
                return
            text += f", and the file holds {held} of its {math.prod(new.shape)} elements"
            yield Difference("incomplete shards", "fail", text, name)
            return
        if not isinstance(old, Shards):
            yield Difference("sharded tensors", "fail", f"{text} instead of a plain tensor", name)
    assert whole_new is not None
    yield from _compare_whole(name, whole_old, whole_new, tolerance)


def _compare_whole(name: str, old: torch.Tensor, new: torch.Tensor, tolerance: float) -> Iterator[Difference]:
    if old.shape == () and new.shape == (1,):
        text = f"{name} has one element and one dimension, which fully_shard needs, instead of none"
        yield Difference("dimension", "expected", text, name)
        old = old.reshape(1)
    if old.shape != new.shape:
        yield _shapes(name, old, new)
        return
    size = relative_difference(old, new)
    if old.dtype != new.dtype:
        kept = torch.equal(old.to(new.dtype), new)
        text = f"{name} is {_short(new.dtype)} instead of {_short(old.dtype)}"
        text += ", its values are the old ones, rounded" if kept else ", and differs beyond rounding"
        yield Difference("dtype", "fail", text, name, size)
    elif not size <= tolerance:
        yield Difference("values", "fail", f"{name} differs by {size:.2g}", name, size)


def _shapes(name: str, old: torch.Tensor, new: torch.Tensor) -> Difference:
    was, now = list(old.shape), list(new.shape)
    smaller = [d for d in range(old.dim()) if new.dim() == old.dim() and new.shape[d] < old.shape[d]]
    if len(smaller) == 1 and all(was[d] == now[d] for d in range(len(was)) if d not in smaller):
        d = smaller[0]
        start = next((s for s in _starts(old.shape[d], now[d]) if _close(old.narrow(d, s, now[d]), new)), None)
        rows = f"rows {start} to {start + now[d] - 1}" if start is not None else f"{now[d]} rows"
        text = f"{name} holds one rank's shard, {rows} of {was[d]} (shape {now} instead of {was})"
        return Difference("local shard", "fail", text, name)
    if new.dim() == 1 and old.dim() != 1:
        text = f"{name} is a flat piece of {now[0]} elements instead of shape {was}: a local shard of FSDP1"
        return Difference("local shard", "fail", text, name)
    return Difference("shape", "fail", f"{name} has shape {now} instead of {was}", name)


def _starts(total: int, part: int) -> Iterator[int]:
    """Where a shard of this length may begin: shards are equally long but for the last."""
    yield from range(0, total - part + 1, part)
    yield total - part


def _close(old: torch.Tensor, new: torch.Tensor) -> bool:
    return relative_difference(old, new) < 1e-2


def _optimizers(
    old: OptimizerState, new: OptimizerState, tolerance: float, aliases: list[set[str]]
) -> Iterator[Difference]:
    if old.by_number != new.by_number:
        form = ("numbers", "names") if old.by_number else ("names", "numbers")
        text = f"the optimizer's state is keyed by parameter {form[1]} instead of {form[0]}: the old program cannot load it"
        outcome: Outcome = "expected" if old.by_number else "fail"
        yield Difference("optimizer keys", outcome, text)
    if old.named != new.named:
        yield Difference("unnamed", "not compared", "parameter numbers of the optimizer cannot be turned into names")
        return
    first = {name: min(group) for group in aliases for name in group}
    states = [{first.get(name, name): s for name, s in side.state.items()} for side in (old, new)]
    if states[0] and not states[1]:
        text = f"the optimizer is saved without state (the old file has that of {len(states[0])} parameters)"
        yield Difference("missing optimizer", "fail", text)
        return
    for name in sorted(states[0].keys() - states[1].keys()):
        yield Difference("optimizer state missing", "fail", f"no optimizer state for {name}", name)
    for name in sorted(states[1].keys() - states[0].keys()):
        yield Difference("optimizer state added", "fail", f"optimizer state for {name} is new", name)
    for name in sorted(states[0].keys() & states[1].keys()):
        yield from _entries(name, states[0][name], states[1][name], tolerance)
    groups = [{first.get(name, name): h for name, h in side.hyperparameters.items()} for side in (old, new)]
    for name in sorted(groups[0].keys() & groups[1].keys()):
        for key in sorted(groups[0][name].keys() & groups[1][name].keys()):
            if not _same(groups[0][name][key], groups[1][name][key], tolerance):
                text = f"{key} of {name} is {groups[1][name][key]!r} instead of {groups[0][name][key]!r}"
                distance = _distance(groups[0][name][key], groups[1][name][key])  # the check `hyperparameters` judges them
                yield Difference("hyperparameters", "fail", text, name, distance)


def _entries(name: str, old: dict[str, Any], new: dict[str, Any], tolerance: float) -> Iterator[Difference]:
    for key in sorted(old.keys() ^ new.keys()):
        side = "lacks" if key in old else "has in addition"
        yield Difference("optimizer entries", "fail", f"the new state of {name} {side} {key}", name)
    for key in sorted(old.keys() & new.keys()):
        a, b = old[key], new[key]
        if isinstance(a, torch.Tensor) and isinstance(b, (torch.Tensor, Shards)) and (a.shape, b.shape) == ((), (1,)):
            a = a.reshape(1)  # the state of a parameter without dimensions, which fully_shard does not take
        if isinstance(a, (torch.Tensor, Shards)) and isinstance(b, (torch.Tensor, Shards)) and _size(a) > 1:
            yield from (
                Difference(f"optimizer {d.kind}", d.outcome, d.text, name, d.size)
                for d in compare_tensors(f"{key} of {name}", a, b, tolerance)
            )
        elif not _same(a, b, tolerance):
            text = f"{key} of {name} is {_show(b)} instead of {_show(a)}"
            yield Difference("optimizer values", "fail", text, name, _distance(a, b))


def _size(value: torch.Tensor | Shards) -> int:
    return math.prod(value.shape)


def _values(old: dict[str, Any], new: dict[str, Any], tolerance: float) -> Iterator[Difference]:
    """Everything but tensors and optimizers. A time, a place or a text does not change training."""
    for key in sorted(old.keys() - new.keys()):
        yield Difference("missing value", "fail", f"entry {key!r} is missing", key)
    for key in sorted(new.keys() - old.keys()):
        if key.rpartition("/")[2] not in _MARKS:
            yield Difference("added value", "fail", f"entry {key!r} is new", key)
    for key in sorted(old.keys() & new.keys()):
        if _same(old[key], new[key], tolerance):
            continue
        harmless = isinstance(old[key], str) or _VARIES.search(key)
        text = f"entry {key!r} is {_show(new[key])} instead of {_show(old[key])}"
        if harmless:
            yield Difference("varying value", "expected", f"{text}, which does not change training", key)
        else:
            yield Difference("value", "fail", text, key, _distance(old[key], new[key]))


def _distance(old: Any, new: Any) -> float | None:
    """How far numbers are from each other, relative to them; None for what no rounding makes: counts, texts, other keys."""
    if isinstance(old, (torch.Tensor, Shards)) or isinstance(new, (torch.Tensor, Shards)):
        a, b = _whole(old), _whole(new)
        alike = a is not None and b is not None and a.shape == b.shape and a.is_floating_point()
        return relative_difference(a, b) if alike else None  # type: ignore[arg-type]
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        return _largest([_distance(old[key], new[key]) for key in old])
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and len(old) == len(new):
        return _largest([_distance(a, b) for a, b in zip(old, new, strict=True)])
    if _same(old, new, 0.0):
        return 0.0
    if isinstance(old, (int, float)) and isinstance(new, (int, float)) and float in (type(old), type(new)):
        return abs(old - new) / max(abs(old), abs(new))
    return None


def _largest(distances: list[float | None]) -> float | None:
    known = [distance for distance in distances if distance is not None]
    return max(known, default=0.0) if len(known) == len(distances) else None


def _same(old: Any, new: Any, tolerance: float) -> bool:
    """Equal, with numbers equal within the tolerance whether they are Python's or of a one-element tensor."""
    if isinstance(old, (torch.Tensor, Shards)) or isinstance(new, (torch.Tensor, Shards)):
        a, b = _whole(old), _whole(new)
        return a is not None and b is not None and a.shape == b.shape and relative_difference(a, b) <= tolerance
    if isinstance(old, (int, float)) and isinstance(new, (int, float)):
        return old == new or (old != old and new != new) or abs(old - new) <= tolerance * max(abs(old), abs(new))
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return len(old) == len(new) and all(_same(a, b, tolerance) for a, b in zip(old, new, strict=True))
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_same(old[key], new[key], tolerance) for key in old)
    try:
        return bool(old == new)
    except (ValueError, RuntimeError):  # numpy arrays refuse a truth value
        return bool((old == new).all())


def _whole(value: Any) -> torch.Tensor | None:
    if isinstance(value, Shards):
        return value.join()
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value) if isinstance(value, (int, float)) else None


def _show(value: Any) -> str:
    text = repr(value.tolist() if isinstance(value, torch.Tensor) and value.numel() == 1 else value)
    return text if len(text) <= 60 else text[:57] + "…"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
