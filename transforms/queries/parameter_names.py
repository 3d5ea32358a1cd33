"""Whether code depends on what DDP and FSDP1 put into the names of parameters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..flow.values import Constant
from .file import File

_COLLECTS = frozenset({"list", "sorted", "tuple", "set", "frozenset"})
_LOOPS = (ast.For, ast.AsyncFor, ast.comprehension)
_PRINTS = re.compile(r"builtins\.print|logging\.|warnings\.")
_LOGS = frozenset({"debug", "info", "warning", "error", "print", "write"})


def depends_on_prefix(file: File, call: ast.Call) -> bool:
    """Whether something other than the ends of names, or texts inside of them, is made of the names that a call gives.

    ``call`` is ``model.named_parameters()`` or one of its kind. What is only printed does not count.
    """
    parent = file.parents[call]
    while isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id in _COLLECTS:
        parent = file.parents[parent]
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id in ("len", "sum", "any", "all"):
        return False
    if not isinstance(parent, _LOOPS) or not isinstance(parent.target, ast.Tuple) or len(parent.target.elts) != 2:
        return True
    name = parent.target.elts[0]
    if not isinstance(name, ast.Name):
        return True
    model = call.func.value if isinstance(call.func, ast.Attribute) else call
    counts = [use for use in _uses(file, parent, name.id) if not _is_insensitive(file, use)]
    return any(not _meets_names_by_parts(file, use, ast.unparse(model)) for use in counts)


def asks_for_fsdp1(file: File, call: ast.Call) -> bool:
    """Whether names that a call gives are asked for a text that only FSDP1's wrapper puts into them: ``"fsdp" in name``."""
    parent = file.parents[call]
    target = parent.target if isinstance(parent, _LOOPS) else None
    name = target.elts[0] if isinstance(target, ast.Tuple) else None
    for use in _uses(file, parent, name.id) if isinstance(name, ast.Name) else ():
        test = file.parents[use]
        asked = test.left if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In | ast.NotIn) else None
        if isinstance(asked, ast.Constant) and "fsdp" in str(asked.value) and str(asked.value) in "._fsdp_wrapped_module.":
            return True
    return False


def _uses(file: File, loop: ast.AST, name: str) -> Iterator[ast.Name]:
    within = file.parents[loop] if isinstance(loop, ast.comprehension) else loop
    for node in ast.walk(within):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            yield node


def _is_insensitive(file: File, use: ast.Name) -> bool:
    parent = file.parents[use]
    if isinstance(parent, ast.Attribute) and parent.attr == "endswith":
        return True
    if isinstance(parent, ast.Compare) and len(parent.ops) == 1 and isinstance(parent.ops[0], ast.In | ast.NotIn):
        return parent.comparators[0] is use and _is_inner_text(file, parent.left)
    return _is_printed(file, use)


def _meets_names_by_parts(file: File, use: ast.Name, model: str) -> bool:
    """Whether a name is only looked up among names that a function puts together from the parts of the same model.

    Such names lose the prefix with the wrapper, as these do.
    """
    test = file.parents[use]
    if not isinstance(test, ast.Compare) or test.left is not use or not isinstance(test.ops[0], ast.In | ast.NotIn):
        return False
    made = [value for _, value in file.assignments.get(ast.dump(test.comparators[0]), ())]
    calls = [value for value in made if isinstance(value, ast.Call)]
    return bool(calls) and all(_names_parts(file, call, model) for call in calls)


def _names_parts(file: File, call: ast.Call, model: str) -> bool:
    """Whether a call gets a model, and walks through its children if it can be seen."""
    if getattr(call.func, "id", "") in _COLLECTS and call.args and isinstance(call.args[0], ast.Call):
        call = call.args[0]
    if model not in map(ast.unparse, call.args):
        return False
    bodies = [file.program.function_node(callee)[1] for callee in file.program.callees(file, call)]
    return all(any(getattr(node, "attr", "") == "named_children" for node in ast.walk(body)) for body in bodies)


def _is_inner_text(file: File, text: ast.expr) -> bool:
    """Whether a text is found in a name with the prefix exactly if it is found in the name without it."""
    if isinstance(text, ast.Constant):
        return isinstance(text.value, str) and not _touches_prefix(text.value)
    values = [v.value for v in file.values(text) if isinstance(v, Constant)]
    if values:
        return not any(isinstance(value, str) and _touches_prefix(value) for value in values)
    loop = next((a for a in file.ancestors(text) if isinstance(a, ast.GeneratorExp | ast.ListComp | ast.For)), None)
    iterated = loop.iter if isinstance(loop, ast.For) else loop.generators[0].iter if loop is not None else None
    texts = _texts(file, iterated) if iterated is not None else None
    return texts is not None and not any(map(_touches_prefix, texts))


def _texts(file: File, node: ast.expr) -> list[str] | None:
    """The texts in a list that is written out, here or where its name is bound."""
    if isinstance(node, ast.Name):
        bound = [value for _, value in file.assignments.get(ast.dump(node), ())]
        node = bound[0] if len(bound) == 1 else node
    if not isinstance(node, ast.List | ast.Tuple | ast.Set):
        return None
    if not all(isinstance(e, ast.Constant) and isinstance(e.value, str) for e in node.elts):
        return None
    return [str(e.value) for e in node.elts if isinstance(e, ast.Constant)]


def _touches_prefix(text: str) -> bool:
    return not text or text.startswith(".") or any(text in end for end in ("module.", "module")) or "module." in text


def _is_printed(file: File, use: ast.Name) -> bool:
    """Whether a name only goes into a text that is printed or logged."""
    for around in file.ancestors(use):
        if isinstance(around, ast.Call):
            method = around.func.attr if isinstance(around.func, ast.Attribute) else ""
            return bool(_PRINTS.match(file.external(around.func) or "")) or method in _LOGS
        if isinstance(around, ast.Raise):
            return True
        if not isinstance(around, ast.JoinedStr | ast.FormattedValue | ast.BinOp | ast.Tuple):
            return False
    return False
