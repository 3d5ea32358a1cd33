"""Unpickling checkpoint files without the program that wrote them.

A training script may put anything beside its tensors: its argument namespace, a configuration class of
`__main__`, an enum. `torch.load(weights_only=True)` refuses these, and `weights_only=False` would have to
import the script and run what the pickle says. Here, names outside a list of harmless constructors, by
their exact names, become `Opaque` stand-ins: nothing of the user's is imported or called, and what it holds
can still be compared. A pickle gives no state to anything but what it has made itself.

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
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from .checkpoint_numpy import ArrayState, DtypeState, array, buffer, scalar

_BUILTINS = {"bool", "complex", "dict", "float", "int", "slice", "str"}
_GROWING = {"bytearray", "bytes", "frozenset", "list", "set", "tuple"}
_COLLECTIONS = {"OrderedDict", "defaultdict"}
_DATETIME = {"date", "datetime", "time", "timedelta", "timezone"}
_PATHS = {"Path", "PosixPath", "PurePath", "PurePosixPath", "PureWindowsPath", "WindowsPath"}
_NUMPY_MODULES = {f"{name}.{part}" for name in ("numpy.core", "numpy._core") for part in ("multiarray", "numeric")}
_NUMPY: dict[str, Any] = {"_reconstruct": array, "scalar": scalar, "_frombuffer": buffer}
_TENSORS = {
    "_rebuild_meta_tensor_no_storage", "_rebuild_parameter", "_rebuild_parameter_with_state", "_rebuild_qtensor",
    "_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3",
}  # fmt: skip
_STORAGES = {
    "BFloat16Storage", "BoolStorage", "ByteStorage", "CharStorage", "ComplexDoubleStorage", "ComplexFloatStorage",
    "DoubleStorage", "FloatStorage", "HalfStorage", "IntStorage", "LongStorage", "QInt32Storage", "QInt8Storage",
    "QUInt2x4Storage", "QUInt4x2Storage", "QUInt8Storage", "ShortStorage", "TypedStorage", "UntypedStorage",
}  # fmt: skip


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


class DataUnpickler(pickle._Unpickler):  # pyright: ignore[reportAttributeAccessIssue]
    """Builds data and stand-ins. In Python, because the C one lets a pickle set attributes of what it names."""

    dispatch: ClassVar = dict(pickle._Unpickler.dispatch)  # pyright: ignore[reportAttributeAccessIssue]

    def find_class(self, module: str, name: str) -> Any:
        """What a name of the pickle stands for: one of a closed list, else a stand-in."""
        return known_name(module, name) or _stand_in(f"{module}.{name}")

    def takes_state(self, instance: Any) -> bool:
        """Whether an object may be given a state of the pickle's making."""
        return isinstance(instance, (Opaque, DtypeState, ArrayState))

    def load_build(self) -> None:
        instance, state = self.stack[-2], self.stack[-1]  # pyright: ignore[reportAttributeAccessIssue]
        if type(instance) is collections.OrderedDict:  # a model's state, which has the versions of its modules there
            self.stack.pop()  # pyright: ignore[reportAttributeAccessIssue]
            if isinstance(state, dict) and "_metadata" in state:
                instance._metadata = state["_metadata"]  # pyright: ignore[reportAttributeAccessIssue]
        elif self.takes_state(instance):
            pickle._Unpickler.load_build(self)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
        else:
            raise pickle.UnpicklingError(f"a state for an object of {type(instance).__name__}")

    dispatch[pickle.BUILD[0]] = load_build  # pyright: ignore[reportArgumentType]


def known_name(module: str, name: str) -> Any:
    """What constructs plain data, tensors and arrays, by its exact name; None for every other."""
    module = "builtins" if module == "__builtin__" else module  # protocol 2 has Python 2's names
    if (module, name) == ("builtins", "getattr"):
        return _nested_class
    if (module, name) == ("builtins", "range"):
        return range
    if module == "builtins" and name in _BUILTINS:
        return getattr(builtins, name)
    if module == "builtins" and name in _GROWING:
        return _of_items(getattr(builtins, name))
    if module == "collections" and name in _COLLECTIONS:
        return getattr(collections, name)
    if module == "collections" and name in ("Counter", "deque"):
        return _of_items(getattr(collections, name))
    if module in ("pathlib", "pathlib._local") and name in _PATHS:
        return pathlib.PurePosixPath
    if module == "datetime" and name in _DATETIME:
        return getattr(datetime, name)
    if (module, name) == ("_codecs", "encode"):
        return _encode
    if (module, name) == ("numpy", "dtype"):
        return DtypeState
    if (module, name) == ("numpy", "ndarray"):
        return ArrayState
    if module in _NUMPY_MODULES:
        return _NUMPY.get(name)
    return _torch_name(module, name)


def _of_items(constructor: Callable[..., Any]) -> Callable[..., Any]:
    """A constructor that copies what the file holds; a number or a range would have it grow without bounds."""

    def construct(*arguments: Any) -> Any:
        if any(isinstance(argument, (int, range)) for argument in arguments[:1]):
            raise pickle.UnpicklingError(f"{constructor.__name__} of a number or a range")
        return constructor(*arguments)

    return construct


def _encode(text: str, encoding: str = "utf-8", errors: str = "strict") -> bytes:
    """Protocol 2 writes bytes as text and `_codecs.encode(text, "latin1")`."""
    if encoding not in ("latin1", "latin-1", "utf-8", "ascii"):
        raise pickle.UnpicklingError(f"the encoding {encoding!r}")
    return text.encode(encoding)


def _rebuild_sparse(layout: torch.layout, data: tuple[Any, ...]) -> torch.Tensor:
    """A sparse tensor whose indices are checked; torch would believe them, and read beyond its memory."""
    if layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(*data[:3], check_invariants=True)
    return torch.sparse_compressed_tensor(*data[:4], layout=layout, check_invariants=True)


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
    if (module, name) == ("torch._utils", "_rebuild_sparse_tensor"):
        return _rebuild_sparse
    if module == "torch._utils" and name in _TENSORS:
        return getattr(importlib.import_module(module), name, None)
    if module in ("torch.storage", "torch") and name in _STORAGES:
        return getattr(torch.storage if module == "torch.storage" else torch, name, None)
    if module == "torch" and (name in ("Size", "device", "Tensor") or isinstance(vars(torch).get(name), torch.dtype)):
        return getattr(torch, name)
    if (module, name) == ("torch.nn.parameter", "Parameter"):
        return torch.nn.Parameter
    if (module, name) == ("torch.serialization", "_get_layout"):
        return torch.serialization._get_layout
    return None


class pickle_module:
    """What `torch.load(pickle_module=…)` asks for; a class, because only its two names are looked up."""

    __name__ = "pickle_module"
    Unpickler = DataUnpickler

    @staticmethod
    def load(file: Any, **options: Any) -> Any:
        """The legacy (not zipped) format reads its header through this."""
        return DataUnpickler(file, **options).load()
