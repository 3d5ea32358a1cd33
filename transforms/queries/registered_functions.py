"""Functions that are called by a name alone, on what nothing is known of, and shard.

A registry holds functions under a name: ``Spec(parallelize_fn=parallelize)``, later ``spec.parallelize_fn(model)``, where
``spec`` comes out of a lookup. One of the functions that are given under this name is called, chosen by a configuration.
A builder makes models: ``part.apply_fsdp()`` is a method of their classes, where all methods of this name shard.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection

from ..flow import library
from ..flow.flow import Flow
from ..flow.values import FunctionValue
from .program import Program


def link_registered(program: Program, sharded: Collection[int]) -> frozenset[FunctionValue]:
    """Links calls that are not seen to shard anything with the functions and methods of their name that do.

    ``sharded`` are the variables whose values reach ``fully_shard``. Gives the functions of registries among them.
    """
    flow = program.flow
    registered = {name: found for name, given in _given(flow).items() if (found := _that_shard(flow, given, sharded))}
    methods = {name: _all_that_shard(program, given, sharded) for name, given in flow.methods_by_name().items()}
    linked: set[FunctionValue] = set()
    for site, call in enumerate(list(flow.calls)):
        functions = registered.get(call.method or "", ())
        if flow.callees.get(site, set()).isdisjoint(functions):
            for function in functions:
                flow.pass_arguments(site, call, function, None)
                linked.add(function)
        if not flow.callees.get(site):
            for method in methods.get(call.method or "", ()):
                flow.call_hook(site, call, method)
    flow.solve()
    return frozenset(linked)


def _given(flow: Flow) -> dict[str, set[FunctionValue]]:
    """The functions of the repository that calls are given by keyword, by the name of the keyword."""
    found: dict[str, set[FunctionValue]] = defaultdict(set)
    for call in flow.calls:
        for name, variable in call.keywords:
            if name is not None and variable >= 0:
                found[name].update(v for v in flow.values_of(variable) if isinstance(v, FunctionValue))
    return found


def _that_shard(flow: Flow, functions: Collection[FunctionValue], sharded: Collection[int]) -> list[FunctionValue]:
    """Those of these functions that shard their first parameter."""
    found = []
    for value in functions:
        facts, offset = flow.files[value.file].functions[value.index], flow.variable_offsets[value.file]
        if facts.positional and facts.positional[0][1] + offset in sharded:
            found.append(value)
    return sorted(found, key=lambda value: (value.file, value.index))


def _all_that_shard(program: Program, methods: list[FunctionValue], sharded: Collection[int]) -> list[FunctionValue]:
    """The methods of one name that shard the object they are called on; none where others of the name do something else."""
    found = _that_shard(program.flow, methods, sharded)
    if not found:
        return []
    name = program.flow.files[found[0].file].functions[found[0].index].name
    if hasattr(dict, name) or name in library.RETURN_SELF or name in library.DERIVED:
        return []
    others = [method for method in methods if method not in found]
    return found if all(_is_abstract(program.function_node(other)[1]) for other in others) else []


def _is_abstract(function: ast.AST) -> bool:
    """Whether a function only says that there is one: its body raises, or is a text."""
    body = getattr(function, "body", None)
    return isinstance(body, list) and all(map(_does_nothing, body))


def _does_nothing(statement: ast.stmt) -> bool:
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_text or isinstance(statement, (ast.Pass, ast.Raise))
