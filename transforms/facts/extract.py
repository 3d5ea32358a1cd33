"""Syntax tree to facts: one walk over a file that turns every assignment, call and return into constraints.

Statements are walked in order, and each assignment to a local name makes a new variable, so that a name is
wrapped from the wrap on and not before. Where control flow meets, a fresh variable unites the versions.
"""

from __future__ import annotations

import ast
from array import array
from collections.abc import Callable, Iterable

from ..text.trees import walk
from .expressions import ExpressionExtractor
from .facts import NOTHING, Call, Import
from .helper_calls import helpers_in
from .scopes import assigned_names, dotted_path, outer_names
from .symbols import star_names
from .versions import outcome, speaks_of_versions
from .written_names import Names

_LAID_OUT_WHEN_SET = frozenset({"grad", "main_grad"})
"""What a parameter gives back in its own layout, whatever was assigned: it is no second name for what was."""

class Extractor(ExpressionExtractor):
    """Walks one file's statements. With ``reads_helpers``, a call of a helper is taken for what stood there before."""

    def __init__(self, path: str, tree: ast.Module, reads_helpers: bool = True) -> None:
        super().__init__(path)
        self.statements: dict[type, Callable[[ast.stmt], None]] = {
            kind: getattr(self, f"statement_{kind.__name__}")
            for kind in (
                ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.If, ast.For, ast.AsyncFor,
                ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Import, ast.ImportFrom, ast.FunctionDef,
                ast.AsyncFunctionDef, ast.ClassDef, ast.Raise, ast.Delete, ast.Match, ast.Assert,
                ast.Break, ast.Continue,
            )
        }  # fmt: skip
        if hasattr(ast, "TryStar"):
            self.statements[ast.TryStar] = self.statement_Try  # pyright: ignore
        self.names = Names(tree)
        self.helpers = helpers_in(tree.body) if reads_helpers else {}
        self.scope.locals = assigned_names(tree.body)
        self.facts.defined = set(self.scope.locals)
        self.block(tree.body)
        self.facts.is_run = _is_run(tree.body)
        nodes = walk(tree)
        self.facts.of_nodes = array("i", [self.variables.get(node, NOTHING) for node in nodes])
        calls = (node for node in nodes if isinstance(node, ast.Call))
        self.facts.of_calls = array("i", [self.call_index.get(call, NOTHING) for call in calls])

    def block(self, body: Iterable[ast.stmt]) -> None:
        """Walks statements until control leaves them for good."""
        for statement in body:
            handler = self.statements.get(type(statement))
            if handler is not None:
                handler(statement)

    # --- binding -----------------------------------------------------------------------------------------

    def bind(self, target: ast.expr, value: int) -> None:
        """Assigns the variable ``value`` to a target of any form."""
        if isinstance(target, ast.Name):
            variable = self.variable(target.lineno)
            if value != NOTHING:
                self.facts.copies.append((variable, value))
            self.note(target, variable)
            self.bind_name(target.id, variable)
        elif isinstance(target, ast.Attribute):
            base = self.expression(target.value)
            variable = self.variable(target.lineno)
            if value != NOTHING:
                self.facts.copies.append((variable, value))
            self.note(target, variable)
            if base != NOTHING:
                self.facts.stores.append((base, target.attr, variable))
            path = dotted_path(target)
            if path:
                self.scope.forget_below(path)
                if target.attr not in _LAID_OUT_WHEN_SET:
                    self.bind_path(path, variable)
        elif isinstance(target, ast.Subscript):
            base = self.expression(target.value)
            self.expression(target.slice)
            if base != NOTHING and value != NOTHING:
                self.facts.stores.append((base, self.key_of(target.slice), value))
            self.note(target, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, element in enumerate(target.elts):
                if isinstance(element, ast.Starred):
                    self.bind(element.value, value)
                    continue
                part = NOTHING
                if value != NOTHING:
                    part = self.variable(target.lineno)
                    self.facts.loads.append((part, value, f"[{index}]"))
                self.bind(element, part)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value)

    # --- simple statements --------------------------------------------------------------------------------

    def statement_Expr(self, node: ast.Expr) -> None:
        if type(node.value) is not ast.Constant:
            self.expression(node.value)

    def statement_Assert(self, node: ast.Assert) -> None:
        self.expression(node.test)

    def statement_Assign(self, node: ast.Assign) -> None:
        value = self.expression(node.value)
        for target in node.targets:
            self.bind(target, value)
            if self.scope.function < 0 and isinstance(target, ast.Name) and target.id == "__all__":
                self.facts.exports = _string_elements(node.value)

    def statement_AnnAssign(self, node: ast.AnnAssign) -> None:
        value = self.expression(node.value) if node.value else NOTHING
        if node.value is not None:
            self.bind(node.target, value)
        if isinstance(node.target, (ast.Name, ast.Attribute)):
            variable = self.variable(node.lineno)
            self.annotate(variable, node.annotation)
            if isinstance(node.target, ast.Attribute):
                base = self.expression(node.target.value)
                if base != NOTHING:
                    self.facts.stores.append((base, node.target.attr, variable))
            elif self.current_class is not None:
                self.facts.classes[self.current_class].fields.append(node.target.id)
                if node.value is None:
                    self.facts.classes[self.current_class].members[node.target.id] = variable

    def statement_AugAssign(self, node: ast.AugAssign) -> None:
        value = self.expression(node.value)
        old = self.expression(node.target)
        if isinstance(node.target, ast.Name) and old != NOTHING:
            variable = self.variable(node.lineno)
            self.facts.copies.append((variable, old))
            if value != NOTHING:
                self.facts.copies.append((variable, value))
            self.bind_name(node.target.id, variable)

    def statement_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            value = self.expression(node.value)
            if value != NOTHING and self.scope.function >= 0:
                self.facts.copies.append((self.facts.functions[self.scope.function].returns, value))
        self.scope.alive = False

    def statement_Raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self.expression(node.exc)
        self.scope.alive = False

    def statement_Break(self, node: ast.stmt) -> None:
        self.scope.alive = False

    def statement_Continue(self, node: ast.stmt) -> None:
        self.scope.alive = False

    def statement_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.scope.environment.pop(target.id, None)

    # --- control flow -------------------------------------------------------------------------------------

    def branches(self, bodies: list[Callable[[], None]]) -> None:
        """Walks alternatives from the same state and unites what each leaves behind."""
        before = self.scope.environment
        alive = self.scope.alive
        after: list[dict[str, int]] = []
        for body in bodies:
            self.scope.environment = dict(before)
            self.scope.alive = alive
            body()
            if self.scope.alive or not alive:
                after.append(self.scope.environment)
        self.scope.environment = self.unite(after) if after else dict(before)
        self.scope.alive = bool(after) and alive

    def statement_If(self, node: ast.If) -> None:
        self.expression(node.test)
        known = outcome(node.test, self.names) if speaks_of_versions(node.test) else None
        if known is None:
            self.branches([lambda: self.block(node.body), lambda: self.block(node.orelse)])
        else:
            self.unused_block(node.orelse if known else node.body)
            self.block(node.body if known else node.orelse)

    def unused_block(self, body: list[ast.stmt]) -> None:
        """Walks statements that never run, for the sake of the names in them: nothing flows out of them."""
        scope = self.scope
        environment, alive, calls, stores = dict(scope.environment), scope.alive, len(self.facts.calls), len(self.facts.stores)
        outermost = not self.unused
        self.unused = True
        self.block(body)
        self.unused = not outermost
        scope.environment, scope.alive = environment, alive
        del self.facts.calls[calls:], self.facts.stores[stores:]
        self.call_index = {node: index for node, index in self.call_index.items() if index < calls}

    def statement_Match(self, node: ast.Match) -> None:
        subject = self.expression(node.subject)

        def walk_case(case: ast.match_case) -> None:
            for pattern in ast.walk(case.pattern):
                name = getattr(pattern, "name", None)
                if isinstance(name, str):
                    variable = self.variable(getattr(pattern, "lineno", node.lineno))
                    if subject != NOTHING:
                        self.facts.copies.append((variable, subject))
                    self.bind_name(name, variable)
            if case.guard is not None:
                self.expression(case.guard)
            self.block(case.body)

        self.branches([*(lambda case=case: walk_case(case) for case in node.cases), lambda: None])

    def loop(
        self, body: list[ast.stmt], orelse: list[ast.stmt], head: Callable[[], None], extra: Iterable[ast.AST] = ()
    ) -> None:
        """Walks a loop once, with every name that it assigns united over before, the body's ends and its breaks."""
        scope = self.scope
        alive = scope.alive
        heads: dict[str, int] = {}
        for name in sorted(assigned_names([*body, *extra])):
            united = self.variable(body[0].lineno)
            current = scope.environment.get(name)
            if current is not None:
                self.facts.copies.append((united, current))
            elif "." in name:
                continue
            heads[name] = united
            scope.environment[name] = united
        scope.sinks.append(heads)
        head()
        self.block(body)
        scope.sinks.pop()
        scope.environment.update(heads)
        scope.alive = alive
        self.block(orelse)

    def statement_For(self, node: ast.For | ast.AsyncFor) -> None:
        iterable = self.expression(node.iter)

        def head() -> None:
            self.bind(node.target, self.element_of(iterable, node.lineno))

        self.loop(node.body, node.orelse, head, [node.target])

    statement_AsyncFor = statement_For

    def statement_While(self, node: ast.While) -> None:
        self.loop(node.body, node.orelse, lambda: void(self.expression(node.test)), [node.test])

    def statement_With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            value = self.expression(item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, self.entered(value, node.lineno))
        self.block(node.body)

    statement_AsyncWith = statement_With

    def entered(self, context: int, line: int) -> int:
        """What ``with … as`` binds: the context itself, what its ``__enter__`` gives, or what a generator-based one yields."""
        if context == NOTHING:
            return NOTHING
        variable, given = self.variable(line), self.variable(line)
        self.facts.calls.append(Call(given, context, "__enter__", (), (), -1, line, self.scope.function, implied=True))
        self.facts.copies.append((variable, given))
        self.facts.copies.append((variable, context))
        self.facts.copies.append((variable, self.element_of(context, line)))
        return variable

    def statement_Try(self, node: ast.Try) -> None:
        scope = self.scope
        alive = scope.alive
        seen: dict[str, int] = {}
        for name in sorted(assigned_names(node.body)):
            united = self.variable(node.lineno)
            if name in scope.environment:
                self.facts.copies.append((united, scope.environment[name]))
            elif "." in name:
                continue
            seen[name] = united
        before = dict(scope.environment)
        scope.sinks.append(seen)
        self.block(node.body)
        scope.sinks.pop()
        self.block(node.orelse)
        ends = [scope.environment] if scope.alive or not alive else []
        for handler in node.handlers:
            scope.environment = {**before, **seen}
            scope.alive = alive
            if handler.name:
                self.bind_name(handler.name, self.variable(handler.lineno))
            self.block(handler.body)
            if scope.alive or not alive:
                ends.append(scope.environment)
        scope.environment = self.unite(ends) if ends else {**before, **seen}
        scope.alive = alive
        self.block(node.finalbody)
        scope.alive = scope.alive and (bool(ends) or not alive)

    def unite(self, environments: list[dict[str, int]]) -> dict[str, int]:
        """One environment for the paths that meet here: versions that differ flow into a fresh variable."""
        if len(environments) == 1:
            return environments[0]
        united = dict(environments[0])
        for environment in environments[1:]:
            for name, variable in environment.items():
                if united.get(name, variable) == variable:
                    united[name] = variable
        for name in list(united):
            versions = {environment.get(name) for environment in environments}
            if "." in name and None in versions:
                # A path that is unknown on one side is read from the object again.
                del united[name]
                continue
            versions.discard(None)
            if len(versions) > 1:
                joined = self.variable(0)
                for version in sorted(v for v in versions if v is not None):
                    self.facts.copies.append((joined, version))
                self.sink(name, joined)
                united[name] = joined
        return united

    # --- imports and definitions ----------------------------------------------------------------------------

    def statement_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            variable = self.variable(node.lineno)
            self.note(alias, variable)
            module = alias.name if alias.asname else alias.name.partition(".")[0]
            self.facts.imports.append(Import(variable, module, None))
            if not alias.asname and "." in alias.name:
                hidden = self.variable(node.lineno)
                self.facts.imports.append(Import(hidden, alias.name, None))
            self.bind_name(alias.asname or module, variable)

    def statement_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                known = star_names(module)
                if not known:
                    self.facts.stars.append(module)
                for name in known:
                    variable = self.variable(node.lineno)
                    self.facts.imports.append(Import(variable, module, name))
                    self.bind_name(name, variable)
                continue
            variable = self.variable(node.lineno)
            self.note(alias, variable)
            self.facts.imports.append(Import(variable, module, alias.name))
            self.bind_name(alias.asname or alias.name, variable)

    def statement_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        value = self.variable(node.lineno)
        decorators = [self.expression(decorator) for decorator in node.decorator_list]
        index = self.function(node, node.name)
        # A decorated name still stands for the function: what decorates training code calls through.
        self.facts.function_values.append((value, index))
        self.decorate(value, decorators, node.lineno)
        self.note(node, value)
        self.bind_name(node.name, value)

    statement_AsyncFunctionDef = statement_FunctionDef

    def decorate(self, value: int, decorators: list[int], line: int) -> None:
        """Decorators get what they decorate, as registries do; what they give back is not followed."""
        for decorator in decorators:
            if decorator != NOTHING:
                result = self.variable(line)
                self.facts.calls.append(Call(result, decorator, None, (value,), (), -1, line, self.scope.function, True))

    def statement_ClassDef(self, node: ast.ClassDef) -> None:
        decorators = [self.expression(decorator) for decorator in node.decorator_list]
        bases = [self.expression(base) for base in node.bases]
        for keyword in node.keywords:
            self.expression(keyword.value)
        value = self.variable(node.lineno)
        index = self.open_class(node, bases)
        self.facts.class_values.append((value, index))
        self.decorate(value, decorators, node.lineno)
        self.note(node, value)
        scope = self.scope
        enclosing, was_body = scope.environment, scope.class_body
        scope.environment, scope.class_body = dict(enclosing), True
        outer_class, self.current_class = self.current_class, index
        self.block(node.body)
        members = self.facts.classes[index].members
        for name in sorted(assigned_names(node.body)):
            if name in scope.environment and "." not in name:
                members[name] = scope.environment[name]
        self.current_class = outer_class
        scope.environment, scope.class_body = enclosing, was_body
        self.bind_name(node.name, value)

    def function_scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> tuple[set[str], set[str]]:
        """Local names of a function, and those it declares global or nonlocal."""
        body = node.body if isinstance(node.body, list) else [node.body]
        outer = set().union(*outer_names(body))
        return assigned_names(body) - outer, outer


def void(_: object) -> None:
    """Drops a value where a callback must return nothing."""


def _is_run(body: list[ast.stmt]) -> bool:
    """Whether a module asks if it is run, or works at module level: in a block, or by calling a function of its own."""
    own = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    for node in body:
        if isinstance(node, (ast.With, ast.While)):
            return True
        if isinstance(node, ast.If) and any(isinstance(n, ast.Name) and n.id == "__name__" for n in walk(node.test)):
            return True
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in own:
            return True
    return False


def _string_elements(node: ast.expr) -> list[str] | None:
    if isinstance(node, (ast.List, ast.Tuple)):
        return [e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    return None
