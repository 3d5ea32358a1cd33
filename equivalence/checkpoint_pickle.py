"""Unpickling checkpoint files without the program that wrote them.

A training script may put anything beside its tensors: its argument namespace, a configuration class of
`__main__`, an enum. `torch.load(weights_only=True)` refuses these, and `weights_only=False` would have to
import the script and run what the pickle says. Here, names outside a short list of harmless constructors
become `Opaque` stand-ins: nothing of the user's is imported or called, and what it holds can still be
compared.

DTensor and ShardedTensor are stood in for, too: their own unpickling needs the device mesh or the process
group of the run that wrote them (`ShardedTensor.__setstate__` raises without one).
"""

from __future__ import annotations

import builtins
import collections
import datetime
import importlib
import pathlib
import pickle
from typing import Any

import torch

_BUILTINS = {
    "bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "range", "set",
    "slice", "str", "tuple",
}  # fmt: skip
_COLLECTIONS = {"OrderedDict", "defaultdict", "Counter", "deque"}
_NUMPY_MODULES = (
    "numpy",
    "numpy.core.multiarray",
    "numpy._core.multiarray",
    "numpy.core.numeric",
    "numpy._core.numeric",
)
_NUMPY = {"_reconstruct", "scalar", "_frombuffer", "ndarray", "dtype"}


class Opaque:
    """Stands in for an object whose class is not imported: its qualified name, arguments and state."""

    qualified_name = ""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self.args = args
        self.state: Any = keywords or None
        self.items: list[Any] = []

    def __new__(cls, *args: Any, **keywords: Any) -> Opaque:
        # Protocol 2 rebuilds objects through `cls.__new__(cls, *args)` without calling `__init__`.
        self = super().__new__(cls)
        self.args, self.state, self.items = args, None, []
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: list[Any]) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def __hash__(self) -> int:
        return hash(self.qualified_name)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Opaque)
            and self.qualified_name == other.qualified_name
            and self.attributes().keys() == other.attributes().keys()
        )

    def attributes(self) -> dict[str, Any]:
        """What the object holds by name; slots and positional state are numbered."""
        found: dict[str, Any] = {f"argument {i}": value for i, value in enumerate(self.args)}
        states = self.state if isinstance(self.state, tuple) else (self.state,)
        for position, state in enumerate(states):
            if isinstance(state, dict):
                found.update({str(key): value for key, value in state.items()})
            elif state is not None:
                found[f"state {position}"] = state
        found.update({f"item {i}": value for i, value in enumerate(self.items)})
        return found


def _rebuild_from_type(function: Any, cls: Any, args: tuple[Any, ...], state: Any) -> Any:
    """`torch._tensor._rebuild_from_type_v2` without the class: a wrapper subclass becomes its stand-in."""
    if isinstance(cls, type) and issubclass(cls, Opaque):
        rebuilt = cls(*args)
        rebuilt.state = state
        return rebuilt
    return function(*args)


def _rebuild_wrapper_subclass(cls: Any, *args: Any) -> Any:
    return cls(*args)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        module = "builtins" if module == "__builtin__" else module  # protocol 2 has Python 2's names
        if (module, name) == ("builtins", "getattr"):
            return _nested_class
        if module == "builtins" and name in _BUILTINS:
            return getattr(builtins, name)
        if module == "collections" and name in _COLLECTIONS:
            return getattr(collections, name)
        if module == "pathlib":
            return pathlib.PurePosixPath
        if module == "datetime":
            return getattr(datetime, name)
        if (module, name) == ("_codecs", "encode"):
            return importlib.import_module("_codecs").encode
        if module in _NUMPY_MODULES and name in _NUMPY:
            return getattr(importlib.import_module(module), name)
        if module.split(".")[0] == "torch":
            known = _torch_name(module, name)
            if known is not None:
                return known
        return _stand_in(f"{module}.{name}")


def _stand_in(qualified_name: str) -> type[Opaque]:
    return type(qualified_name.rsplit(".", 1)[-1], (Opaque,), {"qualified_name": qualified_name})


def _nested_class(owner: Any, name: str) -> type[Opaque]:
    """Protocol 2 writes a class inside a class, and the members of some enums, as `getattr(owner, name)`."""
    return _stand_in(f"{getattr(owner, 'qualified_name', owner)}.{name}")


def _torch_name(module: str, name: str) -> Any:
    if (module, name) == ("torch._tensor", "_rebuild_from_type_v2"):
        return _rebuild_from_type
    if (module, name) == ("torch._utils", "_rebuild_wrapper_subclass"):
        return _rebuild_wrapper_subclass
    if module == "torch._utils" and name.startswith("_rebuild"):
        return getattr(importlib.import_module(module), name)
    if module in ("torch.storage", "torch") and name.endswith("Storage"):
        return getattr(importlib.import_module(module), name)
    if module == "torch" and (
        name in ("Size", "device", "Tensor") or isinstance(getattr(torch, name, None), torch.dtype)
    ):
        return getattr(torch, name)
    if module == "torch.nn.parameter" and name == "Parameter":
        return torch.nn.Parameter
    if (module, name) == ("torch.serialization", "_get_layout"):
        return torch.serialization._get_layout
    return None


class pickle_module:
    """What `torch.load(pickle_module=…)` asks for; a class, because only its two names are looked up."""

    __name__ = "pickle_module"
    Unpickler = _Unpickler

    @staticmethod
    def load(file: Any, **options: Any) -> Any:
        """The legacy (not zipped) format reads its header through this."""
        return _Unpickler(file, **options).load()
