"""A parsed file with what refactorings ask about it: what stands around a node, what its names are; and its rewriting."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import libcst as cst

from . import names

Node = TypeVar("Node", bound=cst.CSTNode)
Block = cst.Module | cst.IndentedBlock
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
# What becomes of a node: another node, or a function of the node with its inner rewrites done.
Rewrites = Mapping[cst.CSTNode, Any]
LOOKING_AT_NAMES = {"locals", "vars", "globals", "eval", "exec"}


class Code:
    """One file. Nodes are compared by identity; every rewrite makes a new text, which is parsed anew."""

    def __init__(self, text: str) -> None:
        self.module = cst.parse_module(text)
        self.nodes: list[cst.CSTNode] = []
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self._spans: dict[cst.CSTNode, tuple[int, int]] = {}
        self._texts: dict[cst.CSTNode, str] = {}
        self._trees: dict[cst.CSTNode, list[ast.stmt]] = {}
        self._variables: dict[cst.FunctionDef, dict[str, list[cst.Name]]] = {}
        self._scopes: dict[cst.FunctionDef | None, names.Names] = {}
        self._note(self.module)

    def _note(self, node: cst.CSTNode) -> None:
        start = len(self.nodes)
        self.nodes.append(node)
        for child in node.children:
            self.parents[child] = node
            self._note(child)
        self._spans[node] = (start, len(self.nodes))

    def below(self, node: cst.CSTNode) -> Sequence[cst.CSTNode]:
        """A node and all nodes in it, in the order of the text."""
        start, end = self._spans[node]
        return self.nodes[start:end]

    def holds(self, outer: cst.CSTNode, inner: cst.CSTNode) -> bool:
        """Whether a node is another one, or stands in it."""
        return self._spans[outer][0] <= self._spans[inner][0] < self._spans[outer][1]

    def find(self, *types: type[Node], within: cst.CSTNode | None = None) -> Iterator[Node]:
        """Nodes of these types in the order of the text."""
        for node in self.nodes if within is None else self.below(within):
            if isinstance(node, types):
                yield node

    def has(self, node: cst.CSTNode, *types: type[cst.CSTNode]) -> bool:
        """Whether a node is of one of these types, or holds one that is."""
        return any(isinstance(one, types) for one in self.below(node))

    def within(self, node: cst.CSTNode, *types: type[cst.CSTNode]) -> bool:
        """Whether a node stands in one of these types."""
        return any(isinstance(around, types) for around in self.up(node))

    def up(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around a node, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def text(self, *nodes: cst.CSTNode) -> str:
        for node in nodes:
            if node not in self._texts:
                self._texts[node] = self.module.code_for_node(node)
        return "".join(self._texts[node] for node in nodes)

    def value(self, node: cst.BaseExpression) -> str:
        """The text of an expression as it may stand on a line of its own."""
        text = self.text(node)
        return f"({text})" if "\n" in text and not node.lpar else text

    def tree(self, *statements: cst.CSTNode) -> list[ast.stmt]:
        """Statements, or one expression, as `ast` has them."""
        for statement in statements:
            if statement not in self._trees:
                self._trees[statement] = ast.parse(self.text(statement).lstrip()).body
        return [part for statement in statements for part in self._trees[statement]]

    def names(self, *nodes: cst.CSTNode) -> names.Names:
        return names.names(self.tree(*nodes))

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The function in whose body a node stands; None at the level of the module or of a class."""
        for around in self.up(node):
            if isinstance(around, cst.FunctionDef) and node is around.body:
                return around
            if isinstance(around, cst.ClassDef) and node is around.body:
                return None
            node = around
        return None

    def in_class_body(self, node: cst.CSTNode) -> bool:
        """Whether a node stands directly in a class, in none of its methods."""
        for around in self.up(node):
            if isinstance(around, cst.FunctionDef | cst.ClassDef) and node is around.body:
                return isinstance(around, cst.ClassDef)
            node = around
        return False

    def class_of(self, function: cst.FunctionDef) -> cst.ClassDef | None:
        around = next((node for node in self.up(function) if not isinstance(node, cst.IndentedBlock)), None)
        return around if isinstance(around, cst.ClassDef) else None

    def statement(self, node: cst.CSTNode) -> Statement | None:
        """The innermost statement around a node, if it stands on a line of its own in a block."""
        for around in (node, *self.up(node)):
            if isinstance(around, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                alone = not isinstance(around, cst.SimpleStatementLine) or len(around.body) == 1
                return around if alone and isinstance(self.parents[around], cst.Module | cst.IndentedBlock) else None
            if isinstance(around, cst.SimpleStatementSuite):
                return None
        return None

    def block(self, statement: cst.CSTNode) -> tuple[Block, int]:
        """The block that a statement stands in, and where."""
        block = self.parents[statement]
        assert isinstance(block, cst.Module | cst.IndentedBlock)
        return block, next(number for number, one in enumerate(block.body) if one is statement)

    def top(self, node: cst.CSTNode) -> Statement:
        """The statement of the module that a node stands in."""
        around = [node, *self.up(node)]
        return around[-2]  # pyright: ignore[reportReturnType]

    def stored(self, name: cst.Name) -> bool:
        """Whether a name is the target of an assignment, a loop or a `with`; not of an augmented assignment."""
        node: cst.CSTNode = name
        for around in self.up(name):
            if isinstance(around, cst.AssignTarget | cst.AsName):
                return True
            if isinstance(around, cst.AnnAssign | cst.For | cst.CompFor | cst.NamedExpr):
                return around.target is node
            if not isinstance(around, cst.Tuple | cst.List | cst.Element | cst.StarredElement):
                return False
            node = around
        return False

    def variables(self, within: cst.CSTNode | None = None, name: str | None = None) -> Iterator[cst.Name]:
        """Names that stand for variables; not attributes, keywords, definitions and imports."""
        for node in self.find(cst.Name, within=within):
            parent = self.parents.get(node)
            other = (
                (isinstance(parent, cst.Attribute) and parent.attr is node)
                or (isinstance(parent, cst.Arg) and parent.keyword is node)
                or (isinstance(parent, cst.Param | cst.FunctionDef | cst.ClassDef) and parent.name is node)
                or isinstance(parent, cst.ImportAlias | cst.ImportFrom | cst.NameItem)
                or (isinstance(parent, cst.AsName) and isinstance(self.parents[parent], cst.ImportAlias))
            )
            if not other and (name is None or node.value == name):
                yield node

    def scope(self, function: cst.FunctionDef | None) -> names.Names:
        """The names of a function, its parameters among those that it binds, or of the module."""
        if function not in self._scopes:
            found = self._scopes[function] = self.names(*(function.body if function else self.module).body)
            found.bound |= set(parameters(function)) if function else set()
        return self._scopes[function]

    def local_names(self, function: cst.FunctionDef | None) -> set[str]:
        """Names that a function, or the module, binds."""
        found = self.scope(function)
        return found.bound - found.declared

    @cached_property
    def module_variables(self) -> set[str]:
        """Names that the module's own statements assign."""
        stores = (name for name in self.variables() if self.stored(name) and not self.in_comprehension(name))
        return {name.value for name in stores if not self.function(name) and not self.in_class_body(name)}

    @cached_property
    def rebound_in_functions(self) -> set[str]:
        """Names that some function has for itself, but for what it imports."""
        found: set[str] = set()
        for function in self.find(cst.FunctionDef):
            imports = [line for line in function.body.body if is_import(line)]
            found |= self.local_names(function) - (self.names(*imports).bound if imports else set())
        for function in self.find(cst.Lambda):
            found |= set(parameters(function))
        return found | {node.value for node in self.variables() if self.stored(node) and self.in_comprehension(node)}

    @cached_property
    def declared_in_functions(self) -> set[str]:
        """Names that functions declare global or nonlocal."""
        return {item.name.value for item in self.find(cst.NameItem)}

    def in_comprehension(self, node: cst.CSTNode) -> bool:
        """Whether a node stands in a comprehension or a lambda, which run in a scope of their own."""
        for around in self.up(node):
            if isinstance(around, cst.BaseComp | cst.Lambda):
                return True
            if isinstance(around, cst.BaseStatement):
                return False
        return False

    def own_variables(self, function: cst.FunctionDef) -> dict[str, list[cst.Name]]:
        """The names that stand for each variable of a function, in functions inside it too.

        Left out are variables that something else than an assignment binds, or that a function or comprehension inside has for
        itself too; all of them, where the names of variables matter.
        """
        if function not in self._variables:
            self._variables[function] = self._find_variables(function)
        return self._variables[function]

    def _find_variables(self, function: cst.FunctionDef) -> dict[str, list[cst.Name]]:
        left_out: set[str] = set()
        for node in self.below(function.body):
            if isinstance(node, cst.FunctionDef):
                left_out |= self.local_names(node) | {node.name.value}
            elif isinstance(node, cst.Lambda):
                left_out |= set(parameters(node))
            elif isinstance(node, cst.NameItem):
                left_out.add(node.name.value)
            elif isinstance(node, cst.SimpleStatementLine) and is_import(node):
                left_out |= self.names(node).bound
            elif isinstance(node, cst.ClassDef) or _looks_at_names(node):
                return {}
        found: dict[str, list[cst.Name]] = {name: [] for name in sorted(self.local_names(function))}
        for node in self.variables(within=function.body):
            if self.stored(node) and self.in_comprehension(node):
                left_out.add(node.value)
            elif node.value in found:
                found[node.value].append(node)
        return {name: uses for name, uses in found.items() if name not in left_out}

    def enclosing_names(self, function: cst.FunctionDef | None) -> set[str]:
        """Names of a function and of the functions around it; none for the module."""
        found: set[str] = set()
        while function:
            found |= self.local_names(function)
            function = self.function(function)
        return found

    def certain(self, statement: cst.CSTNode) -> set[str]:
        """Names of the scope that are certainly bound where a statement begins."""
        path = [statement]
        function = self.function(statement)
        for around in self.up(statement):
            if around is function or (isinstance(around, cst.ClassDef) and not function):
                break
            path.append(around)
        sure = set(parameters(function)) if function else set()
        for around, inner in zip(reversed(path), [*reversed(path[:-1]), None], strict=True):
            if isinstance(around, cst.Module | cst.IndentedBlock) and inner is not None:
                before = around.body[: next(n for n, one in enumerate(around.body) if one is inner)]
                sure = names.needs(self.tree(*before), sure)[1]
            elif isinstance(around, cst.For) and inner is around.body:
                sure |= self.names(around.target).read
            elif isinstance(around, cst.With) and inner is around.body:
                for item in around.items:
                    sure |= self.names(item.asname.name).read if item.asname else set()
            elif isinstance(around, cst.ExceptHandler) and around.name:
                sure |= self.names(around.name.name).read
        return sure

    def rewritten(self, rewrites: Rewrites) -> str:
        """The text with nodes replaced; a list of statements may stand for a statement."""
        return self.module.visit(_Rewriter(rewrites)).code

    def replaced_in(self, node: cst.BaseExpression, rewrites: Rewrites) -> cst.BaseExpression:
        """An expression with nodes replaced, in brackets."""
        new: Any = node.visit(_Rewriter(rewrites))
        return new if new.lpar else new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])

    @cached_property
    def texts(self) -> set[str]:
        """The strings of the file."""
        return {node.value.strip("rbfuRBFU\"'") for node in self.find(cst.SimpleString)}

    @cached_property
    def words(self) -> set[str]:
        """All names and strings of the file; none of them is free for something new."""
        return {node.value for node in self.find(cst.Name)} | self.texts


def _looks_at_names(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.FormattedStringExpression):
        return node.equal is not None
    return isinstance(node, cst.Call) and last_name(node.func) in LOOKING_AT_NAMES


class _Rewriter(cst.CSTTransformer):
    def __init__(self, rewrites: Rewrites) -> None:
        super().__init__()
        self.rewrites = rewrites

    def on_leave(self, original_node: cst.CSTNode, updated_node: Any) -> Any:
        if original_node not in self.rewrites:
            return updated_node
        change: Any = self.rewrites[original_node]
        result = change(updated_node) if callable(change) else change
        return cst.FlattenSentinel(result) if isinstance(result, list) else result


@lru_cache(maxsize=512)
def parsed(text: str) -> Code:
    """The file of this text; parsed once as long as it is in use."""
    return Code(text)


def parameters(function: cst.FunctionDef | cst.Lambda) -> list[str]:
    """Names of all parameters, in order."""
    found = function.params
    stars = [part for part in (found.star_arg, found.star_kwarg) if isinstance(part, cst.Param)]
    return [param.name.value for param in (*found.posonly_params, *found.params, *found.kwonly_params, *stars)]


def plain_parameters(function: cst.FunctionDef) -> bool:
    """Whether all parameters may be given by position or by keyword."""
    found = function.params
    return not (found.posonly_params or found.kwonly_params or found.star_kwarg or isinstance(found.star_arg, cst.Param))


def called(call: cst.Call) -> str:
    """The last name of what is called, or an empty text."""
    return last_name(call.func)


def last_name(node: cst.CSTNode) -> str:
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def expression(text: str) -> cst.BaseExpression:
    return cst.parse_expression(text)


def statements(text: str) -> list[Any]:
    """The statements of a text; blank lines in front of them belong to the first."""
    module = cst.parse_module(text)
    first, *rest = module.body
    return [first.with_changes(leading_lines=(*module.header, *first.leading_lines)), *rest]


def with_body(header: str, body: Sequence[Any]) -> Any:
    """A compound statement with these statements in place of the body of `header`."""
    parsed_header: Any = cst.parse_statement(f"{header}\n    pass\n")
    return parsed_header.with_changes(body=cst.IndentedBlock(body=list(body)))


def is_import(statement: cst.CSTNode) -> bool:
    return bool(single(statement, cst.Import) or single(statement, cst.ImportFrom))


def single(statement: cst.CSTNode, kind: type[Node]) -> Node | None:
    """The only small statement of a line, if it is of this kind."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        only: Any = statement.body[0]
        return only if isinstance(only, kind) else None
    return None


def before(*lines: Any) -> Callable[[Any], list[Any]]:
    """Puts statements in front of one; what is said above it stays above all of them."""

    def rewrite(updated: Any) -> list[Any]:
        first, *rest = lines
        moved = first.with_changes(leading_lines=(*updated.leading_lines, *first.leading_lines))
        return [moved, *rest, updated.with_changes(leading_lines=())]

    return rewrite
