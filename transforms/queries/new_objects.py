"""Objects that are plain when they are made: nothing that may be sharded comes into them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property

from ..facts.facts import NOTHING
from ..flow.library import COLLECT, PASS_THROUGH, is_optimizer, is_tensor_math, makes_no_modules
from ..flow.values import (
    UNKNOWN,
    Annotated,
    Constant,
    Container,
    External,
    Instance,
    ModuleValue,
    Opaque,
    Unknown,
    Value,
    Wrapped,
)
from .holders import Holders
from .loaded_objects import is_given_known
from .plain_objects import hands_on, makes_modules
from .program import Program
from .programs import Programs

_PASSING_ON = COLLECT | PASS_THROUGH | {"builtins.eval"}
_WRAPPING = ("hydra.", "importlib.", "accelerate.", "torch.compile")
"""Libraries that may wrap what they get, or give an object of the repository."""
_DEEPEST = 3


class NewObjects:
    """Answers for values; ``handed`` are the modules that wrappers get, and ``kept`` says of a wrapper whether it stays."""

    def __init__(self, program: Program, programs: Programs, holders: Holders, handed: Collection[Value],
                 kept: Callable[[Wrapped | Annotated], bool]) -> None:  # fmt: skip
        self.program = program
        self.programs = programs
        self.holders = holders
        self._handed_to_wrappers = handed
        self.kept = kept

    def is_new(self, value: Instance | Opaque, path: str = "") -> bool:
        """Whether an object is a module that is plain when it is made: nothing that may be sharded comes into it.

        With ``path``, in the programs that a file is part of.
        """
        if isinstance(value, Instance):
            is_module = makes_modules(self.program.flow, value.cls)
            if not is_module or hands_on(self.program.flow, value) or self.holders.holds_sharded(value):
                return False
            is_known = is_given_known(self.program, value.site)
            return self.all_wrapped_known(value, path) or (is_known and self._gets_nothing_sharded(value))
        if value.name in _PASSING_ON or value.name == UNKNOWN or is_optimizer(value.name):
            return False
        if is_tensor_math(value.name) and not all(self._given(value)):
            return False  # computed from nobody knows what
        return self._gets_nothing_sharded(value)

    def _given(self, value: Instance | Opaque) -> list[list[Value]]:
        """What the call that made an object is given: for each argument what it may be."""
        call = self.program.flow.calls[value.site]
        given = [*call.arguments, *(argument for _, argument in call.keywords)]
        return [self.program.flow.values_of(argument) for argument in given if argument != NOTHING]

    def _gets_nothing_sharded(self, value: Instance | Opaque, depth: int = 0) -> bool:
        return all(
            isinstance(v, (Constant, External, ModuleValue)) or (isinstance(v, Unknown) and v.variable < 0)
            or (isinstance(v, (Container, Instance)) and v not in self._handed_to_wrappers and not self.holders.holds_sharded(v))
            or (isinstance(v, Opaque) and self._is_made_of_plain(v, depth + 1))
            for held in self._given(value) for v in held
        )  # fmt: skip

    def _is_made_of_plain(self, value: Opaque, depth: int) -> bool:
        if value.name == "copy.deepcopy" or makes_no_modules(value.name):
            return True  # copies of models are plain
        is_seen = value.site >= 0 and value.name != UNKNOWN and not value.name.startswith(_WRAPPING)
        if not is_seen or depth > _DEEPEST or value.name in _PASSING_ON or value in self._handed_to_wrappers:
            return False
        return not self.holders.holds_sharded(value) and self._gets_nothing_sharded(value, depth)

    def all_wrapped_known(self, value: Instance | Opaque, path: str = "") -> bool:
        """Whether every wrapper in the programs that make an object is seen to get models that are seen to be made."""
        made_in = self.program.facts[self.program.flow.file_of_call(value.site)].path
        unknown = self._files_of_unknown_wraps.intersection(self.programs.sharing_entries(made_in))
        return not unknown or (bool(path) and unknown.isdisjoint(self.programs.sharing_entries(path)))

    def _is_made_unseen(self, value: Value) -> bool:
        """Whether it is not seen which call makes an object."""
        return isinstance(value, Opaque) and value.name == UNKNOWN and value not in self.program.flow.made_by_factories

    def is_plain_from_factory(self, value: Opaque) -> bool:
        """Whether a factory makes an object, of a class that nothing shows, from nothing sharded; and no wrapper gets it."""
        is_made = value in self.program.flow.made_by_factories and value not in self._handed_to_wrappers
        return is_made and self.all_wrapped_known(value) and self._gets_nothing_sharded(value)

    @cached_property
    def _files_of_unknown_wraps(self) -> frozenset[str]:
        flow = self.program.flow
        found: set[str] = set()
        for value in list(flow.values):
            if isinstance(value, Wrapped) and not self.kept(value):
                variable = flow.fields.get((flow.ids.get(value, -1), "module"))
                inner = flow.values_of(variable) if variable is not None else []
                if not inner or any(isinstance(v, Unknown) or self._is_made_unseen(v) for v in inner):
                    found.add(self.program.facts[flow.file_of_call(value.site)].path)
        return frozenset(found)
