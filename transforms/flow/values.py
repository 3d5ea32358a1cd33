"""Abstract values: what a variable may hold, as far as a migration cares.

They never change, but are not frozen: the analysis makes them by the hundred thousand, and making a frozen one takes
three times as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..facts.facts import NOTHING


@dataclass(unsafe_hash=True, slots=True)
class External:
    """A name from outside the repository, canonical where it is torch's."""

    name: str


@dataclass(unsafe_hash=True, slots=True)
class ModuleValue:
    """A module of the repository, by file index."""

    file: int


@dataclass(unsafe_hash=True, slots=True)
class FunctionValue:
    file: int
    index: int


@dataclass(unsafe_hash=True, slots=True)
class ClassValue:
    file: int
    index: int


@dataclass(unsafe_hash=True, slots=True)
class Instance:
    """An object of a class of the repository; ``site`` is the call that made it, -1 when none was seen."""

    cls: ClassValue
    site: int


@dataclass(unsafe_hash=True, slots=True)
class Bound:
    """A method read off an object."""

    function: FunctionValue
    receiver: object


@dataclass(unsafe_hash=True, slots=True)
class SuperValue:
    """What ``super()`` gives in a method of ``cls``."""

    cls: ClassValue
    receiver: int
    """Variable of the method's first parameter."""


@dataclass(unsafe_hash=True, slots=True)
class Partial:
    """``functools.partial(…)`` made by call ``site``."""

    site: int


@dataclass(unsafe_hash=True, slots=True)
class Wrapped:
    """What the wrapper constructor called at ``site`` returns; ``kind`` is FSDP1 or DDP."""

    kind: str
    site: int


@dataclass(unsafe_hash=True, slots=True)
class Kept:
    """What DDP called at ``site`` returns where it stays; -1 where nothing but an annotation says that it is DDP's."""

    site: int


@dataclass(unsafe_hash=True, slots=True)
class Annotated:
    """A value that nothing but an annotation says is wrapped."""

    kind: str


UNKNOWN = "?"
"""The name of an opaque value of which nothing shows what made it."""


@dataclass(unsafe_hash=True, slots=True)
class Opaque:
    """The result of a call of something outside the repository; ``copy`` tells those of one call in copied bodies apart."""

    site: int
    name: str
    copy: int = NOTHING


@dataclass(unsafe_hash=True, slots=True)
class Container:
    """A list, tuple, set or dict made where variable ``variable`` is."""

    variable: int
    kind: str


@dataclass(unsafe_hash=True, slots=True)
class Optimizer:
    """An optimizer built by call ``site``."""

    site: int
    name: str


@dataclass(unsafe_hash=True, slots=True)
class Derived:
    """Something taken from a model or optimizer: its parameters, its state dict, its ``no_sync`` context …"""

    kind: str
    owner: object
    pairs: int = 0
    """2 for what gives pairs of a name and such a thing (``named_parameters()``), 1 for one pair."""


@dataclass(unsafe_hash=True, slots=True)
class Constant:
    value: object
    type: str
    """Keeps ``1`` and ``True`` apart, which compare equal."""


@dataclass(unsafe_hash=True, slots=True)
class Unknown:
    """Comes in from outside: a parameter that nothing in the repository passes."""

    variable: int
    """The parameter if it may be a model, -1 for all others together."""


Value = (
    External | ModuleValue | FunctionValue | ClassValue | Instance | Bound | SuperValue | Partial | Wrapped | Kept | Annotated
    | Opaque | Container | Optimizer | Derived | Constant | Unknown
)  # fmt: skip

MODEL_LIKE = (Instance, Opaque, Wrapped, Annotated, Unknown)
"""What may be a model."""
