"""Questions to DDP's wrapper whether it has what only the model in it has: the answer was no."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from ..facts.symbols import DDP
from ..facts.wrapper_members import DDP_ONLY, MEMBERS, OF_ALL_MODULES, OF_BOTH
from ..flow.values import ClassValue, Wrapped
from .answers import Sharding
from .file import File
from .plain_objects import makes_modules
from .program import Program
from .sharding import ShardingQueries

_OF_WRAPPERS = DDP_ONLY | OF_BOTH | OF_ALL_MODULES | MEMBERS.keys() | frozenset(
    {"training", "dim", "logger", "device_type", "dump_patches", "mixed_precision", "is_multi_device_module"}
)  # fmt: skip
"""What DDP's wrapper has itself, or other rules answer for."""
_ARGUMENTS = {"builtins.hasattr": 2, "builtins.getattr": 3}


class _Names:
    """The attributes of a program's models, and those that are set on wrappers."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.of_models: set[str] = set()
        self.of_wrappers: set[str] = set()
        for file in map(program.file, program.relevant_files()):
            for cls in filter(lambda one: self._makes_modules(file, one), file.nodes(ast.ClassDef)):
                targets = (target for s in cls.body if isinstance(s, ast.Assign) for target in s.targets)
                self.of_models |= {target.id for target in targets if isinstance(target, ast.Name)}
                self.of_models |= {member.name for member in cls.body if isinstance(member, ast.FunctionDef)}
            for node in (n for n in file.nodes(ast.Attribute) if isinstance(n.ctx, ast.Store)):
                if any(isinstance(v, Wrapped) for v in file.values(node.value)):
                    self.of_wrappers.add(node.attr)
                elif not _is_of_self(node) or self._makes_modules(file, file.enclosing_class(node)):
                    self.of_models.add(node.attr)

    def _makes_modules(self, file: File, cls: ast.AST | None) -> bool:
        values = file.values(cls) if cls is not None else []
        return any(isinstance(v, ClassValue) and makes_modules(self.program.flow, v) for v in values)


def _is_of_self(attribute: ast.Attribute) -> bool:
    return isinstance(attribute.value, ast.Name) and attribute.value.id == "self"


def hidden_attributes(file: File, sharding: ShardingQueries) -> Iterator[tuple[ast.Call, ast.expr, Sharding]]:
    """The calls ``hasattr(model, "name")`` and ``getattr(model, "name", other)`` of what DDP gave back, for names of models.

    With the model, and what is known of it.
    """
    for call in file.nodes(ast.Call):
        name = call.args[1] if len(call.args) in _ARGUMENTS.values() and not call.keywords else None
        if not isinstance(call.func, ast.Name) or not isinstance(name, ast.Constant) or not isinstance(name.value, str):
            continue
        if _is_of_wrappers(name.value):
            continue
        if _ARGUMENTS.get(file.external(call.func) or "") != len(call.args):
            continue
        found = sharding.of(file, call.args[0])
        wrappers = [v for v in file.values(call.args[0]) if isinstance(v, Wrapped)]
        if found.wrapped_in != {"ddp"} or not all(map(functools.partial(_may_be_ddp_itself, file.program), wrappers)):
            continue
        if name.value in file.program.once(_Names).of_models:
            yield call, call.args[0], found


def may_be_set_on_wrappers(program: Program, name: str) -> bool:
    """Whether code sets an attribute of this name on what may be a wrapper by then."""
    return name in program.once(_Names).of_wrappers


def _may_be_ddp_itself(program: Program, value: Wrapped) -> bool:
    """Whether a wrapper may be of DDP itself, and else is of a class derived from it: that may hand on what its model has.

    What registries make, of any class that they know, is not asked about.
    """
    if not program.is_written_as_call(value.site):
        return True
    file, call = program.call_node(value.site)
    classes = file.values(call.func)
    derived = [v for v in classes if isinstance(v, ClassValue) and DDP in program.flow.external_bases(v)]
    return len(derived) == sum(isinstance(v, ClassValue) for v in classes) and (not classes or len(derived) < len(classes))


def _is_of_wrappers(name: str) -> bool:
    return name.startswith("_") or name in _OF_WRAPPERS
