"""Classes whose objects keep copies of parameters that were made where FSDP1's summon_full_params had these whole."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..flow.library import CONTAINER_WRITES
from ..flow.values import Constant, Instance, Value
from .file import File
from .program import Program
from .sharding import ShardingQueries
from .summoned import summoned_around


def keeps_whole_copies(sharding: ShardingQueries, value: Value) -> bool:
    """Whether an object stores parameters of sharded models, all of them where they are whole, and no model itself."""
    return isinstance(value, Instance) and sharding.program.once(_WholeCopies).are_kept(sharding, value)


class _WholeCopies:
    """The answers for classes, by the objects of which there is one: a state is asked for in many places."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._found: dict[object, bool] = {}

    def are_kept(self, sharding: ShardingQueries, value: Instance) -> bool:
        """As ``keeps_whole_copies``."""
        if value.cls not in self._found:
            self._found[value.cls] = self._are_kept(sharding, value)
        return self._found[value.cls]

    def _are_kept(self, sharding: ShardingQueries, value: Instance) -> bool:
        are_whole: list[bool] = []
        for file, place, stored in self._stores_in(value):
            values = [v for v in file.values(stored) if not (isinstance(v, Constant) and v.value is None)]
            if sharding.of_values(values).wrappers:
                return False
            if sharding.of_owners(list(sharding.owners(values))).wrappers:
                are_whole.append(next(summoned_around(file, place), None) is not None)
        return bool(are_whole) and all(are_whole)

    def _stores_in(self, value: Instance) -> Iterator[tuple[File, ast.AST, ast.expr]]:
        """What the code of an object's class, and other code, stores in its attributes or in what these hold.

        Not what is loaded: that was such a state.
        """
        known: list[ast.ClassDef] = []
        names: set[str] = set()
        for _, node in map(self.program.class_node, self.program.flow.ancestors(value.cls)):
            if node is not None:
                known.append(node)
                names |= {attribute for _, attribute, owner, _ in _stores(node) if owner == "self"}
        for index in sorted({i for name in names for i in self.program.files_by_word.get(name, ())}):
            other = self.program.file(index)
            for store, attribute, owner, given in _stores(other.tree):
                function = other.function(store)
                is_loaded = isinstance(function, ast.FunctionDef) and function.name == "load_state_dict"
                if attribute in names and not is_loaded and (owner != "self" or other.enclosing_class(store) in known):
                    yield other, store, given


def _stores(within: ast.AST) -> Iterator[tuple[ast.AST, str, str, ast.expr]]:
    """What is stored in attributes, or in what they hold: the place, attribute, what it is read off, and what is given."""
    for node in ast.walk(within):
        targets: list[ast.expr] = []
        given: list[ast.expr] = []
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            targets, given = node.targets if isinstance(node, ast.Assign) else [node.target], [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CONTAINER_WRITES:
            targets, given = [node.func.value], [*node.args, *(keyword.value for keyword in node.keywords)]
        for target in (part for one in targets for part in (one.elts if isinstance(one, ast.Tuple) else [one])):
            while isinstance(target, ast.Subscript):
                target = target.value
            if isinstance(target, ast.Attribute):
                found = (element for one in given for element in _elements(one))
                yield from ((node, target.attr, ast.unparse(target.value), element) for element in found)


def _elements(node: ast.expr) -> Iterator[ast.expr]:
    """What a display or a comprehension puts into its container, which may get more elsewhere; else the expression itself."""
    if isinstance(node, ast.DictComp):
        yield from _elements(node.value)
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        yield from _elements(node.elt)
    elif isinstance(node, (ast.Dict, ast.List, ast.Tuple, ast.Set)):
        for element in node.values if isinstance(node, ast.Dict) else node.elts:
            yield from _elements(element)
    else:
        yield node
