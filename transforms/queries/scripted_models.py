"""Models that may be scripted before they are wrapped: fully_shard can set no hooks on them."""

from __future__ import annotations

import ast

from ..flow.values import Instance, Opaque, Value
from .assignments import assigned_values
from .file import File
from .program import Program


def may_be_scripted(file: File, wrap: ast.Call) -> bool:
    """Whether what is wrapped gets what ``torch.jit`` makes of a model: where it is wrapped, or in the function that gives it."""
    model = wrap.args[0] if wrap.args else None
    if not isinstance(model, (ast.Name, ast.Attribute)):
        return False
    if any(_is_scripting(file, value) for value in assigned_values(file, model)):
        return True
    values = {value for value in file.values(model) if isinstance(value, (Instance, Opaque))}
    return any(not values.isdisjoint(scripted) for scripted in file.program.once(_Scripted).given_back)


class _Scripted:
    """What functions script and give back."""

    def __init__(self, program: Program) -> None:
        self.given_back: list[set[Value]] = []
        for file in (program.file(i) for i in program.relevant_files() if "torch.jit" in program.text(program.facts[i].path)):
            for call in (call for call in file.nodes(ast.Call) if call.args and _is_scripting(file, call)):
                if _is_given_back(file, call):
                    self.given_back.append(set(file.values(call.args[0])))


def _is_given_back(file: File, call: ast.Call) -> bool:
    """Whether a function returns what it scripts, at once or by the name that the model had."""
    around = file.parents[call]
    around = file.parents[around] if isinstance(around, ast.IfExp) else around
    if isinstance(around, ast.Return):
        return True
    name, function = ast.unparse(call.args[0]), file.function(call)
    bound = [ast.unparse(target) for target in around.targets] if isinstance(around, ast.Assign) else []
    returned = (n.value for n in ast.walk(function) if isinstance(n, ast.Return)) if function is not None else ()
    return bound == [name] and any(value is not None and ast.unparse(value) == name for value in returned)


def _is_scripting(file: File, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and (file.external(node.func) or "").startswith("torch.jit.")
