"""Dictionaries of arguments that one function writes out and passes to another, which wraps with them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from ..analysis.values import Container
from ..program import Program
from ..view import FileView
from .arguments_of_calls import argument_of
from .constructor import Argument, Constructor, translate
from .plan import FULLY_SHARD, Code, code
from .spread import BECOMES, NEEDS_STATEMENTS, Dictionary, entries_of, is_spread, local_dictionary, rewritten

_FREE = ("limit_all_gathers", "use_orig_params", "backward_prefetch", "forward_prefetch")
"""Arguments that go, whatever they are."""


@dataclass
class Passed:
    """The dictionary, and the call in ``view`` that passes it on."""

    dictionary: Dictionary
    view: FileView
    call: ast.Call


def passed_dictionary(
    program: Program, view: FileView, keyword: ast.keyword, is_wrap: Callable[[ast.AST], bool]
) -> Passed | None:
    """The dictionary behind ``**kwargs`` of a parameter that nothing but wraps use, and one caller writes out."""
    name = keyword.value
    function = view.function(name)
    if not isinstance(name, ast.Name) or not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    parameter = next((a for a in _parameters(function) if a.arg == name.id), None)
    mentions = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name.id]
    callers = program.callers(view, function)
    if parameter is None or len(callers) != 1 or not all(is_spread(view, n, is_wrap) for n in mentions):
        return None
    place, call = callers[0]
    argument = argument_of(place, call, view, function, name.id)
    if argument is None or not _arrives(view, parameter, place, argument):
        return None
    direct = entries_of(place, argument)
    if direct is not None:
        return Passed(Dictionary(argument, direct), place, call)
    if not isinstance(argument, ast.Name):
        return None
    found = local_dictionary(place, argument, lambda mention: mention is argument)
    return Passed(found, place, call) if found is not None and len(found.statements) == 1 else None


def _arrives(view: FileView, parameter: ast.arg, place: FileView, argument: ast.expr) -> bool:
    """Whether the analysis agrees that the parameter holds this argument."""
    given = [value for value in place.values(argument) if isinstance(value, Container)]
    held = [value for value in view.values(parameter) if isinstance(value, Container)]
    return bool(given) and set(given) <= set(held)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def read_passed(constructor: Constructor, keyword: ast.keyword, passed: Passed) -> bool:
    """Splits the entries: those of ``fully_shard`` stay in the dictionary, the others are dealt with at the wraps.

    False where an entry would have to be written at the wraps and cannot be.
    """
    entries = passed.dictionary.entries
    if NEEDS_STATEMENTS & entries.keys():
        return False
    made = Constructor(
        constructor.migration, passed.view, passed.call, constructor.group, is_elsewhere=True
    )
    made.arguments = {name: Argument(name, passed.view, node) for name, node in entries.items()}
    translate(made, [name for name in entries if name in BECOMES])
    plan = made.plan
    if plan.before or plan.unit_arguments or plan.root_arguments or plan.function != FULLY_SHARD:
        return False
    function = constructor.view.function(keyword)
    assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
    at_wraps: dict[str, Argument] = {}
    for name, node in entries.items():
        written = _written(constructor, passed, function, node)
        if name not in _FREE and name not in BECOMES and written is None and not isinstance(node, ast.Constant):
            return False
        at_wraps[name] = Argument(name, passed.view, node, written)
    constructor.arguments.update(at_wraps)
    constructor.outcomes.update(made.outcomes)
    constructor.from_dictionaries.extend(entries)
    constructor.plan.extras.append(code("**", constructor.view.keep(keyword.value)))
    constructor.plan.needs.extend(plan.needs)
    constructor.patches.extend(made.patches)
    kept = [(key, plan.arguments[key]) for key in _order(entries, plan.arguments)]
    constructor.patches.append(rewritten(passed.view, passed.dictionary, kept))
    constructor.passed_on.update(key for key, _ in kept)
    return True


def _order(entries: dict[str, ast.expr], arguments: dict[str, Code]) -> list[str]:
    keys = [key for name in entries for key in BECOMES.get(name, ()) if key in arguments]
    return list(dict.fromkeys(keys))


def _written(
    constructor: Constructor,
    passed: Passed,
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    node: ast.expr,
) -> Code | None:
    """How an entry is written inside the function: by another parameter that is given the same, or as a constant."""
    view = constructor.view
    if isinstance(node, ast.Constant):
        return (repr(node.value),)
    text = passed.view.text(node)
    if isinstance(node, (ast.Name, ast.Attribute)):
        for parameter in _parameters(function):
            given = argument_of(passed.view, passed.call, view, function, parameter.arg)
            stores = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == parameter.arg]
            rebound = any(isinstance(n.ctx, ast.Store) for n in stores)
            if given is not None and passed.view.text(given) == text and not rebound:
                return (parameter.arg,)
    symbol = passed.view.external(node.func) if isinstance(node, ast.Call) else None
    if isinstance(node, ast.Call) and symbol is not None and symbol.startswith("torch.") and not node.args:
        return (f"{constructor.plan.name(symbol)}()",) if not node.keywords else None
    return None
