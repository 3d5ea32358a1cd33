"""The summary of one file: everything the linker needs to know of it, small and picklable.

A *variable* is an integer: one version of a local name, one attribute path, one intermediate value.
Constraints say how values flow from variable to variable; `flow.py` solves them over the repository.
Those of the syntax nodes come in the order of a walk over the tree, so that whoever parses the text again can ask
for the values of a node without positions ever being stored.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

NOTHING = -1
"""The variable of an expression that no rule could care about (a number, a comparison)."""

ANY_KEY = "[*]"
"""The field of a container for elements whose key is unknown, and for iteration."""


class Call(NamedTuple):
    """``result = function(*arguments, **keywords)``, or ``function.method(…)`` when ``method`` is set."""

    result: int
    function: int
    method: str | None
    arguments: tuple[int, ...]
    keywords: tuple[tuple[str | None, int], ...]
    starred: int
    """Index of the first ``*argument``, or -1."""
    line: int
    owner: int
    """Index of the function whose body holds the call, -1 for module level."""
    implied: bool = False
    """Whether no text has it: what a decorator makes of a function or class, and what ``with`` enters."""


class Import(NamedTuple):
    """``variable`` is bound to ``module`` (leading dots for relative) or to ``name`` from it."""

    variable: int
    module: str
    name: str | None


class NamePattern(NamedTuple):
    """A name that is put together at run time, of which the beginning or the end is written."""

    start: str
    end: str

    def fits(self, name: str) -> bool:
        """Whether a name may be this one."""
        return len(name) > len(self.start) + len(self.end) and name.startswith(self.start) and name.endswith(self.end)


class Body(NamedTuple):
    """What a small function adds to the facts of its file: ``(from, to)`` positions in each list."""

    variables: tuple[int, int]
    copies: tuple[int, int]
    loads: tuple[int, int]
    stores: tuple[int, int]
    calls: tuple[int, int]
    constants: tuple[int, int]
    containers: tuple[int, int]
    annotations: tuple[int, int]
    hands_back: bool
    """Whether the function returns one of its parameters."""


@dataclass(slots=True)
class FunctionFacts:
    """A ``def`` or ``lambda``: its parameters and the variable of what it returns."""

    name: str
    qualified_name: str
    line: int
    positional: list[tuple[str, int]] = field(default_factory=list)
    keyword_only: list[tuple[str, int]] = field(default_factory=list)
    variadic: int = NOTHING
    variadic_keywords: int = NOTHING
    returns: int = NOTHING
    owner_class: int = NOTHING
    binding: str = "instance"
    """How it is bound when it is read off an instance: ``instance``, ``class``, ``static`` or ``property``."""
    body: Body | None = None
    """Given for a small function that may hand its arguments on: each of its calls is then told apart."""


@dataclass(slots=True)
class ClassFacts:
    """A ``class`` statement: bases, methods and class-level names."""

    name: str
    qualified_name: str
    line: int
    bases: list[int] = field(default_factory=list)
    members: dict[str, int] = field(default_factory=dict)
    """Class-level names and the variable that holds each (methods included)."""
    fields: list[str] = field(default_factory=list)
    """Annotated names in order: the parameters of a dataclass or named tuple."""


@dataclass(slots=True)
class FileFacts:
    """All constraints of one file."""

    path: str
    is_run: bool = False
    """Whether it is a script: it says what it does when it is run, or works at module level."""
    imports: list[Import] = field(default_factory=list)
    stars: list[str] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    """Module-level names and the variable that unites all their versions."""
    defined: set[str] = field(default_factory=set)
    exports: list[str] | None = None
    functions: list[FunctionFacts] = field(default_factory=list)
    classes: list[ClassFacts] = field(default_factory=list)
    function_values: list[tuple[int, int]] = field(default_factory=list)
    class_values: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(to, from) pairs."""
    loads: list[tuple[int, int, str]] = field(default_factory=list)
    """(to, base, attribute)."""
    parameter_keys: dict[int, int] = field(default_factory=dict)
    """Of elements that are read by a key that the function is given: the position among ``loads``, and the parameter."""
    stores: list[tuple[int, str, int]] = field(default_factory=list)
    """(base, attribute, from)."""
    calls: list[Call] = field(default_factory=list)
    constants: list[tuple[int, object]] = field(default_factory=list)
    containers: list[tuple[int, str]] = field(default_factory=list)
    """(variable, kind) of list, tuple, set and dict displays and comprehensions."""
    annotations: list[tuple[int, int]] = field(default_factory=list)
    """(variable, variable of a name in its annotation)."""
    lines: array[int] = field(default_factory=lambda: array("i"))
    """Line of every variable."""
    of_nodes: array[int] = field(default_factory=lambda: array("i"))
    """Variable of every node, in the order of ``trees.walk``."""
    of_calls: array[int] = field(default_factory=lambda: array("i"))
    """Index among ``calls`` of every ``ast.Call``, in the same order; ``NOTHING`` for those in dead code."""
