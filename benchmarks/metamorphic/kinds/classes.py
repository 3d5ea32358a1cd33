"""Functions become methods, methods become functions, and functions stand in front of functions."""

# ruff: noqa: B023 - a refactoring returns before its loops go on

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import libcst as cst

from ..code import Code, expression, parameters, plain_parameters, single, statements, with_body
from ..evaluation import pure
from ..project import Changes, Place, Project
from ..uses import own_calls
from .extraction import free, importing
from .shared import inner_names


def top_functions(project: Project) -> Iterator[tuple[str, Code, cst.FunctionDef, list[tuple[str, cst.Call]]]]:
    """Functions at the top of files that are only called, and their calls."""
    for path, code in project.codes():
        for node in code.module.body:
            if isinstance(node, cst.FunctionDef) and isinstance(node.body, cst.IndentedBlock):
                calls = own_calls(project, path, node)
                if calls:
                    yield path, code, node, calls


def _in_file(project: Project, path: str, name: str, calls: list[tuple[str, cst.Call]]) -> bool:
    """Whether no other file has the function, not even by an import that it does not use."""
    here = all(other == path and isinstance(call.func, cst.Name) for other, call in calls)
    return here and not any(project.imports(other, path, name) for other in project.files if other != path)


def function_into_class(project: Project, rng: Random) -> Changes:
    """A function becomes a static method of a new class."""
    for path, code, function, calls in top_functions(project):
        if not _in_file(project, path, function.name.value, calls):
            continue
        if not (yield Place(path, code.text(function))):
            continue
        name = project.fresh(rng, "Ops", "Toolbox", "Routines", "Utils")

        def rewrite(updated: cst.FunctionDef) -> Any:
            method = updated.with_changes(decorators=[cst.Decorator(cst.Name("staticmethod"))], leading_lines=())
            return with_body(f"class {name}:", [method]).with_changes(leading_lines=updated.leading_lines)

        rewrites: dict[cst.CSTNode, Any] = {call.func: expression(f"{name}.{function.name.value}") for _, call in calls}
        return project.changed({path: code.rewritten(rewrites | {function: rewrite})})
    return None


def function_into_object(project: Project, rng: Random) -> Changes:
    """A function becomes a method, called on an instance that the module makes."""
    for path, code, function, calls in top_functions(project):
        if not _in_file(project, path, function.name.value, calls) or "self" in code.local_names(function):
            continue
        if not (yield Place(path, code.text(function))):
            continue
        title = project.fresh(rng, "Runner", "Engine", "Worker", "Session")
        held = project.fresh(rng, "runner", "engine_", "worker", "session")

        def rewrite(updated: cst.FunctionDef) -> list[Any]:
            params = updated.params
            self_param = cst.Param(cst.Name("self"))
            if params.posonly_params:
                changed = params.with_changes(posonly_params=(self_param, *params.posonly_params))
            else:
                changed = params.with_changes(params=(self_param, *params.params))
            method = updated.with_changes(params=changed, leading_lines=())
            owner = with_body(f"class {title}:", [method]).with_changes(leading_lines=updated.leading_lines)
            return [owner, *statements(f"\n\n{held} = {title}()\n")]

        rewrites: dict[cst.CSTNode, Any] = {call.func: expression(f"{held}.{function.name.value}") for _, call in calls}
        return project.changed({path: code.rewritten(rewrites | {function: rewrite})})
    return None


def method_into_function(project: Project, rng: Random) -> Changes:
    """A method becomes a function of the module."""
    for path, code in project.codes():
        for function in code.find(cst.FunctionDef):
            owner = code.class_of(function)
            if not owner or len(owner.body.body) < 2 or code.parents[owner] is not code.module:
                continue
            if any(isinstance(node, cst.Name) and node.value == "super" for node in code.find(cst.Name, within=function)):
                continue
            name = function.name.value
            calls = own_calls(project, path, function)
            if not calls or any(other != path for other, _ in calls):
                continue
            if name in code.local_names(None) | code.rebound_in_functions:
                continue
            if not (yield Place(path, code.text(function))):
                continue
            def rewrite(call: cst.Call) -> cst.Call:
                target: Any = call.func
                comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")) if call.args else cst.MaybeSentinel.DEFAULT
                receiver = cst.Arg(target.value, comma=comma)
                return call.with_changes(func=target.attr, args=[receiver, *call.args])

            blank = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
            made: list[Any] = []

            def taken(updated: Any) -> Any:
                made.append(updated.with_changes(leading_lines=blank))
                return cst.RemoveFromParent()

            rewrites: dict[cst.CSTNode, Any] = {call: rewrite for _, call in calls}
            rewrites |= {function: taken, owner: lambda updated: [updated, *made]}
            return project.changed({path: code.rewritten(rewrites)})
    return None


def inlined_function(project: Project, rng: Random) -> Changes:
    """A call of a function that only returns an expression becomes the expression."""
    for path, code, function, calls in top_functions(project):
        documented = 1 if function.get_docstring() is not None else 0
        last = single(function.body.body[-1], cst.Return)
        if not last or not last.value or len(function.body.body) != documented + 1 or not plain_parameters(function):
            continue
        names = parameters(function)
        if code.has(last.value, cst.Lambda, cst.BaseComp, cst.FormattedString, cst.Yield, cst.NamedExpr):
            continue
        needed = code.names(last.value).read - set(names)
        for other, call in calls:
            given = {arg.keyword.value if arg.keyword else names[number]: arg.value for number, arg in enumerate(call.args)}
            there = project.code(other)
            local = there.enclosing_names(there.function(call)) | inner_names(there, call)
            hidden = needed & local if other == path else needed
            unfit = there.within(call, cst.Decorator, cst.FormattedString) or given.keys() != set(names)
            if hidden or unfit or not all(pure(value, False) for value in given.values()):
                continue
            if not (yield Place(other, there.text(call))):
                continue
            inside: dict[cst.CSTNode, Any] = {
                node: _bracketed(given[node.value]) for node in code.variables(within=last.value) if node.value in given
            }
            return project.changed({other: there.rewritten({call: code.replaced_in(last.value, inside)})})
    return None


def _bracketed(value: Any) -> Any:
    plain = isinstance(value, cst.Name | cst.Attribute) or value.lpar
    return value if plain else value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def forwarding_function(project: Project, rng: Random) -> Changes:
    """A function is called through one that passes on whatever it is given."""
    for path, code, function, calls in top_functions(project):
        here = [call for other, call in calls if other == path]
        if not here:
            continue
        if not (yield Place(path, code.text(function))):
            continue
        name = project.fresh(rng, f"call_{function.name.value}", f"{function.name.value}_entry", "dispatch")
        definition = f"\n\ndef {name}(*args, **kwargs):\n    return {function.name.value}(*args, **kwargs)\n"
        rewrites: dict[cst.CSTNode, Any] = {call.func: cst.Name(name) for call in here if isinstance(call.func, cst.Name)}
        rewrites[function] = lambda updated: [updated, *statements(definition)]
        return project.changed({path: code.rewritten(rewrites)})
    return None


DECORATOR = '''def {0}(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)

    return inner


'''


def passing_decorator(project: Project, rng: Random) -> Changes:
    """A decorator that only passes on is put on a function or method."""
    for path, code in project.codes():
        for function in code.find(cst.FunctionDef):
            special = function.name.value.startswith("__") or function.asynchronous or function.decorators
            if special or not free(code, "functools") or code.function(function):
                continue
            if not (yield Place(path, code.text(function))):
                continue
            name = project.fresh(rng, "traced", "record", "timed", "logged")

            def rewrite(updated: cst.FunctionDef) -> cst.FunctionDef:
                return updated.with_changes(decorators=[cst.Decorator(cst.Name(name))])

            top = code.top(function)
            definition = statements("\n\n" + DECORATOR.format(name))
            rewrites: dict[cst.CSTNode, Any] = {function: rewrite}
            rewrites[top] = (lambda u: [*definition, rewrite(u)]) if top is function else (lambda u: [*definition, u])
            text = code.rewritten(rewrites)
            return project.changed({path: importing(code, text, "functools")})
    return None


def parameters_in_namespace(project: Project, rng: Random) -> Changes:
    """A function takes one namespace for all its parameters."""
    for path, code, function, calls in top_functions(project):
        names = parameters(function)
        required = [param for param in function.params.params if param.default is None]
        # `Namespace(self=…)` would be given two of them
        plain = len(required) == len(function.params.params) == len(names) > 1 and "self" not in names
        given = all(len(call.args) == len(names) for _, call in calls)
        if not plain or not given or not free(code, "argparse"):
            continue
        if not (yield Place(path, code.text(function))):
            continue
        held = project.fresh(rng, "args", "opts", "cfg", "run")
        files: dict[str, dict[cst.CSTNode, Any]] = {path: {}}
        for other, call in calls:
            files.setdefault(other, {})[call] = lambda updated: _in_namespace(project, updated, names)
        params = function.params.with_changes(params=[cst.Param(cst.Name(held))])
        documented = 1 if function.get_docstring() is not None else 0
        lines = [line for name in names for line in statements(f"{name} = {held}.{name}\n")]

        def rewrite(updated: Any) -> Any:
            body = updated.body.body
            block = updated.body.with_changes(body=[*body[:documented], *lines, *body[documented:]])
            return updated.with_changes(params=params, body=block)

        files[path][function] = rewrite
        changed: dict[str, str] = {}
        for other, rewrites in files.items():
            text = project.code(other).rewritten(rewrites)
            changed[other] = importing(project.code(other), text, "argparse")
        return project.changed(changed)
    return None


def _in_namespace(project: Project, call: Any, names: list[str]) -> Any:
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    named = [arg.keyword or cst.Name(names[number]) for number, arg in enumerate(call.args)]
    args = [arg.with_changes(keyword=name, equal=equal) for name, arg in zip(named, call.args, strict=True)]
    return call.with_changes(args=[cst.Arg(expression("argparse.Namespace()").with_changes(args=args))])  # pyright: ignore
