"""One file as the rules see it: its tree with parents, and the values that the analysis found for its nodes."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, cast

from ..facts.facts import NOTHING
from ..facts.helper_calls import helpers_in
from ..facts.symbols import WRAPPERS, canonical
from ..flow.values import ClassValue, Container, External, ModuleValue, Value
from ..text.source import Source
from ..text.trees import children, walk

if TYPE_CHECKING:
    from .program import Program

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Node = TypeVar("Node", bound=ast.AST)
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


class File:
    """A file that holds sites; made on demand, since most files of a repository hold none."""

    def __init__(self, program: Program, index: int, source: Source) -> None:
        self.program = program
        self.index = index
        self.source = source
        self.path = source.path
        self.tree = source.tree
        facts = program.facts[index]
        self._walked = walk(source.tree)
        self._nodes: dict[tuple[type[ast.AST], ...], Sequence[ast.AST]] = {}
        self._variables = _numbered(self._walked, facts.of_nodes)
        self._call_index = _numbered(self.nodes(ast.Call), facts.of_calls)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node right above each node."""
        return {child: node for node in self._walked for child in children(node)}

    def nodes(self, *kinds: type[Node]) -> list[Node]:
        """All nodes of these types, in the order of ``ast.walk``: the file is walked once for all rules."""
        if kinds not in self._nodes:
            self._nodes[kinds] = [node for node in self._walked if isinstance(node, kinds)]
        return cast("list[Node]", self._nodes[kinds])

    def returns_of(self, function: ast.AST) -> list[ast.Return]:
        """The return statements of a function, without those of functions in it."""
        return self._returns.get(function, [])

    @cached_property
    def _returns(self) -> dict[ast.AST | None, list[ast.Return]]:
        found: dict[ast.AST | None, list[ast.Return]] = {}
        for node in self.nodes(ast.Return):
            found.setdefault(self.function(node), []).append(node)
        return found

    @cached_property
    def names_by_id(self) -> dict[str, list[ast.Name]]:
        """The uses of each name, in the order of ``ast.walk``."""
        found: dict[str, list[ast.Name]] = {}
        for node in self.nodes(ast.Name):
            found.setdefault(node.id, []).append(node)
        return found

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name that the file mentions by itself, so that generated ones can differ from them: methods have owners."""
        names = {node.id for node in self.nodes(ast.Name)} | {node.arg for node in self.nodes(ast.arg)}
        definitions = self.nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        names |= {node.name for node in definitions if not isinstance(self.parents[node], ast.ClassDef)}
        return frozenset(names | {(alias.asname or alias.name).partition(".")[0] for alias in self.nodes(ast.alias)})

    @cached_property
    def imported_names(self) -> frozenset[str]:
        """Names that import statements of the file bind, at any depth."""
        return frozenset((alias.asname or alias.name).partition(".")[0] for alias in self.nodes(ast.alias))

    @cached_property
    def module_names(self) -> frozenset[str]:
        """Names that import statements at module level bind."""
        imports = (node for node in self.tree.body if isinstance(node, (ast.Import, ast.ImportFrom)))
        return frozenset((a.asname or a.name).partition(".")[0] for node in imports for a in node.names)

    @cached_property
    def helpers(self) -> dict[str, str]:
        """The helpers of an earlier run that the file imports, by the names that they have there."""
        return helpers_in(self.tree.body)

    @cached_property
    def assignments(self) -> dict[str, list[tuple[ast.stmt, ast.expr]]]:
        """What is assigned to each name and attribute, by the dump of reading it, and by which statement."""
        found: dict[str, list[tuple[ast.stmt, ast.expr]]] = {}
        for statement in self.nodes(ast.Assign, ast.AnnAssign):
            if statement.value is None:
                continue
            for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
                pairs = [(target, statement.value)]
                if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                    pairs += zip(target.elts, statement.value.elts, strict=False)
                for to, value in pairs:
                    key = ast.dump(to).replace("ctx=Store()", "ctx=Load()")
                    found.setdefault(key, []).append((statement, value))
        return found

    @cached_property
    def bindings(self) -> dict[str, list[ast.Name | ast.Attribute]]:
        """Where names and attributes are bound or deleted, by their text."""
        found: dict[str, list[ast.Name | ast.Attribute]] = {}
        for node in self.nodes(ast.Name, ast.Attribute):
            if not isinstance(node.ctx, ast.Load):
                found.setdefault(ast.unparse(node), []).append(node)
        return found

    @cached_property
    def changes_of(self) -> dict[str, list[ast.AST]]:
        """Where what a name stands for is changed in place, by its text: by a method called for that, or one of its items."""
        found: dict[str, list[ast.AST]] = {}
        for statement in self.nodes(ast.Expr):
            call = statement.value
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                found.setdefault(ast.unparse(call.func.value), []).append(call)
        for item in self.nodes(ast.Subscript):
            if not isinstance(item.ctx, ast.Load):
                found.setdefault(ast.unparse(item.value), []).append(item)
        return found

    @cached_property
    def functions_by_place(self) -> dict[tuple[int, str], Function]:
        """The functions by line and name; of several lambdas on a line the first."""
        found: dict[tuple[int, str], Function] = {}
        for node in self.nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda):
            found.setdefault((node.lineno, "<lambda>" if isinstance(node, ast.Lambda) else node.name), node)
        return found

    # --- values -------------------------------------------------------------------------------------------

    def variable(self, node: ast.AST) -> int:
        """The analysis variable of an expression, a bound name, an import alias, a parameter or a definition."""
        local = self._variables.get(node, NOTHING)
        return NOTHING if local == NOTHING else local + self.program.flow.variable_offsets[self.index]

    def nodes_of(self, variables: Collection[int]) -> Iterator[ast.AST]:
        """The nodes whose analysis variables are among these."""
        offset = self.program.flow.variable_offsets[self.index]
        return (node for node, local in self._variables.items() if local + offset in variables)

    def values(self, node: ast.AST) -> list[Value]:
        """What an expression may evaluate to; empty when the analysis knows nothing."""
        return self.program.flow.values_of(self.variable(node))

    def held_values(self, node: ast.AST) -> Iterator[list[Value]]:
        """What each of the containers holds that an expression may evaluate to."""
        flow = self.program.flow
        for value in self.values(node):
            if isinstance(value, Container):
                yield flow.values_of(flow.fields.get((flow.ids[value], "[any]"), NOTHING))

    def called_values(self, call: ast.Call) -> list[Value]:
        """What a call may call; of ``self.model(x)`` what the attribute holds, though it has no variable of its own."""
        flow = self.program.flow
        held = (flow.values_of(variable) for variable in flow.read_and_called.get(self.call_site(call), ()))
        return self.values(call.func) or list(dict.fromkeys(value for values in held for value in values))

    def external(self, node: ast.AST) -> str | None:
        """The canonical name of the outside symbol that an expression refers to, if it is surely one."""
        values = self.values(node)
        names = {value.name for value in values if isinstance(value, External)}
        if not values and isinstance(node, ast.Attribute):
            # The function of a method call has no variable of its own.
            if (exported := self._exported(node)) is not None:
                return exported
            owner = self.external(node.value) or self._wrapper_derived_from(node)
            return canonical(f"{owner}.{node.attr}") if owner is not None else None
        return names.pop() if len(names) == 1 else None

    def _exported(self, node: ast.Attribute) -> str | None:
        """The outside symbol that a module of the repository hands on: ``common.DDP``."""
        flow = self.program.flow
        names: set[str | None] = set()
        for value in self.values(node.value):
            if isinstance(value, ModuleValue):
                variable = flow.exported(value.file, node.attr, set())
                found = flow.values_of(variable) if variable is not None else ()
                names |= {v.name if isinstance(v, External) else None for v in found}
        return names.pop() if len(names) == 1 else None

    def _wrapper_derived_from(self, node: ast.Attribute) -> str | None:
        """The wrapper that a class gets an attribute from: of a subclass of FSDP1, ``Sharded.state_dict_type`` is FSDP1's."""
        flow = self.program.flow
        for value in self.values(node.value):
            if isinstance(value, ClassValue) and not flow.has_member(value, node.attr):
                return next((name for name in flow.external_bases(value) if name in WRAPPERS), None)
        return None

    def call_site(self, node: ast.Call) -> int:
        """The number of a call over the whole repository; -1 when it lies in dead code."""
        index = self._call_index.get(node)
        return -1 if index is None else index + self.program.flow.call_offsets[self.index]

    @cached_property
    def calls_by_index(self) -> dict[int, ast.Call]:
        """The calls of the file by their number in its facts."""
        return {index: node for node, index in self._call_index.items()}

    # --- structure ----------------------------------------------------------------------------------------

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds a node (the node itself if it is one)."""
        current = node
        while not isinstance(current, ast.stmt):
            current = self.parents[current]
        return current

    def block_of(self, statement: ast.stmt) -> tuple[list[ast.stmt], int]:
        """The list of statements that a statement stands in, and its place there."""
        parent = self.parents[statement]
        for name in _BODIES:
            body = getattr(parent, name, None)
            if isinstance(body, list) and statement in body:
                return body, body.index(statement)
        raise ValueError("a statement always stands in a block")

    def function(self, node: ast.AST) -> Function | None:
        """The innermost function around a node, None at module or class level."""
        return self._functions.get(node)

    @cached_property
    def _functions(self) -> dict[ast.AST, Function | None]:
        found: dict[ast.AST, Function | None] = {}
        for node in self._walked:  # what is above a node comes before it
            parent = self.parents.get(node)
            found[node] = parent if isinstance(parent, Function) else found.get(parent) if parent is not None else None
        return found

    def enclosing_class(self, node: ast.AST) -> ast.ClassDef | None:
        """The innermost class around a node."""
        return next((a for a in self.ancestors(node) if isinstance(a, ast.ClassDef)), None)

    def text(self, node: ast.AST) -> str:
        """The source text of a node, on one line."""
        text = self.source.segment(node)
        return text if "\n" not in text and "\r" not in text else ast.unparse(node)

    def free_name(self, wanted: str) -> str:
        """``wanted``, or a variant that the file does not mention yet."""
        number, name = 1, wanted
        while name in self.names:
            number += 1
            name = f"{wanted}_{number}"
        return name


def _numbered(nodes: Iterable[Node], numbers: Iterable[int]) -> dict[Node, int]:
    """The numbers of nodes, for those that have one."""
    return {node: number for node, number in zip(nodes, numbers, strict=True) if number != NOTHING}
