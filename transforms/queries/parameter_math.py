"""Whether code may compute with parameters or gradients outside of forwards, or read numbers off them: by names alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence

from ..flow.values import ClassValue
from .constructors import functions_of_constructors
from .differentiated import inputs_of_gradients
from .file import File
from .group_reads import is_setting
from .local_values import local_value
from .parameter_reads import ASKED, OF_LAYERS, parameter_names
from .program import Program
from .sharding import ShardingQueries

_TENSORS = re.compile(r"param|\bgrad|weight|state_dict|theta|\bema\b|shadow", re.IGNORECASE)
"""What stands in the expression that a loop over parameters, gradients or averages goes through."""
_NAMES = re.compile(r"(\w*_)?(name|key|prefix)s?")
"""What variables are called that hold names of parameters."""
_OF_STRINGS = frozenset({"endswith", "startswith", "split", "rsplit", "partition", "rpartition", "replace", "strip", "lower",
                         "removeprefix", "removesuffix", "isdisjoint", "join", "find"})  # fmt: skip
"""Methods that no tensor has."""
_GIVES_NONE = ASKED | {"requires_grad_", "zero_", "retain_grad", "zero_grad", "fill_", "main_grad"}
_TAKES_ANY = re.compile(
    r"append|extend|add|insert|update|setdefault|get|id|len|type|isinstance|hasattr|getattr|setattr|print|debug|info"
    r"|(?:constant|zeros|ones)_|Parameter|register_parameter"
    r"|clip_grad_(?:norm|value)_|Adam\w*|SGD|\w*Optim\w*|add_param_group|DataParallel|next|iter|list|enumerate|zip|filter|sum|sorted"
)
"""Functions that do not compute with a parameter that they are given, or know what it is."""
_OF_INIT = re.compile(r"__init__|_*(?:init|initialize)_(?:weights?|params?|parameters)\w*|_*weights?_init\w*|reset_parameters")
_COLLECTIVE = re.compile(r"\b(?:all_reduce|all_gather\w*|reduce_scatter\w*)\(|\bdist\w*\.(?:reduce|gather)\(")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


IsBefore = Callable[[File, ast.AST], bool]
"""Which places run before all wraps."""


def computes_with_parameters(sharding: ShardingQueries, paths: Sequence[str], is_before: IsBefore) -> bool:
    """Whether code in some files may do so."""
    return any(True for _ in computations(sharding, paths, is_before))


def computations(sharding: ShardingQueries, paths: Sequence[str], is_before: IsBefore) -> Iterator[tuple[File, ast.expr]]:
    """The places where code in some files may do so, each with what may be a parameter, a gradient or an optimizer's state."""
    for file in map(sharding.program.file, paths):
        for node in sharding.program.once(_OfFiles).places(sharding, file):
            if not is_before(file, node):
                yield file, node


class _OfFiles:
    """The places of each file that compute with what may be a parameter, whenever they are reached."""

    def __init__(self, _: Program) -> None:
        self._places: dict[int, list[ast.expr]] = {}

    def places(self, sharding: ShardingQueries, file: File) -> list[ast.expr]:
        """Those of one file; it is looked at once."""
        if file.index not in self._places:
            computed = (n for n in tensors_by_name(file) if _is_computed_with(file, n) and not _is_of_module(sharding, file, n))
            self._places[file.index] = [*states_read(file), *computed]
        return self._places[file.index]


def reduces_own_parts(sharding: ShardingQueries, paths: Sequence[str], is_before: IsBefore) -> bool:
    """Whether code in some file both computes with parameters and calls collectives: it may add up what each rank has of them."""
    reducing = [path for path in paths if _COLLECTIVE.search(sharding.program.text(path))]
    return computes_with_parameters(sharding, reducing, is_before)


def states_read(file: File) -> Iterator[ast.Attribute]:
    """``optimizer.state`` of ``optimizer.state[p]`` and ``optimizer.state.values()``, but for an optimizer's own."""
    for node in file.nodes(ast.Attribute):
        is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
        parent = file.parents[node]
        is_read = isinstance(parent, ast.Subscript) or getattr(parent, "attr", "") in ("values", "items", "get")
        if node.attr == "state" and not is_self and is_read and "opt" in ast.unparse(node.value).lower():
            yield node


def tensors_by_name(file: File) -> Iterator[ast.expr]:
    """Expressions that may be parameters or gradients."""
    own = parameter_names(file.program)
    for node in file.nodes(ast.Attribute):
        is_tensor = node.attr == "grad" or node.attr in own or OF_LAYERS.fullmatch(node.attr)
        if is_tensor and isinstance(node.ctx, ast.Load) and file.external(node) is None:
            yield node
    for loop in file.nodes(ast.For, ast.comprehension):
        if not _TENSORS.search(ast.unparse(loop.iter)) or _is_of_state(file, loop.iter):
            continue
        names = {name for name in _names_of_tensors(loop.target, loop.iter) if not _NAMES.fullmatch(name)}
        for inside in ast.walk(file.parents[loop] if isinstance(loop, ast.comprehension) else loop):
            if isinstance(inside, ast.Name) and isinstance(inside.ctx, ast.Load) and inside.id in names:
                yield inside
    yield from inputs_of_gradients(file)


def _is_of_state(file: File, over: ast.expr) -> bool:
    """Whether a loop goes over the entries of one or several state dicts: they are whole, and what is written reaches models."""
    if isinstance(over, ast.Call) and getattr(over.func, "id", "") == "zip":
        return bool(over.args) and all(_is_of_state(file, each) for each in over.args)
    if not (isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and over.func.attr in ("items", "values")):
        return False
    state = over.func.value
    made = local_value(file, state) if isinstance(state, ast.Name) else None
    call = made.value if made is not None else state
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "state_dict"


def _names_of_tensors(target: ast.expr, over: ast.expr) -> Iterator[str]:
    """The names of a loop that are no counts, and no names of parameters."""
    called = getattr(over.func, "attr", getattr(over.func, "id", "")) if isinstance(over, ast.Call) else ""
    given = over.args if isinstance(over, ast.Call) else []
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    is_literal = isinstance(over, (ast.List, ast.Tuple, ast.Set))
    if called in ("keys", "range") or (is_literal and all(isinstance(element, ast.Constant) for element in over.elts)):
        return
    if called in ("list", "tuple", "sorted", "reversed", "iter", "tqdm") and given:
        yield from _names_of_tensors(target, given[0])
    elif called == "enumerate" and given and len(parts) == 2:
        yield from _names_of_tensors(parts[1], given[0])
    elif called == "zip" and len(parts) == len(given):
        for part, each in zip(parts, given, strict=True):
            yield from _names_of_tensors(part, each)
    elif (called == "items" or called.startswith("named_")) and len(parts) == 2:
        yield from (n.id for n in ast.walk(parts[1]) if isinstance(n, ast.Name))
    else:
        yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))


def _is_computed_with(file: File, node: ast.expr) -> bool:
    """Whether an expression is used in any way but those that are the same for a sharded tensor."""
    parent = file.parents[node]
    if is_setting(file, parent):
        return False
    while isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is node:
        if isinstance(parent, ast.Attribute) and parent.attr in _GIVES_NONE | _OF_STRINGS:
            return False
        if not isinstance(parent.ctx, ast.Load):
            return isinstance(parent, ast.Subscript) or (parent.attr == "data" and isinstance(file.parents[parent], ast.Assign))
        node, parent = parent, file.parents[parent]
    if isinstance(parent, ast.Call) and parent.func is node:
        return True
    if isinstance(parent, (ast.BinOp, ast.AugAssign, ast.FormattedValue)):
        return True
    if isinstance(parent, ast.Compare):
        return not isinstance(parent.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn, ast.Eq))
    if isinstance(parent, ast.keyword):
        parent = file.parents[parent]
    if isinstance(parent, ast.Call):
        name = parent.func.attr if isinstance(parent.func, ast.Attribute) else getattr(parent.func, "id", "")
        return _TAKES_ANY.fullmatch(name) is None
    return False


def is_in_module(sharding: ShardingQueries, file: File, node: ast.AST) -> bool:
    """Whether a place is in a class of modules: code that runs in forwards, or is called so that it gathers as they do."""
    around = file.enclosing_class(node)
    return around is not None and (
        any(isinstance(v, ClassValue) and sharding.makes_modules(v) for v in file.values(around))
        or any(isinstance(member, _FUNCTIONS) and member.name == "forward" for member in around.body)
    )


def _is_of_module(sharding: ShardingQueries, file: File, node: ast.expr) -> bool:
    """Whether a place belongs to a module's own code, or to what fills parameters when a model is made."""
    functions = [around for around in file.ancestors(node) if isinstance(around, _FUNCTIONS)]
    if any(_OF_INIT.fullmatch(function.name) for function in functions):
        return True
    root: ast.expr = node
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    if not (isinstance(root, ast.Name) and root.id == "self"):
        called = functions_of_constructors(sharding)
        return any(function.name in called for function in functions)
    return is_in_module(sharding, file, node) or any(function.name.startswith("forward") for function in functions)
