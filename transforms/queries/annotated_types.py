"""What annotations, tests and names say of a value: that it is a tensor, a scheduler, a container or the like, so no model."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..flow.library import makes_no_modules
from .file import File
from .narrowed import tests_of

_TENSORS = frozenset({"Tensor", "FloatTensor", "LongTensor", "BoolTensor", "Parameter", "ndarray"})
_PLAIN = frozenset({"str", "int", "float", "bool", "bytes", "Path"})
_CONTAINERS = frozenset({"dict", "list", "tuple", "set", "Mapping", "Sequence"})
_OTHERS = re.compile(r"(?i)(^|_)((lr_?)?sched(uler)?s?|(grad_?|loss_?)?scaler|data_?loader|logger|writer|accelerator|fabric)$")
_CHOOSES = ("typing.", "typing_extensions.", "collections.abc.")
"""Where an alias of several types, or of something with a way of its own, comes from: `Parameters = Union[dict, nn.Module]`."""
_CHOICES = frozenset({"Optional", "Union"})


def says_no_model(file: File, node: ast.AST) -> bool:
    """Whether a name itself, its annotation as a parameter or a test around a place says that no model is in it."""
    if isinstance(node, (ast.Name, ast.Attribute)) and _OTHERS.search(node.attr if isinstance(node, ast.Attribute) else node.id):
        return True
    if not isinstance(node, ast.Name):
        return False
    if any(_asks_for_other(file, test) for test in tests_of(file, node, node)):
        return True
    annotation = _annotation(file, node)
    named = file.external(annotation) if annotation is not None else None
    if named is not None and makes_no_modules(named) and not named.startswith(_CHOOSES):
        return True  # `node: ast.ImportFrom`
    names, function = _names_of_parameter(file, node), file.function(node)
    if not names or not names <= _TENSORS | _PLAIN:
        return False
    # A name or path of a model is often given for what is built of it, under the same name.
    return names <= _TENSORS or not any(file.function(b) is function for b in file.bindings.get(node.id, ()))


def says_text(file: File, node: ast.expr) -> bool:
    """Whether a text is written there, or a parameter's annotation says that it is one."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return True
    return isinstance(node, ast.Name) and _names_of_parameter(file, node) == {"str"}


def _names_of_parameter(file: File, node: ast.Name) -> set[str]:
    """The types that the annotation of a parameter names; none for another variable."""
    annotation = _annotation(file, node)
    return _names(annotation) if annotation is not None else set()


def _annotation(file: File, node: ast.Name) -> ast.expr | None:
    function = file.function(node)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return next((a.annotation for a in arguments if a.arg == node.id and a.annotation is not None), None)


def _asks_for_other(file: File, test: ast.Call) -> bool:
    """Whether a test is only passed by what is no model."""
    name = file.external(test.func)
    if name != "builtins.isinstance" or len(test.args) != 2:
        return name == "torch.is_tensor"
    return _names(test.args[1]) <= _TENSORS | _PLAIN | _CONTAINERS


def _names(annotation: ast.expr) -> set[str]:
    """The last names of all types that an annotation, or the second argument of ``isinstance``, chooses from; "?" for others."""
    return {name for name in _types(annotation) if name != "None"}


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return ast.Slice()  # no type


def _types(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield from _types(_parsed(node.value)) if isinstance(node.value, str) else (str(node.value),)
    elif isinstance(node, (ast.Name, ast.Attribute)):
        yield node.attr if isinstance(node, ast.Attribute) else node.id
    elif isinstance(node, ast.BinOp):
        yield from _types(node.left)
        yield from _types(node.right)
    elif isinstance(node, ast.Tuple):
        for part in node.elts:
            yield from _types(part)
    elif isinstance(node, ast.Subscript) and next(_types(node.value)) in _CHOICES:
        yield from _types(node.slice)
    else:
        yield "?"
