"""Which names a fragment of code binds, reads and needs; computed on `ast`, which tells loads from stores."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class Names(ast.NodeVisitor):
    """The names of one scope. `captured` are those that nested functions and generators read when they run."""

    bound: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    captured: set[str] = field(default_factory=set)
    declared: set[str] = field(default_factory=set)

    def visit_Name(self, node: ast.Name) -> None:
        (self.read if isinstance(node.ctx, ast.Load) else self.bound).add(node.id)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name):
            self.read.add(node.target.id)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.bound.add(node.name)
        for part in (*node.decorator_list, *filter(None, (node.returns,))):
            self.visit(part)
        self._function(node.args, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node.args, [node.body])

    def _function(self, parameters: ast.arguments, body: Sequence[ast.AST]) -> None:
        for default in (*parameters.defaults, *filter(None, parameters.kw_defaults)):
            self.visit(default)
        inner = names(body)
        inner.bound |= {arg.arg for arg in ast.walk(parameters) if isinstance(arg, ast.arg)}
        for arg in ast.walk(parameters):
            if isinstance(arg, ast.arg) and arg.annotation:
                self.visit(arg.annotation)
        outside = (inner.read | inner.captured) - (inner.bound - inner.declared)
        self.read |= outside
        self.captured |= outside | inner.declared

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.bound.add(node.name)
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(part)
        inner = names(node.body)
        self.read |= (inner.read - inner.bound) | inner.captured
        self.captured |= inner.captured

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self.visit(node.generators[0].iter)
        inner = Names()
        for number, generator in enumerate(node.generators):
            parts = (generator.target, *generator.ifs, *([generator.iter] if number else []))
            for part in parts:
                inner.visit(part)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            inner.visit(part)
        outside = (inner.read | inner.captured) - inner.bound
        self.read |= outside
        if isinstance(node, ast.GeneratorExp):
            self.captured |= outside

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.bound |= {alias.asname or alias.name.split(".")[0] for alias in node.names}

    visit_ImportFrom = visit_Import

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self.bound |= {node.name} if node.name else set()
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        self.declared |= set(node.names)

    visit_Nonlocal = visit_Global


def names(nodes: Iterable[ast.AST]) -> Names:
    """The names of statements or expressions that stand in one scope."""
    found = Names()
    for node in nodes:
        found.visit(node)
    return found


def needs(statements: Sequence[ast.stmt], given: set[str]) -> tuple[set[str], set[str]]:
    """(names that are read before the statements have certainly bound them, names that are certainly bound afterwards).

    `given` are names that are bound before, and are not needed. Jumps out of the statements are not looked at.
    """
    needed: set[str] = set()
    sure = set(given)

    def inside(body: Sequence[ast.stmt], more: set[str]) -> set[str]:
        wanted, after = needs(body, sure | more)
        needed.update(wanted)
        return after

    def read(*nodes: ast.AST | None) -> set[str]:
        found = names(node for node in nodes if node is not None)
        needed.update(found.read - sure)
        return found.bound

    for statement in statements:
        if isinstance(statement, ast.If):
            sure |= read(statement.test)
            sure |= inside(statement.body, set()) & inside(statement.orelse, set())
        elif isinstance(statement, ast.For):
            read(statement.iter)
            inside(statement.body, names([statement.target]).bound)
            inside(statement.orelse, set())
        elif isinstance(statement, ast.While):
            read(statement.test)
            inside(statement.body, set())
            inside(statement.orelse, set())
        elif isinstance(statement, ast.With):
            for item in statement.items:
                sure |= read(item.context_expr, item.optional_vars)
            sure |= inside(statement.body, set())
        elif isinstance(statement, ast.Try):
            inside(statement.body + statement.orelse, set())
            for handler in statement.handlers:
                read(handler.type)
                inside(handler.body, {handler.name} if handler.name else set())
            sure |= inside(statement.finalbody, set())
        else:
            sure |= read(statement)
    return needed, sure


def jumps(statements: Sequence[ast.stmt]) -> bool:
    """Whether statements do what they could not do in a function of their own: leave a loop or function, declare or unbind names,
    look at their own scope."""
    for statement in statements:
        for node in walk_scope(statement):
            if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom | ast.Await | ast.Global | ast.Nonlocal | ast.NamedExpr):
                return True
            if isinstance(node, ast.Delete | ast.Break | ast.Continue | ast.AsyncFor | ast.AsyncWith):
                return True
            if isinstance(node, ast.Name) and node.id in ("super", "__class__", "locals", "vars", "globals", "exec", "eval"):
                return True
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                return True
    return False


def walk_scope(node: ast.AST) -> Iterable[ast.AST]:
    """A node and all below it but the bodies of nested functions and classes, and loops' own breaks."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef | ast.AsyncFunctionDef):
            in_body = child in node.body if isinstance(node.body, list) else child is node.body
            if in_body:
                continue
        for inner in walk_scope(child):
            own = isinstance(node, ast.For | ast.While) and isinstance(inner, ast.Break | ast.Continue)
            if not own:
                yield inner
