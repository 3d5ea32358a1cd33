"""Where numbers are read off parameters and gradients, or off what is computed from them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..flow.library import TENSORS, is_tensor_math
from ..flow.values import Derived, Opaque, Unknown, Value
from .answers import Sharding
from .file import File
from .group_reads import is_setting
from .local_names import loop_of
from .sharding import ShardingQueries

METHODS = frozenset({"item", "tolist", "numpy"})
"""Methods of tensors that give numbers."""
_FUNCTIONS = re.compile(r"builtins\.(float|int|bool)|math\.\w+")
_OF_COLLECTIONS = re.compile(r"torch\.(tensor|as_tensor|asarray|\w*Tensor)|numpy\.[\w.]+|statistics\.\w+|math\.fsum")
"""Functions that read a number off each tensor in what they are given."""

_READERS = ("wandb.", "scipy.", "sklearn.", "pandas.", "matplotlib.", "seaborn.", "plotly.", "PIL.", "cv2.")
_DRAWS = frozenset({"add_histogram", "add_embedding", "add_image"})
"""Methods of tensorboard's writers."""

Read = tuple[ast.AST, ast.expr, Sharding]
"""What reads, the tensor or the collection of tensors that it reads off, and whether they are sharded."""


def numbers_read(file: File, sharding: ShardingQueries) -> Iterator[Read]:
    """``x.item()``, ``float(x)``, ``torch.tensor([x, y])``, ``wandb.Histogram(x)``, ``f"{x:.3f}"`` and ``if x > 3``."""
    for node in file.nodes(ast.Call, ast.FormattedValue, ast.Compare):
        if isinstance(node, ast.Call):
            yield from _by_call(file, sharding, node)
        elif isinstance(node, ast.FormattedValue):
            yield from _number(file, sharding, node, node.value)
        elif is_tested(file, node) and not isinstance(node.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn)):
            for operand in (node.left, *node.comparators):
                yield from _number(file, sharding, node, operand)


def _by_call(file: File, sharding: ShardingQueries, call: ast.Call) -> Iterator[Read]:
    if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS and not call.args:
        yield from _number(file, sharding, call, call.func.value)
        return
    name = file.external(call.func) or "" if call.args else ""
    if len(call.args) == 1 and _FUNCTIONS.fullmatch(name):
        yield from _number(file, sharding, call, call.args[0])
    if _OF_COLLECTIONS.fullmatch(name):
        values = [v for held in values_held(file, call.args[0]) for v in held]
        itself = [v for v in file.values(call.args[0]) if isinstance(v, Derived)]
        yield from _number(file, sharding, call, call.args[0], [*values, *itself])
    elif _is_of_others(file, call, name):
        for given in (*call.args, *(keyword.value for keyword in call.keywords)):
            yield from _number(file, sharding, given, given)


def _is_of_others(file: File, call: ast.Call, name: str) -> bool:
    """Whether code that knows nothing of shards reads a tensor: libraries of arrays and pictures, and what draws histograms."""
    return name.startswith(_READERS) or getattr(call.func, "attr", "") in _DRAWS


def _number(
    file: File, sharding: ShardingQueries, node: ast.AST, read: ast.expr, values: list[Value] | None = None
) -> Iterator[Read]:
    """A tensor that is read, or a collection with the values in it."""
    values = file.values(read) if values is None else values
    owners = [v.owner for v in values if isinstance(v, Derived) and v.kind in TENSORS]
    found = sharding.of_owners(owners, path=file.path)  # type: ignore[arg-type]
    if found.wrappers or (not any(map(_says_something, values)) and any(_is_unknown_gradient(file, n) for n in ast.walk(read))):
        if not is_setting(file, read) and not _is_key(file, read):
            yield node, read, found


def _is_key(file: File, node: ast.expr) -> bool:
    """Whether a name is that of a parameter or buffer, in a loop over pairs."""
    loop = loop_of(file, node) if isinstance(node, ast.Name) else None
    if loop is None or not (isinstance(loop.target, ast.Tuple) and isinstance(loop.iter, ast.Call)):
        return False
    method = getattr(loop.iter.func, "attr", "")
    is_first = isinstance(loop.target.elts[0], ast.Name) and loop.target.elts[0].id == node.id  # type: ignore[attr-defined]
    return is_first and (method == "items" or method.startswith("named_"))


def _says_something(value: Value) -> bool:
    """Whether a value tells what a number is computed from: what a function of torch gave does not."""
    return not (isinstance(value, Opaque) and is_tensor_math(value.name))


def values_held(file: File, collection: ast.expr) -> Iterator[list[Value]]:
    """What is in a collection: in comprehensions and displays by what is written, else by the containers that come there."""
    if isinstance(collection, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        yield file.values(collection.elt)
    elif isinstance(collection, ast.List | ast.Tuple | ast.Set):
        yield from map(file.values, collection.elts)
    else:
        yield from file.held_values(collection)


def _is_unknown_gradient(file: File, node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or node.attr != "grad":
        return False
    return all(isinstance(v, Unknown) for v in file.values(node.value))


def is_tested(file: File, node: ast.AST) -> bool:
    """Whether a branch or a loop asks whether an expression is true."""
    parent = file.parents[node]
    while isinstance(parent, (ast.BoolOp, ast.UnaryOp)):
        node, parent = parent, file.parents[parent]
    return isinstance(parent, (ast.If, ast.While, ast.IfExp, ast.Assert)) and parent.test is node
