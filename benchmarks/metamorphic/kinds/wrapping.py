"""Other ways to call a wrapper, and to get back what it wraps."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import libcst as cst

from ..code import Code, before, expression, statements
from ..evaluation import evaluated_first, pure
from ..project import Changes, Place, Project
from .extraction import free, importing, new_module, top_imports, with_import
from .shared import function_of_expression, insert_above


def wraps(project: Project) -> Iterator[tuple[str, Code, cst.Call]]:
    """Calls of wrappers that are no decorators."""
    for path, code in project.codes():
        for call in project.wraps(path):
            yield path, code, call


def wrap_by_factory(project: Project, rng: Random) -> Changes:
    """A function makes the wrap."""
    for path, code, call in wraps(project):
        if not (yield Place(path, code.text(call))):
            continue
        name = project.fresh(rng, "wrap_model", "distribute", "build_engine", "setup_parallel", "to_parallel")
        made = function_of_expression(code, call, name, code.text(call))
        if made is None:
            return None
        rewrites = insert_above(code, call, made[0]) | {call: expression(made[1])}
        return project.changed({path: code.rewritten(rewrites)})
    return None


def _class_at_top(code: Code, call: cst.Call) -> bool:
    """Whether the wrapper's name is imported at the top of the module."""
    root: Any = call.func
    while isinstance(root, cst.Attribute):
        root = root.value
    return isinstance(root, cst.Name) and root.value in top_imports(code) - code.rebound_in_functions - code.module_variables


def wrap_by_registry(project: Project, rng: Random) -> Changes:
    """The wrapper's class is looked up in a dictionary."""
    for path, code, call in wraps(project):
        if not _class_at_top(code, call):
            continue
        if not (yield Place(path, code.text(call))):
            continue
        name = project.fresh(rng, "WRAPPERS", "ENGINES", "PARALLEL", "REGISTRY")
        key = rng.choice(["sharded", "parallel", "default", "dist"])
        other = rng.choice(['    "none": lambda module, *args, **kwargs: module,\n', ""])
        definition = f'{name} = {{\n    "{key}": {code.text(call.func)},\n{other}}}\n\n\n'
        look = rng.choice([f'{name}["{key}"]', f'{name}.get("{key}")'])
        rewrites = insert_above(code, call, definition) | {call.func: expression(look)}
        return project.changed({path: code.rewritten(rewrites)})
    return None


def wrap_by_variable(project: Project, rng: Random) -> Changes:
    """The wrapper's class is held by a variable of the module."""
    for path, code, call in wraps(project):
        if not _class_at_top(code, call):
            continue
        if not (yield Place(path, code.text(call))):
            continue
        name = project.fresh(rng, "Wrapper", "wrapper_cls", "ParallelModel", "Engine")
        definition = f"{name} = {code.text(call.func)}\n\n\n"
        rewrites = insert_above(code, call, definition) | {call.func: cst.Name(name)}
        return project.changed({path: code.rewritten(rewrites)})
    return None


def wrap_by_subclass(project: Project, rng: Random) -> Changes:
    """A subclass of the wrapper is called."""
    for path, code, call in wraps(project):
        if not _class_at_top(code, call):
            continue
        if not (yield Place(path, code.text(call))):
            continue
        name = project.fresh(rng, "WrappedModel", "Sharded", "ParallelNet", "TrainWrapper")
        definition = f'class {name}({code.text(call.func)}):\n    """The wrapper of this program."""\n\n\n'
        rewrites = insert_above(code, call, definition) | {call.func: cst.Name(name)}
        return project.changed({path: code.rewritten(rewrites)})
    return None


def _split(code: Code, call: cst.Call) -> tuple[Any, str, str] | None:
    """The statement of a wrap, the wrapped expression and the other arguments, if these may be evaluated in front of it."""
    statement = evaluated_first(code, call)
    modules = [arg for number, arg in enumerate(call.args) if (arg.keyword.value if arg.keyword else number) in (0, "module")]
    if statement is None or len(modules) != 1 or modules[0].star:
        return None
    others = [arg for arg in call.args if arg is not modules[0]]
    if any(arg.star != "**" and not arg.keyword for arg in others) or not all(pure(arg.value) for arg in others):
        return None
    rest = ", ".join(code.text(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)).strip() for arg in others)
    return statement, code.text(modules[0].value), rest


def wrap_by_partial(project: Project, rng: Random) -> Changes:
    """`functools.partial` of the wrapper is called with the model."""
    for path, code, call in wraps(project):
        if not (parts := _split(code, call)) or not free(code, "functools"):
            continue
        if not (yield Place(path, code.text(call))):
            continue
        statement, model, rest = parts
        name = project.fresh(rng, "wrapper", "make", "wrap_fn", "parallelize")
        line = statements(f"{name} = functools.partial({code.text(call.func)}{', ' + rest if rest else ''})\n")
        text = code.rewritten({call: expression(f"{name}({model})"), statement: before(*line)})
        return project.changed({path: importing(code, text, "functools")})
    return None


def wrap_by_lambda(project: Project, rng: Random) -> Changes:
    """A lambda makes the wrap."""
    for path, code, call in wraps(project):
        if not (parts := _split(code, call)):
            continue
        if not (yield Place(path, code.text(call))):
            continue
        statement, model, rest = parts
        name, held = project.fresh(rng, "wrap_it", "make", "wrapper"), project.fresh(rng, "m", "net", "module")
        line = statements(f"{name} = lambda {held}: {code.text(call.func)}({held}{', ' + rest if rest else ''})\n")
        return project.changed({path: code.rewritten({call: expression(f"{name}({model})"), statement: before(*line)})})
    return None


UNWRAP = (
    'def {0}(model):\n    return model.module if hasattr(model, "module") else model\n',
    'def {0}(model):\n    return getattr(model, "module", model)\n',
    'def {0}(model):\n    if hasattr(model, "module"):\n        return model.module\n    return model\n',
)


def unwrap_by_helper(project: Project, rng: Random) -> Changes:
    """`x.module` becomes a call of a helper that asks whether there is one, here or in a new module."""
    for path, code in project.codes():
        for node in code.find(cst.Attribute):
            if node.attr.value != "module" or not isinstance(node.value, cst.Name | cst.Attribute):
                continue
            parent = code.parents[node]
            if isinstance(parent, cst.AssignTarget | cst.AugAssign):
                continue
            if code.text(node.value) == "self" or code.in_class_body(node):
                continue
            if not (yield Place(path, code.text(node))):
                continue
            name = project.fresh(rng, "unwrap", "unwrap_model", "get_raw_model", "de_parallel")
            definition = rng.choice(UNWRAP).format(name)
            use = expression(f"{name}({code.text(node.value)})")
            if rng.random() < 0.5:
                module, line = new_module(project, path, rng, name)
                return project.changed({path: with_import(code.rewritten({node: use}), line), module: definition})
            return project.changed({path: code.rewritten(insert_above(code, node, definition + "\n\n") | {node: use})})
    return None


