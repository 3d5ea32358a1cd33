"""Methods that a wrapper of DDP does not have, called on a variable that holds the wrapper wherever a model is in one.

``self.net = DDP(self.net)`` leaves ``self.net.sample(x)`` an AttributeError: what calls it runs where nothing is wrapped.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..facts.symbols import CONSTRUCTORS
from ..flow.values import ClassValue, Instance, Wrapped
from .file import File
from .sharding import ShardingQueries


def is_called_on_plain(sharding: ShardingQueries, file: File, model: ast.expr) -> bool:
    """Whether a model that a method of its own is called on is plain there, because a wrapper would have raised."""
    wraps = [value for value in file.values(model) if isinstance(value, Wrapped)]
    found = sharding.of(file, model)
    if not wraps or found.wrappers != {"ddp"} or found.wrapped_in != {"ddp"} or _is_tested(file, model):
        return False
    return all(_is_rebound(sharding, file, model, wrapped) for wrapped in wraps) and not any(
        sharding.comes_out_of_wrapper(file, value) for value in _stored(sharding, file, model)
    )


def _is_rebound(sharding: ShardingQueries, file: File, model: ast.expr, wrapped: Wrapped) -> bool:
    """Whether a wrap puts the wrapper where the module was that it is called with, and where the method is called."""
    if not file.program.is_written_as_call(wrapped.site):
        return False
    owner, call = file.program.call_node(wrapped.site)
    if owner.external(call.func) not in CONSTRUCTORS:
        return False  # a class of its own may hand reads on to the module
    assign = owner.parents[call]
    if not isinstance(assign, ast.Assign) or len(assign.targets) != 1 or not call.args:
        return False
    target = assign.targets[0]
    if ast.unparse(target) != ast.unparse(call.args[0]):
        return False
    if isinstance(model, ast.Name) and isinstance(target, ast.Name):
        return model.id == target.id and owner is file and file.function(model) is file.function(target)
    if not isinstance(model, ast.Attribute) or not isinstance(target, ast.Attribute) or model.attr != target.attr:
        return False
    return ast.unparse(target.value) == "self" and _holder(file, model) == _holder(owner, target) is not None


def _holder(file: File, attribute: ast.Attribute) -> ClassValue | None:
    """The class of the objects that an attribute is read off, if it is one."""
    if ast.unparse(attribute.value) == "self":
        around = file.enclosing_class(attribute)
        classes = {v for v in file.values(around) if isinstance(v, ClassValue)} if around is not None else set()
    else:
        values = file.values(attribute.value)
        classes = {v.cls for v in values if isinstance(v, Instance)} if all(isinstance(v, Instance) for v in values) else set()
    return classes.pop() if len(classes) == 1 else None


def _stored(sharding: ShardingQueries, file: File, model: ast.expr) -> Iterator[ast.expr]:
    """What is assigned to the variable, other than by a wrap."""
    for index in [file.index] if isinstance(model, ast.Name) else file.program.files_that_store(model.attr):  # type: ignore[attr-defined]
        other = file.program.file(index)
        for key, assigned in other.assignments.items():
            is_same = key == ast.dump(model) if isinstance(model, ast.Name) else key.endswith(f"attr={model.attr!r}, ctx=Load())")  # type: ignore[attr-defined]
            yield from (value for _, value in assigned if is_same)


def _is_tested(file: File, model: ast.expr) -> bool:
    """Whether code around a place asks for the model's class or members: it is not known which branch a sharded one takes."""
    function, text = file.function(model), ast.dump(model)
    nodes = ast.walk(function) if function is not None else iter(file.nodes(ast.If, ast.IfExp, ast.While, ast.Try))
    tests = (n.test for n in nodes if isinstance(n, (ast.If, ast.IfExp, ast.While)))
    is_tried = any(isinstance(around, ast.Try) for around in file.ancestors(model))
    return is_tried or any(ast.dump(part) == text for test in tests for part in ast.walk(test))
