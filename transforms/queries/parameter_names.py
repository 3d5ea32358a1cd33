"""Whether code depends on what DDP and FSDP1 put into the names of parameters."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Sequence

from .arguments import parameter_for
from .file import File
from .local_names import loop_of
from .name_uses import NameUse, Prefix, is_printed, loop_targets, name_use
from .program import Program
from .root_members import surely_lacks

_COLLECTS = frozenset({"list", "sorted", "tuple", "set", "frozenset", "dict"})
_MEETS = frozenset({"append", "add", "get", "pop", "remove", "discard"})
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_COUNTS = frozenset({"len", "sum", "any", "all"})
_LOOPS = (ast.For, ast.AsyncFor, ast.comprehension)
_NAMING = frozenset({"named_parameters", "named_buffers", "named_modules"})


def depends_on_prefix(file: File, call: ast.Call) -> bool:
    """Whether anything that DDP's ``module.`` makes a difference to is made of the names that a call gives.

    ``call`` is ``model.named_parameters()`` or one of its kind.
    """
    return uses_of_names(file, call, Prefix.DDP) != {NameUse.NONE}


def asks_for_fsdp1_names(program: Program) -> bool:
    """Whether something in the repository is decided by what FSDP1 put into names, so that all kept names need it too."""
    for file in map(program.file, program.relevant_files()):
        for call in file.nodes(ast.Call):
            if getattr(call.func, "attr", "") in _NAMING and NameUse.ASKED in uses_of_names(file, call, Prefix.FSDP1):
                return True
    return False


def uses_of_names(file: File, call: ast.Call, prefix: Prefix) -> set[NameUse]:
    """What is made of the names that a call gives, and of all others of the function that they are looked up among.

    Those lose the prefix with the wrapper, as these do, or keep it together.
    """
    names = _Names(file, file.function(call) or file.tree, prefix)
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if owner is not None:
        names.model, names.lacks = ast.unparse(owner), functools.partial(surely_lacks, file, owner)
    return names.uses([call])


class _Names:
    """The names that one call gives, the collections that they are put into, and what else meets these."""

    def __init__(self, file: File, scope: ast.AST, prefix: Prefix) -> None:
        self._file, self._scope, self._prefix = file, scope, prefix
        self._inside = set(ast.walk(scope))
        self.model = ""
        self.lacks: Callable[[str], bool] = lambda _: False
        self._inside_of: set[ast.AST] = {scope}
        self._pending: list[ast.Call | str] = []
        self._seen: set[ast.Call | str] = set()
        self._found: set[NameUse] = set()

    def uses(self, calls: Sequence[ast.Call] = ()) -> set[NameUse]:
        self._pending += calls
        while self._pending:
            item = self._pending.pop()
            if item in self._seen:
                continue
            self._seen.add(item)
            if isinstance(item, str):
                self._follow_collection(item)
            else:
                self._follow_source(item, pairs=True)
        return self._found - {NameUse.NONE} or {NameUse.NONE}

    def _follow_source(self, source: ast.expr, pairs: bool) -> None:
        """What becomes of the names, or pairs of names and tensors, that an expression gives."""
        node: ast.AST = source
        parent = self._file.parents[node]
        while isinstance(parent, ast.Call) and getattr(parent.func, "id", "") in _COLLECTS:
            node, parent = parent, self._file.parents[parent]
        if isinstance(parent, ast.Call) and getattr(parent.func, "id", "") in _COUNTS:
            return
        if isinstance(parent, (ast.If, ast.While, ast.IfExp)) and parent.test is node:
            return  # whether there are any
        if isinstance(parent, _LOOPS) and parent.iter is node and isinstance(parent.target, ast.Tuple) == pairs:
            for name in loop_targets(parent):
                for use in self._reads(name, self._file.parents[parent] if isinstance(parent, ast.comprehension) else parent):
                    self._follow_use(use)
            return
        is_dict = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict"
        if pairs and not is_dict and (name := self._assigned_to(node)) and self._values(name):
            for read in self._reads(name, self._scope):  # a list of pairs
                self._follow_source(read, pairs=True)
            return
        collection = self._assigned_to(node) if is_dict or not pairs else None
        if collection is not None:
            self._pending.append(collection)
        elif pairs and (handed := self._handed_to(node)):
            for owner, function, name in handed:
                self._found |= self._uses_of_parameter(owner, function, name)
        elif pairs or not is_printed(self._file, node):
            self._found.add(NameUse.KEPT)

    def _handed_to(self, node: ast.AST) -> list[tuple[File, ast.FunctionDef, str]]:
        """The parameters that pairs are handed in for, where all functions that a call comes to are seen."""
        call, found = self._file.parents[node], []
        callees = self._file.program.callees(self._file, call) if isinstance(call, ast.Call) else []
        for owner, function in map(self._file.program.function_node, callees):
            is_method = isinstance(function, ast.FunctionDef) and owner.enclosing_class(function) is not None
            name = parameter_for(function, node, call, is_method) if isinstance(function, ast.FunctionDef) else None  # type: ignore[arg-type]
            if name is None or function in self._inside_of:
                return []
            found.append((owner, function, name))
        return found

    def _uses_of_parameter(self, owner: File, function: ast.FunctionDef, name: str) -> set[NameUse]:
        inner = _Names(owner, function, self._prefix)
        inner.lacks = self.lacks
        inner._inside_of |= self._inside_of
        for read in inner._reads(name, function):
            inner._follow_source(read, pairs=True)
        return inner.uses()

    def _follow_use(self, use: ast.Name) -> None:
        parent = self._file.parents[use]
        if isinstance(parent, _COMPREHENSIONS) and (parent.key if isinstance(parent, ast.DictComp) else parent.elt) is use:
            self._follow_source(parent, pairs=False)
        elif (collection := self._looked_up_in(use)) is not None or (collection := self._put_into(use)) is not None:
            self._pending.append(collection)
        else:
            self._found.add(name_use(self._file, use, self._prefix, self.lacks))

    def _follow_collection(self, name: str) -> None:
        """Whether a local variable holds such names alone, and what is done with them."""
        for value in self._values(name):
            if not self._are_names(value):
                self._found.add(NameUse.ASKED)
        for use in self._reads(name, self._scope):
            parent = self._file.parents[use]
            if isinstance(parent, ast.Compare) and parent.comparators[-1] is use:
                looked_up = parent.left
                source = self._source_of(looked_up) if isinstance(looked_up, ast.Name) else None
                if source is None:
                    self._found.add(NameUse.ASKED)
                else:
                    self._pending.append(source)
            elif (meets := self._meets(use)) is not None:
                source = self._source_of(meets) if isinstance(meets, ast.Name) else None
                self._found.add(NameUse.ASKED) if source is None else self._pending.append(source)
            elif isinstance(parent, ast.Attribute) and parent.attr in ("items", "values"):
                if parent.attr == "items":
                    self._follow_source(self._file.parents[parent], pairs=True)  # type: ignore[arg-type]
            elif not is_printed(self._file, use):
                self._follow_source(use, pairs=False)

    def _meets(self, use: ast.Name) -> ast.expr | None:
        """What is put into a collection, or looked up in it, where it is read."""
        parent = self._file.parents[use]
        if isinstance(parent, ast.Subscript) and parent.value is use:
            return parent.slice
        call = self._file.parents[parent] if isinstance(parent, ast.Attribute) and parent.attr in _MEETS else None
        return call.args[0] if isinstance(call, ast.Call) and call.args else None

    def _are_names(self, value: ast.expr) -> bool:
        """Whether an expression gives names of the same model; those that it comes from are followed."""
        if isinstance(value, ast.Call) and getattr(value.func, "id", "") in _COLLECTS:
            return not value.args or self._are_names(value.args[0])
        if self._is_source(value):
            self._pending.append(value)  # type: ignore[arg-type]
            return True
        if isinstance(value, (ast.List, ast.Set, ast.Tuple, ast.Dict)):
            return not (value.keys if isinstance(value, ast.Dict) else value.elts)
        if isinstance(value, ast.Name):
            self._pending.append(value.id)
            return bool(self._values(value.id))
        made = None
        if isinstance(value, _COMPREHENSIONS):
            made = value.key if isinstance(value, ast.DictComp) else value.elt
        if isinstance(made, ast.Name):
            source = self._source_of(made)
            if source is not None:
                self._pending.append(source)
            return source is not None
        return isinstance(value, ast.Call) and self._names_parts(value)

    def _names_parts(self, call: ast.Call) -> bool:
        """Whether a function puts the names together from the parts of the model: it walks through its children, if seen."""
        if self.model not in map(ast.unparse, call.args):
            return False
        bodies = [self._file.program.function_node(callee)[1] for callee in self._file.program.callees(self._file, call)]
        return all(any(getattr(node, "attr", "") == "named_children" for node in ast.walk(body)) for body in bodies)

    def _source_of(self, name: ast.Name) -> ast.Call | str | None:
        """The call on the same model, or the collection, that the loop around a name takes it from."""
        loop = loop_of(self._file, name)
        if loop is None or name.id not in loop_targets(loop):
            return None
        iterated = loop.iter
        while isinstance(iterated, ast.Call) and getattr(iterated.func, "id", "") in _COLLECTS and iterated.args:
            iterated = iterated.args[0]
        if isinstance(iterated, ast.Call) and getattr(iterated.func, "attr", "") == "items":
            iterated = iterated.func.value  # type: ignore[attr-defined]
        if isinstance(iterated, ast.Name):
            values = self._values(iterated.id)
            if len(values) != 1 or not self._is_source(values[0]):
                return iterated.id
            iterated = values[0]
        return iterated if self._is_source(iterated) else None  # type: ignore[return-value]

    def _is_source(self, node: ast.expr) -> bool:
        method = node.func if isinstance(node, ast.Call) else None
        return isinstance(method, ast.Attribute) and method.attr in _NAMING and ast.unparse(method.value) == self.model

    def _looked_up_in(self, use: ast.Name) -> str | None:
        test = self._file.parents[use]
        if isinstance(test, ast.Compare) and test.left is use and isinstance(test.ops[0], ast.In | ast.NotIn):
            return self._local(test.comparators[0])
        return None

    def _put_into(self, use: ast.Name) -> str | None:
        parent = self._file.parents[use]
        if isinstance(parent, ast.Subscript) and parent.slice is use:
            return self._local(parent.value)
        method = parent.func if isinstance(parent, ast.Call) and parent.args[:1] == [use] else None
        return self._local(method.value) if isinstance(method, ast.Attribute) and method.attr in _MEETS else None

    def _assigned_to(self, node: ast.AST) -> str | None:
        statement = self._file.parents[node]
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        return target.id if isinstance(target, ast.Name) else None

    def _local(self, collection: ast.expr) -> str | None:
        return collection.id if isinstance(collection, ast.Name) and self._values(collection.id) else None

    def _values(self, name: str) -> list[ast.expr]:
        """What is assigned to a variable of the function, if that is all that it may hold."""
        found = self._file.assignments.get(ast.dump(ast.Name(name, ast.Load())), ())
        own = [value for statement, value in found if (self._file.function(statement) or self._file.tree) is self._scope]
        return own if len(own) == sum(binding in self._inside for binding in self._file.bindings.get(name, ())) else []

    def _reads(self, name: str, within: ast.AST) -> Iterator[ast.Name]:
        for node in ast.walk(within):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
                yield node
