"""Other ways to give the same arguments."""

# ruff: noqa: B023 - a refactoring returns before its loops go on

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import libcst as cst

from ..code import Code, before, called, expression, parameters, plain_parameters, statements
from ..evaluation import evaluated_first, pure
from ..project import Changes, Place, Project
from ..uses import own_calls
from .shared import function_of_expression, insert_above

# The signatures of torch 2.13, as far as all versions since 2.1 have them.
FSDP1 = (
    "module", "process_group", "sharding_strategy", "cpu_offload", "auto_wrap_policy", "backward_prefetch", "mixed_precision",
    "ignored_modules", "param_init_fn", "device_id", "sync_module_states", "forward_prefetch", "limit_all_gathers",
    "use_orig_params", "ignored_states", "device_mesh",
)  # fmt: skip
DDP = (
    "module", "device_ids", "output_device", "dim", "broadcast_buffers", "init_sync", "process_group", "bucket_cap_mb",
    "find_unused_parameters", "check_reduction", "gradient_as_bucket_view", "static_graph",
)  # fmt: skip


def signatures(project: Project) -> Iterator[tuple[str, cst.Call, tuple[str, ...]]]:
    """Calls without stars of functions with known parameters: the program's own, and the wrappers."""
    for path, code in project.codes():
        for call in project.wraps(path):
            if not any(arg.star for arg in call.args):
                full = "FullyShardedDataParallel"
                sharded = called(call) == full or any(full in line for line in _imports_of(code, called(call)))
                yield path, call, FSDP1 if sharded else DDP
        for function in code.find(cst.FunctionDef):
            calls = own_calls(project, path, function) if plain_parameters(function) else None
            names = tuple(parameters(function)[1 if code.class_of(function) else 0 :])
            for other, call in calls or []:
                yield other, call, names


def _imports_of(code: Code, name: str) -> Iterator[str]:
    for node in code.find(cst.ImportAlias):
        if (node.evaluated_alias or node.evaluated_name) == name:
            yield node.evaluated_name


def positional_to_keyword(project: Project, rng: Random) -> Changes:
    """Arguments are given by keyword, from some position on."""
    for path, call, names in signatures(project):
        code = project.code(path)
        positions = [number for number, arg in enumerate(call.args) if arg.keyword is None]
        if positions and len(positions) <= len(names):
            if not (yield Place(path, code.text(call))):
                continue
            start = rng.choice(positions)
            args = [
                arg.with_changes(keyword=cst.Name(names[number]), equal=NO_SPACE) if start <= number <= positions[-1] else arg
                for number, arg in enumerate(call.args)
            ]
            return project.changed({path: code.rewritten({call: lambda updated: _with_keywords(updated, args)})})
    return None


NO_SPACE = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def _with_keywords(call: cst.Call, args: list[cst.Arg]) -> cst.Call:
    return call.with_changes(args=[one.with_changes(value=now.value) for one, now in zip(args, call.args, strict=True)])


def keyword_to_positional(project: Project, rng: Random) -> Changes:
    """The first keyword is given by position."""
    for path, call, names in signatures(project):
        code = project.code(path)
        first = next((number for number, arg in enumerate(call.args) if arg.keyword), None)
        if first is None or first >= len(names):
            continue
        given = next((arg for arg in call.args if arg.keyword and arg.keyword.value == names[first]), None)
        if given is None or (given is not call.args[first] and not all(pure(arg.value) for arg in call.args)):
            continue
        args = [arg for arg in call.args if arg is not given]
        args.insert(first, given.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT, comma=COMMA))
        if (yield Place(path, code.text(call))):
            return project.changed({path: code.rewritten({call: call.with_changes(args=_with_commas(args))})})
    return None


COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _with_commas(args: list[cst.Arg]) -> list[cst.Arg]:
    return [*(arg if isinstance(arg.comma, cst.Comma) else arg.with_changes(comma=COMMA) for arg in args[:-1]), args[-1]]


def keyword_calls(project: Project) -> Iterator[tuple[str, cst.Call, list[cst.Arg]]]:
    """Calls of which the last arguments are keywords, and these."""
    for path, code in project.codes():
        for call in code.find(cst.Call):
            given = [arg for arg in call.args if arg.keyword]
            decorator = code.within(call, cst.Decorator)
            in_text = code.within(call, cst.FormattedString)
            if given and not decorator and not in_text and called(call) != "dict" and given == list(call.args[-len(given) :]):
                yield path, call, given


def _double_starred(call: cst.Call, given: list[cst.Arg], value: str) -> cst.Call:
    """The call with `**value` in place of its keywords."""
    kept = [arg.with_changes(comma=COMMA) for arg in call.args[: len(call.args) - len(given)]]
    star = cst.Arg(value=expression(value), star="**")
    return call.with_changes(args=[*kept, star], whitespace_before_args=cst.SimpleWhitespace(""))


def _literal(code: Code, given: list[cst.Arg], rng: Random) -> str:
    if rng.random() < 0.5:
        return "dict(" + ", ".join(f"{_key(arg)}={code.text(arg.value)}" for arg in given) + ")"
    return "{" + ", ".join(f'"{_key(arg)}": {code.text(arg.value)}' for arg in given) + "}"


def _key(arg: cst.Arg) -> str:
    return arg.keyword.value if arg.keyword else ""


def keywords_in_literal(project: Project, rng: Random) -> Changes:
    """`f(x, k=v)` becomes `f(x, **{"k": v})`."""
    for path, call, given in keyword_calls(project):
        code = project.code(path)
        if not (yield Place(path, code.text(call))):
            continue
        new = _double_starred(call, given, _literal(code, given, rng))
        return project.changed({path: code.rewritten({call: new})})
    return None


def _moved_in_front(project: Project) -> Iterator[tuple[str, cst.Call, list[cst.Arg], Any]]:
    """Calls whose keywords may be evaluated in front of their statement."""
    for path, call, given in keyword_calls(project):
        code = project.code(path)
        statement = evaluated_first(code, call)
        if statement is not None and all(pure(arg.value) for arg in given):
            yield path, call, given, statement


def keywords_in_variable(project: Project, rng: Random) -> Changes:
    """The keywords go into a dictionary first, by a literal."""
    for path, call, given, statement in _moved_in_front(project):
        code = project.code(path)
        if not (yield Place(path, code.text(call))):
            continue
        name = project.fresh(rng, "kwargs", "options", "settings", "wrap_kwargs", "cfg_kwargs")
        line = statements(f"{name} = {_literal(code, given, rng)}\n")
        rewrites = {call: _double_starred(call, given, name), statement: before(*line)}
        return project.changed({path: code.rewritten(rewrites)})
    return None


def keywords_in_steps(project: Project, rng: Random) -> Changes:
    """The keywords go into a dictionary one by one, those with two possible values in the branches of an `if`."""
    for path, call, given, statement in _moved_in_front(project):
        code = project.code(path)
        if not (yield Place(path, code.text(call))):
            continue
        name = project.fresh(rng, "kwargs", "options", "settings", "wrap_kwargs", "extra")
        lines = [f"{name} = {rng.choice(['{}', 'dict()'])}"]
        for arg in given:
            key, value = _key(arg), arg.value
            if isinstance(value, cst.IfExp):
                lines.append(f"if {code.value(value.test)}:\n    {name}['{key}'] = {code.value(value.body)}")
                lines.append(f"else:\n    {name}['{key}'] = {code.value(value.orelse)}")
            elif rng.random() < 0.3:
                lines.append(f"{name}.update({key}={code.text(value)})")
            else:
                lines.append(f"{name}['{key}'] = {code.value(value)}")
        new = statements("\n".join(lines) + "\n")
        return project.changed({path: code.rewritten({call: _double_starred(call, given, name), statement: before(*new)})})
    return None


def keywords_returned(project: Project, rng: Random) -> Changes:
    """A function returns the keywords as a dictionary."""
    for path, call, given in keyword_calls(project):
        code = project.code(path)
        if not (yield Place(path, code.text(call))):
            continue
        name = project.fresh(rng, "wrap_kwargs", "make_kwargs", "get_options", "build_settings")
        made = function_of_expression(code, call, name, _literal(code, given, rng))
        if made is None:
            return None
        definition, use = made
        new = _double_starred(call, given, use)
        return project.changed({path: code.rewritten(insert_above(code, call, definition) | {call: new})})
    return None


def keywords_of_class(project: Project, rng: Random) -> Changes:
    """Values of keywords become attributes of a class of settings."""
    for path, call, given in keyword_calls(project):
        code = project.code(path)
        top = code.top(call)
        bound = code.certain(top) & (code.local_names(None) - code.module_variables)
        local = code.enclosing_names(code.function(call))
        plain = (arg for arg in given if pure(arg.value) and not code.has(arg.value, cst.Lambda, cst.Call))
        fixed = [arg for arg in plain if code.names(arg.value).read <= bound - local]
        if not fixed or not (yield Place(path, code.text(call))):
            continue
        name = project.fresh(rng, "Settings", "WrapOptions", "Defaults", "TrainSettings")
        lines = [f"    {_key(arg)} = {code.value(arg.value)}" for arg in fixed]
        definition = "class " + name + ":\n" + "\n".join(lines) + "\n\n\n"
        values = {arg.value: expression(f"{name}.{_key(arg)}") for arg in fixed}
        return project.changed({path: code.rewritten(insert_above(code, call, definition) | values)})
    return None


