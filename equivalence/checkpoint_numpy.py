"""numpy's arrays and scalars in a pickle, made of their bytes without numpy's own unpickling, which trusts the file."""

from __future__ import annotations

import re
from typing import Any

import numpy

_SIMPLE = re.compile(r"[<>=|]?[?biufc]\d{0,2}|[SU]\d{1,6}")
"""Numbers, booleans and short texts; objects and structures are not looked into."""


class DtypeState:
    """`numpy.dtype(spec, align, copy)` and the state that follows, of which the byte order counts."""

    def __init__(self, spec: Any = "", *_: Any) -> None:
        self.spec = str(spec)
        self.order = ""

    def __setstate__(self, state: Any) -> None:
        self.order = state[1] if len(state) > 1 and state[1] in ("<", ">") else ""

    def dtype(self) -> numpy.dtype[Any]:
        """The type, which must be one of plain numbers or text."""
        found = numpy.dtype(self.spec)
        return found.newbyteorder(self.order) if self.order == ">" else found


class ArrayState:
    """An array that gets its shape, type and bytes as a state."""

    value: Any = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        if isinstance(data, str):
            data = data.encode("latin-1")
        self.value = _shaped(data, dtype, shape, "F" if is_fortran else "C")


def array(*_: Any) -> ArrayState:
    """`_reconstruct(ndarray, (0,), b"b")`: an array whose contents follow."""
    return ArrayState()


def buffer(data: Any, dtype: Any, shape: Any, order: str = "C") -> ArrayState:
    """`_frombuffer`: an array of protocol 5."""
    made = ArrayState()
    made.value = _shaped(bytes(data), dtype, shape, order)
    return made


def scalar(dtype: Any, data: Any = b"") -> Any:
    """`scalar(dtype, bytes)`: one number."""
    if isinstance(data, str):
        data = data.encode("latin-1")
    made = _shaped(data, dtype, (), "C")
    return made if isinstance(made, dict) else made[()]


def _shaped(data: Any, dtype: Any, shape: Any, order: Any) -> Any:
    if not isinstance(dtype, DtypeState):
        raise ValueError("an array without a type")
    if not isinstance(data, (bytes, bytearray)) or not _SIMPLE.fullmatch(dtype.spec):
        return {"class": "numpy.ndarray", "dtype": dtype.spec, "contents": data}
    return numpy.frombuffer(data, dtype.dtype()).reshape(shape, order="F" if order == "F" else "C").copy()
