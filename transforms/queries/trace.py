"""What one run of the repository's programs showed that their text does not: plain data, by file, line and column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Defined:
    """A function or class of the repository; ``line`` is that of ``def``, 0 for a class, ``name`` a class's qualified name."""

    file: str
    name: str
    line: int = 0


@dataclass(frozen=True)
class Entered:
    """A function that a call entered. ``receiver`` is the class of its first argument, or that argument if it is a class."""

    function: Defined
    receiver: Defined | None = None
    on_class: bool = False


@dataclass(frozen=True)
class Held:
    """What a variable held: ``instance`` of a class, ``class`` or ``function`` of the repository, an object that other code
    got from a function (``returned_by``), ``none``, or ``other``."""

    kind: str
    defined: Defined | None = None


@dataclass(frozen=True)
class Expression:
    """A name or dotted path, by where it begins."""

    file: str
    line: int
    column: int
    text: str


@dataclass(frozen=True)
class ObservedWrap:
    """A wrapped model: where the wrapper was called, what it was given, in words, and what kinds of parameters it got."""

    wrapper: str
    file: str
    line: int
    arguments: Mapping[str, str]
    dtypes: tuple[str, ...] = ()
    scalars: bool = False
    left_out: bool = False
    """Whether the model says itself that DDP leaves parameters out."""
    module: str = ""
    """The class of the model, by its module and name."""
    always_used: bool = False
    """Whether every trained parameter had a gradient at every step."""


@dataclass(frozen=True)
class Trace:
    """The facts of a trace whose files are as they were. Files are labels of the sources."""

    calls: Mapping[tuple[str, int, int], tuple[Entered, ...]] = field(default_factory=dict)
    """By file, and the line and column behind the call."""
    values: Mapping[Expression, tuple[Held, ...]] = field(default_factory=dict)
    """What was bound to names and attributes."""
    passed: tuple[tuple[Expression, Defined, str], ...] = ()
    """Expressions whose objects other code handed to a parameter of a function."""
    owners: Mapping[Expression, tuple[ObservedWrap, ...]] = field(default_factory=dict)
    """Expressions that held wrapped models, and nothing else, whenever an attribute of theirs was asked for."""
    wraps: tuple[ObservedWrap, ...] = ()
    lines: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Lines that some rank reached."""
    lines_of_some_ranks: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Lines that some ranks reached and others did not."""
