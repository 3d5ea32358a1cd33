"""Objects of libraries' classes that were made with a sharded model: their methods may run it, save it or ask for it."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..facts.facts import NOTHING
from ..flow.library import is_optimizer_class, makes_no_modules
from ..flow.values import UNKNOWN, ClassValue, Container, Derived, FunctionValue, Instance, Opaque, Value
from .assignments import assigned_values
from .file import File
from .program import Program
from .sharding import ShardingQueries


def keeps_model(program: Program, sharding: ShardingQueries, value: Value) -> bool:
    """Whether an object of a library's class was made with a sharded model, such as what saves it now and then.

    So is one of an own class that derives from one of a library, whose constructor hands the model to what it inherits.
    """
    return not (isinstance(value, Opaque) and _is_by_function(value)) and program.once(_Keepers).keeps_model(sharding, value)


def runs_model(program: Program, sharding: ShardingQueries, called: Value) -> bool:
    """As ``keeps_model``, of what is called, which may be what any function of a library gave: ``pipeline("…", model=model)``."""
    is_copy = isinstance(called, Opaque) and _is_by_function(called) and called.name.startswith(("torch.", "copy.", UNKNOWN))
    return not is_copy and program.once(_Keepers).keeps_model(sharding, called)


def _is_by_function(value: Opaque) -> bool:
    return not any(part[:1].isupper() for part in value.name.split("."))


class _Keepers:
    """The objects that keep sharded models: many places ask about the same ones."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._found: dict[tuple[ShardingQueries, Value], bool] = {}

    def keeps_model(self, sharding: ShardingQueries, value: Value) -> bool:
        """As the function of this name."""
        if not isinstance(value, (Opaque, Instance)) or value.site < 0:
            return False
        if (sharding, value) not in self._found:
            is_own = isinstance(value, Instance)
            self._found[sharding, value] = self._inherits_model(sharding, value) if is_own else self._was_given(sharding, value)
        return self._found[sharding, value]

    def _was_given(self, sharding: ShardingQueries, value: Opaque) -> bool:
        if value.name.startswith("torch.nn."):
            return False  # a module around it, such as DataParallel, is for code without ranks
        if is_optimizer_class(value.name) or is_optimizer_class(value.name.rpartition(".")[0]):
            return False  # it has parameters, and its state is asked about as an optimizer's; a class may make it by a method
        return _was_made_with_model(self.program, sharding, value.site)

    def _inherits_model(self, sharding: ShardingQueries, value: Instance) -> bool:
        """Whether the constructor of an object that is no module hands a model to a method that is not seen."""
        if sharding.is_module(value) or not _is_of_other_code(self.program, value.cls):
            return False
        found = [v for v in self.program.flow.members_of(value.cls, "__init__") if isinstance(v, FunctionValue)]
        for file, node in map(self.program.function_node, found):
            for call in (n for n in ast.walk(node) if isinstance(n, ast.Call) and not self.program.callees(file, n)):
                owner = call.func.value if isinstance(call.func, ast.Attribute) else None
                is_inherited = owner is not None and ast.unparse(owner) in ("self", "super()")
                given = [*call.args, *(keyword.value for keyword in call.keywords)] if is_inherited else []
                if any(is_of_model(sharding, file.values(one), file.variable(one)) for one in given):
                    return True
        return False


def kept_things(sharding: ShardingQueries, file: File, node: ast.expr) -> str | None:
    """How what such an object was made with is spelled beside it, models and optimizers: attributes of the same ``self``, or
    variables of the function that made it."""
    is_local = isinstance(node, ast.Name)
    if not is_local and not (isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"):
        return None
    calls = [n for value in assigned_values(file, node) for n in ast.walk(value) if isinstance(n, ast.Call)]
    if is_local and any(file.function(call) is not file.function(node) for call in calls):
        return None
    given = [one for call in calls for one in (*call.args, *(keyword.value for keyword in call.keywords))]
    kept = [one for one in given if sharding.of_owners(file.values(one), path=file.path).wrappers]
    for optimizer in (one for one in given if "optim" in ast.unparse(one)):
        if (of_optimizer := sharding.of_optimizer(file, optimizer)).wrappers:
            kept.append(optimizer)
        elif of_optimizer.possible:
            return None
    found = dict.fromkeys(ast.unparse(one).removesuffix(".module") for one in kept)
    is_beside = str.isidentifier if is_local else _is_of_self
    if not found or not all(map(is_beside, found)):
        return None
    if any(isinstance(one, ast.Name) and one.id == "self" for one in given):
        return None
    return next(iter(found)) if len(found) == 1 else f"[{', '.join(found)}]"


def _is_of_self(name: str) -> bool:
    return name.startswith("self.") and name.count(".") == 1


def hands_model_out_of_sight(program: Program, sharding: ShardingQueries, file: File, call: ast.Call, given: ast.expr) -> bool:
    """Whether a call hands an object that was made with a sharded model, and both have code that is not seen: their bases'."""
    made, name = file.called_values(call), ast.unparse(call.func).rpartition(".")[2]
    if not all(isinstance(v, ClassValue) and _is_of_other_code(program, v) for v in made) or not name[:1].isupper():
        return False
    for value in file.values(given):
        if isinstance(value, Instance) and value.site >= 0 and _is_of_other_code(program, value.cls):
            if not sharding.is_module(value) and _was_made_with_model(program, sharding, value.site):
                return True
    return False


def _is_of_other_code(program: Program, cls: ClassValue) -> bool:
    """Whether a class of the repository inherits methods from one that is not seen."""
    bases = program.flow.external_bases(cls)
    return any(not base.startswith("torch.") and not makes_no_modules(base) for base in bases)


def _was_made_with_model(program: Program, sharding: ShardingQueries, site: int) -> bool:
    call = program.flow.calls[site]
    handed = [v for v in (*call.arguments, *(variable for _, variable in call.keywords)) if v != NOTHING]
    handed += _entries(program, handed)
    return any(is_of_model(sharding, program.flow.values_of(variable), variable) for variable in handed)


def _entries(program: Program, handed: Sequence[int]) -> list[int]:
    """The variables of what dictionaries and lists hold that are handed in: ``{"net": model}``."""
    flow = program.flow
    owners = {flow.ids[value] for variable in handed for value in flow.values_of(variable) if isinstance(value, Container)}
    parts = program.once(_parts)
    return [variable for owner in sorted(owners) for variable in parts.get(owner, ())]


def _parts(program: Program) -> dict[int, list[int]]:
    """The variables of attributes and elements, by the number of what has them."""
    found: dict[int, list[int]] = {}
    for (owner, _), variable in program.flow.fields.items():
        found.setdefault(owner, []).append(variable)
    return found


def is_of_model(sharding: ShardingQueries, values: Sequence[Value], variable: int) -> bool:
    """Whether the values of a variable are sharded models, or parameters of one."""
    owners = [v.owner for v in values if isinstance(v, Derived) and v.kind == "parameters"]
    return bool(sharding.of_values(values, sharding.made_apart(variable, values)).wrappers or sharding.of_owners(owners).wrappers)  # type: ignore[arg-type]
