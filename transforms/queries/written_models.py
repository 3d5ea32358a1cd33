"""Sharded models by what the text around an expression says.

Where a factory of anything has made a model, its values tell nothing of it, or too much: whatever the factory ever made.
The text near a use often says which model it is all the same: what a name was last assigned above, what a class
assigns to an attribute of ``self``, what a list holds, whose parameters a loop runs over.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from functools import cached_property

from ..flow import library
from ..flow.values import ClassValue, FunctionValue, Kept, Wrapped
from .file import File
from .program import Program
from .textual_order import precedes

_DEEPEST = 8
_ARRANGE = frozenset({"list", "tuple", "reversed", "iter", "sorted", "set", "next", "enumerate", "filter"})
_COMPUTE = frozenset({"sum", "max", "min", "abs"})
_SAME = frozenset({"typing.cast", "torch.compile"})
_TAKES = {name: kind for name, kind in library.DERIVED.items() if kind in ("parameters", "state_dict")}
_LOOPS = (ast.For, ast.AsyncFor, ast.comprehension)

Definition = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[File, ast.Call]
Known = Callable[[File, ast.expr], tuple]
"""The calls that shard an expression, by its values; an empty tuple where they do not tell."""


class WrittenModels:
    """What expressions are by the assignments and loops around them."""

    def __init__(self, program: Program, known: Known, registered: Collection[FunctionValue]) -> None:
        """``registered``: functions that shard what calls give them, and give it back."""
        self.program = program
        self.known = known
        self.registered = registered

    def of(self, file: File, node: ast.AST, depth: int = 0) -> tuple:
        """The calls that shard what an expression is; none where nothing near it says so."""
        if not isinstance(node, ast.expr) or depth > _DEEPEST:
            return ()
        if depth and (calls := self.known(file, node)):
            return calls
        if isinstance(node, ast.Call):
            kept = self._handed_through(file, node)
            return self.of(file, kept, depth + 1) if kept is not None else ()
        if isinstance(node, ast.Subscript):
            return () if isinstance(node.slice, ast.Slice) else self._of_elements(file, node.value, depth + 1)
        if isinstance(node, ast.Name):
            loop = _loop_over(file, node)
            if loop is not None:
                return self._of_elements(file, loop, depth + 1)
            value = _last_assigned(file, node)
            if value is None:
                return self._of_parameter(file, node, depth, lambda where, given: self.of(where, given, depth + 1))
            return self.of(file, value, depth + 1)
        return self._of_attribute(file, node, lambda where, value: self.of(where, value, depth + 1))

    def of_parts(self, file: File, node: ast.expr, kinds: Collection[str]) -> tuple:
        """The calls that shard the model whose parameters, gradients … an expression is taken from."""
        found = self._owner(file, node, 0)
        return self.of(file, found[0], 1) if found is not None and found[1] in kinds else ()

    # --- lists of models ----------------------------------------------------------------------------------

    def _of_elements(self, file: File, node: ast.expr, depth: int) -> tuple:
        if depth > _DEEPEST:
            return ()
        if isinstance(node, (ast.List, ast.Tuple)):
            each = [self.of(file, part, depth + 1) for part in node.elts]
            return tuple(dict.fromkeys(call for calls in each for call in calls)) if each and all(each) else ()
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self.of(file, node.elt, depth + 1)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ARRANGE and node.args:
            return self._of_elements(file, node.args[0], depth + 1)
        if isinstance(node, ast.Name):
            value = _last_assigned(file, node)
            if value is None:
                return self._of_parameter(file, node, depth, lambda where, given: self._of_elements(where, given, depth + 1))
            return self._of_elements(file, value, depth + 1)
        return self._of_attribute(file, node, lambda where, value: self._of_elements(where, value, depth + 1))

    def _of_attribute(self, file: File, node: ast.expr, of: Callable[[File, ast.expr], tuple]) -> tuple:
        """What the class around assigns to an attribute of ``self``: a sharded model at one place, no wrapper at another."""
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name) or node.value.id != "self":
            return ()
        found: list[object] = []
        for where, value in _assigned_to(file, node):
            if any(isinstance(v, (Wrapped, Kept)) for v in where.values(value)):
                return ()
            found += of(where, value)
        return tuple(dict.fromkeys(found))

    # --- parameters ---------------------------------------------------------------------------------------

    def _of_parameter(self, file: File, node: ast.Name, depth: int, of: Callable[[File, ast.expr], tuple]) -> tuple:
        """What every call of a function gives it: also a call of a method of this name on what nothing is known of."""
        function = file.function(node)
        if not isinstance(function, Definition) or depth > _DEEPEST:
            return ()
        names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
        if node.id not in names or any(file.function(bound) is function for bound in file.bindings.get(node.id, ())):
            return ()
        is_method = isinstance(file.parents[function], ast.ClassDef)
        found: list[object] = []
        for where, call in self._calls_of(file, function, is_method):
            given = _given(call, names.index(node.id) - is_method, node.id)
            calls = of(where, given) if given is not None else ()
            if not calls:
                return ()
            found += calls
        return tuple(dict.fromkeys(found))

    def _calls_of(self, file: File, function: Definition, is_method: bool) -> list[Place]:
        known = self.program.callers(file, function)
        return known or (self._of_nothing_known.get(function.name, []) if is_method else [])

    @cached_property
    def _of_nothing_known(self) -> dict[str, list[Place]]:
        """The calls of methods of which nothing shows what they reach, by the name of the method."""
        found: dict[str, list[Place]] = defaultdict(list)
        for file in map(self.program.file, self.program.relevant_files()):
            for call in file.nodes(ast.Call):
                if isinstance(call.func, ast.Attribute) and not self.program.callees(file, call):
                    found[call.func.attr].append((file, call))
        return found

    def _handed_through(self, file: File, call: ast.Call) -> ast.expr | None:
        """The model that a call gives back as it is: ``cast(Decoder, model)``, ``model.train()``, ``spec.parallelize(model)``."""
        if isinstance(call.func, ast.Attribute) and call.func.attr in library.RETURN_SELF:
            return call.func.value
        if call.args and not set(self.registered).isdisjoint(self.program.callees(file, call)):
            return call.args[0]
        return call.args[-1] if call.args and file.external(call.func) in _SAME else None

    # --- parts of models ----------------------------------------------------------------------------------

    def _owner(self, file: File, node: ast.expr, depth: int) -> tuple[ast.expr, str] | None:
        """The model that an expression is taken from, and what of it the expression is."""
        if depth > _DEEPEST:
            return None
        if isinstance(node, ast.Call):
            return self._owner_of_call(file, node, depth + 1)
        if isinstance(node, ast.Name):
            source = _loop_over(file, node) or _last_assigned(file, node)
            return self._owner(file, source, depth + 1) if source is not None else None
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self._owner(file, node.elt, depth + 1)
        if isinstance(node, ast.Attribute) and node.attr in ("grad", "data"):
            found = self._owner(file, node.value, depth + 1)
            return (found[0], "gradients" if node.attr == "grad" else found[1]) if found is not None else None
        if isinstance(node, (ast.List, ast.Tuple)) and node.elts:
            return self._owner(file, node.elts[0], depth + 1)
        if isinstance(node, ast.Dict):
            entries = zip(node.keys, node.values, strict=True)
            given = next((v for k, v in entries if isinstance(k, ast.Constant) and k.value == "params"), None)
            return self._owner(file, given, depth + 1) if given is not None else None
        if isinstance(node, ast.BinOp):
            return _computed(self._owner(file, node.left, depth + 1))
        return None

    def _owner_of_call(self, file: File, node: ast.Call, depth: int) -> tuple[ast.expr, str] | None:
        function = node.func
        if isinstance(function, ast.Name) and node.args:
            if function.id in _ARRANGE:
                return self._owner(file, node.args[0], depth)
            return _computed(self._owner(file, node.args[0], depth)) if function.id in _COMPUTE else None
        if not isinstance(function, ast.Attribute):
            return None
        if function.attr in _TAKES:
            return function.value, _TAKES[function.attr]
        symbol = file.external(function) or ""
        if symbol.startswith("torch.") and node.args:
            is_math = symbol.rpartition(".")[2] in library.TENSOR_MATH
            return _computed(self._owner(file, node.args[0], depth)) if is_math else None
        found = self._owner(file, function.value, depth)
        if function.attr in library.STAYS_DERIVED:
            return found
        return _computed(found) if function.attr in library.TENSOR_MATH else None


def _computed(found: tuple[ast.expr, str] | None) -> tuple[ast.expr, str] | None:
    return (found[0], "statistic") if found is not None and found[1] in library.TENSORS else None


def _given(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """What a call gives for a parameter."""
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    if 0 <= position < len(call.args):
        return call.args[position]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _loop_over(file: File, node: ast.Name) -> ast.expr | None:
    """What the loop runs over that binds a name, to its elements themselves or to the last part of each."""
    for around in file.ancestors(node):
        for loop in getattr(around, "generators", [around]):
            if isinstance(loop, _LOOPS) and node not in ast.walk(loop.iter):
                target = loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) else loop.target
                if isinstance(target, ast.Name) and target.id == node.id:
                    return loop.iter
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            break
    return None


def _last_assigned(file: File, node: ast.Name) -> ast.expr | None:
    """What a name was assigned last above, where no other assignment may have come in between."""
    wanted = ast.dump(node).replace("ctx=Store()", "ctx=Load()")
    made = [(s, v) for s, v in file.assignments.get(wanted, ()) if precedes(file, s, node)]
    if not made:
        return None
    statement, value = max(made, key=lambda pair: pair[0].lineno)
    bound = [name for name in file.bindings.get(node.id, ()) if file.function(name) is file.function(node)]
    inside = [name for name in bound if statement.lineno < name.lineno <= node.lineno and name is not node]
    return value if not inside else None


def _assigned_to(file: File, node: ast.Attribute) -> Iterator[tuple[File, ast.expr]]:
    """What the class around an attribute of ``self``, and its bases, assign to it."""
    cls = file.enclosing_class(node)
    known = next((v for v in file.values(cls) if isinstance(v, ClassValue)), None) if cls is not None else None
    if known is None:
        return
    wanted = ast.dump(node).replace("ctx=Store()", "ctx=Load()")
    flow = file.program.flow
    for ancestor in flow.ancestors(known):
        where, name = file.program.file(ancestor.file), flow.files[ancestor.file].classes[ancestor.index].name
        for statement, value in where.assignments.get(wanted, ()):
            around = where.enclosing_class(statement)
            if around is not None and around.name == name:
                yield where, value
