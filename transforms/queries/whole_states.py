"""Whose state dicts are whole without an edit: those of models that were DDP's, and of optimizers over them.

Where such a model is sharded, it gets hooks that gather its state dicts and distribute what is loaded, and that see to
the optimizers that step over it. Objects of other classes answer by themselves, and may hold sharded tensors.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection
from functools import cached_property

from ..flow.library import is_optimizer
from ..flow.values import Constant, Instance, Opaque, Optimizer, Value
from .delegated_states import delegates_state
from .file import File
from .packages import is_of_other_framework, strange_names
from .program import Program

_OWN = ("state_dict", "load_state_dict")
_WITHOUT_STATES = frozenset({"torch", "torchvision", "torchaudio", "apex", "timm"})
"""Packages whose objects with a ``load_state_dict`` are models and optimizers, or hold nothing of a model."""

_PARAMETERS = frozenset({"parameters", "named_parameters", "_parameters", "data"})
_KNOWN_BY_NAME = re.compile(
    r"(?i)sched|scaler|sampler|loader|(^|_)rng|meter|stopp(er|ing)|generator_state|progress|^optim(izer)?s?$"
)
"""How objects are called whose state has no tensors of a model, and those that have the hooks."""

_AVERAGES = re.compile(r"EMA|Ema(?![a-z])|(?<![A-Za-z])ema(?![a-z])|[Aa]verag|[Pp]olyak|SWA|(?<![A-Za-z])swa(?![a-z])|[Ss]hadow")
"""What is in the names of averages: what else libraries keep of models are modules and optimizers."""


class WholeStates:
    """Answers for a repository, in whose programs that share a file ``kinds_near`` it are wrapped (``fsdp1``, ``ddp``)."""

    def __init__(self, program: Program, kinds_near: Callable[[str], Collection[str]]) -> None:
        self.program = program
        self.kinds_near = kinds_near
        self._kinds: dict[str, Collection[str]] = {}

    def of(self, file: File, owner: ast.expr, wrappers: Collection[str]) -> bool:
        """Whether what an object says of its state is whole: it has such hooks, or is not sharded.

        ``wrappers`` are those that it, or the model that it is the optimizer of, may have been in, if any is known.
        """
        if file.path not in self._kinds:
            self._kinds[file.path] = self.kinds_near(file.path)
        if set(wrappers or self._kinds[file.path]) != {"ddp"}:
            return False
        values = [v for v in file.values(owner) if not (isinstance(v, Constant) and v.value is None)]
        if any(map(self._answers_itself, values)):
            return False
        if not self.others_hold_states:
            return True
        if wrappers and not isinstance(owner, ast.Subscript):  # what else lies in a container may be an average
            return True
        if not values:
            return _KNOWN_BY_NAME.search(file.text(owner).rpartition(".")[2]) is not None
        return all(map(self._has_hooks, values))

    def _answers_itself(self, value: Value) -> bool:
        """Whether an object's class says its state itself, and not only that of what its objects hold."""
        own = [n for n in _OWN if isinstance(value, Instance) and self.program.flow.has_member(value.cls, n)]
        return not all(delegates_state(self.program, value, name) for name in own)

    def _has_hooks(self, value: Value) -> bool:
        """Whether an object is an optimizer, or of a library whose objects hold tensors as parts of modules alone."""
        if isinstance(value, Instance):
            bases = self.program.flow.external_bases(value.cls)
            return bool(bases) and all(is_optimizer(base) or base.partition(".")[0] in _WITHOUT_STATES for base in bases)
        if isinstance(value, Opaque):
            return value.name.partition(".")[0] in _WITHOUT_STATES
        return isinstance(value, Optimizer)

    @cached_property
    def others_hold_states(self) -> bool:
        """Whether there may be objects that put sharded tensors into their state as they are.

        What a program computes with these is plain, so that only parameters themselves can be in it.
        """
        files = [f for f in map(self.program.file, self.program.relevant_files()) if not is_of_other_framework(f.source.text)]
        from_outside = (name for name in strange_names(files) if name.partition(".")[0] not in _WITHOUT_STATES)
        return any(map(_AVERAGES.search, from_outside)) or any(map(_puts_parameters_into_states, files))


def _puts_parameters_into_states(file: File) -> bool:
    """Whether a class of a file reads parameters where it says its state, or something takes the place of a method."""
    for function in file.nodes(ast.FunctionDef):
        if function.name == "state_dict" and isinstance(file.parents[function], ast.ClassDef):
            if any(getattr(node, "attr", "") in _PARAMETERS for node in ast.walk(function)):
                return True
    return re.search(r"\bload_state_dict\s*=(?!=)", file.source.text) is not None
