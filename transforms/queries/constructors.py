"""Functions that nothing calls but constructors of modules: what they fill is still in the making, and plain."""

from __future__ import annotations

import ast
import re

from ..flow.values import ClassValue, Instance
from .file import File
from .program import Program
from .sharding import ShardingQueries

_MODELS = re.compile(r"(?i)model|net(work)?s?$|module|student|teacher|encoder|backbone|ema|wrapped")
"""How parameters of constructors are called that may get a model which is sharded already."""


def functions_of_constructors(sharding: ShardingQueries) -> frozenset[str]:
    """The names of functions that constructors of modules call, themselves or by others such, and that nothing else says."""
    found = sharding.program.once(_Found)
    if found.names is None:
        found.names = _functions(sharding)
    return found.names


class _Found:
    """What has been found out about a program."""

    def __init__(self, _: Program) -> None:
        self.names: frozenset[str] | None = None


def _functions(sharding: ShardingQueries) -> frozenset[str]:
    program = sharding.program
    relevant = set(program.relevant_files())
    constructors: set[ast.AST] = set()
    uses: dict[str, list[ast.AST | None]] = {}
    for file in map(program.file, relevant):
        made = map(_constructor, file.nodes(ast.ClassDef))
        constructors.update(one for one in made if one is not None and _makes_from_scratch(sharding, file, one))
        for node in file.nodes(ast.Name, ast.Attribute):
            call = file.parents[node]
            is_called = isinstance(call, ast.Call) and call.func is node
            name = node.id if isinstance(node, ast.Name) else node.attr
            uses.setdefault(name, []).append(file.function(node) if is_called else None)
        for constant in file.nodes(ast.Constant):
            if isinstance(constant.value, str):
                uses.setdefault(constant.value, []).append(None)
    seen = {name for name in uses if relevant.issuperset(program.files_by_word.get(name, ()))}
    found: set[str] = set()
    while True:
        users = {name: [u for u in uses[name] if u not in constructors] for name in seen - found}
        more = {name for name, others in users.items() if all(getattr(u, "name", None) in found for u in others)}
        if not more:
            return frozenset(found)
        found |= more


def _constructor(cls: ast.ClassDef) -> ast.FunctionDef | None:
    return next((m for m in cls.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"), None)


def _makes_from_scratch(sharding: ShardingQueries, file: File, constructor: ast.FunctionDef) -> bool:
    """Whether a constructor makes a module, and is given none that may be sharded."""
    values = [v for v in file.values(file.parents[constructor]) if isinstance(v, ClassValue)]
    if not values or not all(map(sharding.makes_modules, values)):
        return False
    if any(_MODELS.search(argument.arg) for argument in ast.walk(constructor.args) if isinstance(argument, ast.arg)):
        return False
    program = sharding.program
    made = [one for v in values for one in program.flow.instances.get(v, ()) if isinstance(one, Instance)]
    calls = [program.call_node(one.site) for one in made if program.is_written_as_call(one.site)]
    given = ((owner, value) for owner, call in calls for value in (*call.args, *(k.value for k in call.keywords)))
    return not any(sharding.of(owner, value).wrappers for owner, value in given)
