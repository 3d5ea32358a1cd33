"""The wrappers and optimizers of a run: what they were given, in which order, what never had a gradient, what was saved.

For `to-fsdp2 trace`.
"""

from __future__ import annotations

import enum
import functools
import inspect
import weakref
from collections import Counter
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .after_import import after_import
from .patching import Function, wrap
from .places import is_foreign, relative, user_frame, user_place

_LONGEST = 200


class ObservedTraining:
    """Numbers wrapped models and optimizers in the order of their construction."""

    def __init__(self, root: str | None) -> None:
        self._root = root
        self._known: dict[int, tuple[weakref.ref[Any], dict[str, int]]] = {}
        self._wraps: list[dict[str, Any]] = []
        self._optimizers: list[dict[str, Any]] = []
        self._order: list[str] = []
        self._inside: list[dict[str, Any]] = []
        """The wrappers that are being constructed: what these wrap in turn are their units."""
        self._trained: dict[int, set[str]] = {}
        """For each wrapped model the parameters that have had a gradient."""
        self._left_out: set[int] = set()
        """The wrapped models of which some parameter had none at a step."""
        self._states: dict[tuple[str, str, str], dict[str, Any]] = {}

    def install(self) -> None:
        """Start, before any model is wrapped."""
        wrap(DistributedDataParallel, "__init__", lambda original: self._wrapping(original, "DDP"))
        after_import("torch.distributed.fsdp.fully_sharded_data_parallel", self._watch_fsdp1)
        wrap(Optimizer, "__init__", self._creating)
        wrap(Optimizer, "state_dict", lambda original: self._saving(original, "optimizer"))
        wrap(torch.nn.Module, "state_dict", lambda original: self._saving(original, "model"))
        register_optimizer_step_pre_hook(lambda *_: self._look_at_gradients())

    def number_of(self, value: object) -> dict[str, int] | None:
        """``{"wrap": n}`` or ``{"optimizer": n}`` for what is one."""
        known = self._known.get(id(value))
        return known[1] if known is not None and known[0]() is value else None

    def as_fields(self) -> dict[str, Any]:
        """Fields of the `observed` event."""
        for number, wrapped in enumerate(self._wraps):
            wrapped["without_gradient"] = sorted(wrapped.pop("parameters") - self._trained.get(number, set()))
            wrapped["always_used"] = number in self._trained and number not in self._left_out
        return {"wraps": self._wraps, "optimizers": self._optimizers, "order": self._order,
                "state_dicts": list(self._states.values())}  # fmt: skip

    def _watch_fsdp1(self) -> None:
        from torch.distributed.fsdp.fully_sharded_data_parallel import FullyShardedDataParallel

        wrap(FullyShardedDataParallel, "__init__", lambda original: self._wrapping(original, "FSDP1"))

    def _wrapping(self, original: Function, wrapper: str) -> Function:
        signature = inspect.signature(original)

        def init(model: Any, *args: Any, **kwargs: Any) -> None:
            arguments = dict(list(signature.bind(model, *args, **kwargs).arguments.items())[1:])
            module = arguments.pop("module", None)
            arguments.update(arguments.pop("kwargs", {}))
            if self._inside:
                self._inside[-1]["units"][_class_name(module)] += 1
                original(model, *args, **kwargs)
                return
            entry: dict[str, Any] = {
                "wrapper": wrapper, "places": self._places(), "module": _class_name(module), "units": Counter(),
                "arguments": {name: _described(value) for name, value in arguments.items()}, "parameters": set(),
                **_layout(module),
            }  # fmt: skip
            self._inside.append(entry)
            try:
                original(model, *args, **kwargs)
            finally:
                self._inside.pop()
            self._note(model, "wrap", self._wraps, entry)
            entry["parameters"] = {name for name, parameter in _parameters(model) if parameter.requires_grad}

        return init

    def _creating(self, original: Function) -> Function:
        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            of = [
                number["wrap"] for reference, number in self._known.values()
                if "wrap" in number and (model := reference()) is not None
                and any(id(parameter) in held for parameter in model.parameters())
            ]  # fmt: skip
            entry = {"class": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}", "places": self._places(),
                     "parameters": len(held), "wraps": of}  # fmt: skip
            self._note(optimizer, "optimizer", self._optimizers, entry)

        return init

    def _saving(self, original: Function, what: str) -> Function:
        def state_dict(owner: Any, *args: Any, **kwargs: Any) -> Any:
            number = self.number_of(owner)
            if number is not None:
                kind = str(getattr(owner, "_state_dict_type", "")).rpartition(".")[2].lower()
                place = user_place(self._root)
                key = (place, what, str((number, kind)))
                self._states.setdefault(key, {"place": place, "of": number, "kind": kind or "plain"})
            return original(owner, *args, **kwargs)

        return state_dict

    def _note(self, value: Any, kind: str, entries: list[dict[str, Any]], entry: dict[str, Any]) -> None:
        number = {kind: len(entries)}
        entries.append(entry)
        self._order.append(f"{kind} {number[kind]}")
        self._known[id(value)] = (weakref.ref(value), number)

    def _look_at_gradients(self) -> None:
        for reference, number in list(self._known.values()):
            model = reference()
            if model is not None and "wrap" in number:
                trained = self._trained.setdefault(number["wrap"], set())
                has_gradient = {name: p.grad is not None for name, p in _parameters(model) if p.requires_grad}
                trained |= {name for name, has in has_gradient.items() if has}
                if not all(has_gradient.values()):
                    self._left_out.add(number["wrap"])

    def _places(self) -> list[str]:
        """The lines of the repository that led here, innermost first."""
        places: list[str] = []
        frame = user_frame(3)
        while frame is not None and len(places) < 8:
            name = relative(frame.f_code.co_filename, self._root)
            if not is_foreign(frame.f_code.co_filename) and name != frame.f_code.co_filename:
                places.append(f"{name}:{frame.f_lineno}")
            frame = frame.f_back
        return places


def _parameters(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Parameters under the names that they have without the wrappers."""
    hidden = ("module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")
    return [
        (".".join(part for part in name.split(".") if part not in hidden), parameter)
        for name, parameter in model.named_parameters()
    ]


def _layout(module: Any) -> dict[str, Any]:
    """Of a model that is to be wrapped: the types of its parameters, and whether some have no dimension or are left out."""
    parameters = list(module.parameters())
    left_out = bool(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    return {"dtypes": sorted({str(parameter.dtype) for parameter in parameters}),
            "scalars": any(parameter.dim() == 0 for parameter in parameters), "left_out": left_out}  # fmt: skip


def _class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _described(value: object) -> str:
    """An argument of a wrapper in a few words; nothing of the user's runs for it."""
    if isinstance(value, enum.Enum):
        text = str(value)
    elif isinstance(value, functools.partial):
        given = [f"{name}={_described(argument)}" for name, argument in value.keywords.items()]
        text = f"partial({', '.join([getattr(value.func, '__name__', '?'), *given])})"
    elif isinstance(value, type) or inspect.isroutine(value):
        text = getattr(value, "__qualname__", "?")
    elif isinstance(value, (list, tuple, set, frozenset)):
        text = f"{type(value).__name__}({', '.join(sorted(map(_described, value)))})"
    elif value is None or isinstance(value, (bool, int, float, str, torch.device, torch.dtype)):
        text = repr(value)
    elif type(value).__module__.startswith("torch."):
        fields = getattr(value, "__dataclass_fields__", ())
        inner = ", ".join(f"{name}={_described(getattr(value, name))}" for name in fields)
        text = f"{type(value).__name__}({inner})"
    else:
        text = type(value).__qualname__
    return text[:_LONGEST]
