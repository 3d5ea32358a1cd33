"""Expressions to variables: names looked up by Python's scoping, attributes, calls, displays, functions."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ..text.trees import children
from .facts import ANY_KEY, NOTHING, Body, Call, ClassFacts, FileFacts, FunctionFacts
from .function_kinds import binding, hands_back
from .helper_calls import stood_for
from .name_patterns import name_pattern
from .scopes import Scope, dotted_path

_LARGEST_BODY = 60
"""Variables of a function that is still small enough to be told apart for each of its calls."""
_LARGEST_RELAY = 400
"""How many variables of a function that hands one of its parameters back; what goes in there comes out."""

_IGNORED_CONSTANTS = (bytes, float, complex, type(Ellipsis))


class ExpressionExtractor:
    """Turns expressions into variables and constraints; ``extract.Extractor`` adds the statements."""

    def __init__(self, path: str) -> None:
        self.facts = FileFacts(path)
        self.variables: dict[ast.AST, int] = {}
        """The variable of every node that has one."""
        self.call_index: dict[ast.Call, int] = {}
        self.helpers: dict[str, str] = {}
        """Helpers of the tool that the file imports, by the names that they have there."""
        self.scope = Scope(-1, None)
        self.current_class: int | None = None
        self.generators: set[int] = set()
        self.unused = False
        """Whether what is being walked never runs."""
        self.expressions: dict[type, Callable[[ast.expr], int]] = {
            kind: getattr(self, f"expression_{kind.__name__}")
            for kind in (
                ast.Name, ast.Attribute, ast.Call, ast.Constant, ast.IfExp, ast.BoolOp, ast.NamedExpr, ast.Await,
                ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Subscript, ast.Starred, ast.Lambda, ast.ListComp,
                ast.SetComp, ast.GeneratorExp, ast.DictComp, ast.BinOp, ast.JoinedStr, ast.Yield, ast.YieldFrom,
            )
        }  # fmt: skip

    # --- variables ----------------------------------------------------------------------------------------

    def variable(self, line: int) -> int:
        """A fresh variable."""
        lines = self.facts.lines
        lines.append(line)
        return len(lines) - 1

    def note(self, node: ast.AST, variable: int) -> None:
        """Remembers the variable of a node for whoever asks later."""
        if variable != NOTHING:
            self.variables[node] = variable

    def cell(self, scope: Scope, name: str) -> int:
        """The variable that unites all versions of ``name`` in ``scope``."""
        cells = self.facts.names if scope.function < 0 else scope.cells
        if name not in cells:
            cells[name] = self.variable(0)
        return cells[name]

    def sink(self, name: str, variable: int) -> None:
        """Lets a version of a name flow into the loops and ``try`` bodies around it."""
        for names in () if self.unused else self.scope.sinks:
            united = names.get(name)
            if united is not None and united != variable:
                self.facts.copies.append((united, variable))

    def bind_name(self, name: str, variable: int) -> None:
        """Makes ``variable`` the current version of a name."""
        scope = self.scope
        if scope.class_body:
            scope.environment[name] = variable
            return
        if name in scope.outer:
            owner = self.owner_of(name)
            self.bind_cell(owner, name, variable)
            if owner.function < 0:
                self.facts.defined.add(name)
            return
        scope.forget_below(name)
        self.bind_path(name, variable)
        self.bind_cell(scope, name, variable)

    def bind_cell(self, scope: Scope, name: str, variable: int) -> None:
        """Lets a version of a name flow to the functions inside its scope, and to importers."""
        if not self.unused:
            self.facts.copies.append((self.cell(scope, name), variable))

    def bind_path(self, path: str, variable: int) -> None:
        self.scope.bind(path, variable)
        self.sink(path, variable)

    def owner_of(self, name: str) -> Scope:
        """The enclosing scope that binds a name, the module when none does."""
        scope = self.scope.parent
        while scope is not None and scope.function >= 0:
            if name in scope.locals:
                return scope
            scope = scope.parent
        return scope if scope is not None else self.scope

    # --- expressions --------------------------------------------------------------------------------------

    def expression(self, node: ast.expr) -> int:
        """The variable of an expression, NOTHING when no rule could care about its value."""
        handler = self.expressions.get(type(node))
        if handler is None:
            for child in children(node):
                if isinstance(child, ast.expr):
                    self.expression(child)
            return NOTHING
        variable = handler(node)
        if variable != NOTHING:
            self.variables[node] = variable
        return variable

    def expression_Constant(self, node: ast.Constant) -> int:
        value = node.value
        if isinstance(value, _IGNORED_CONSTANTS) or (isinstance(value, str) and len(value) > 80):
            return NOTHING
        variable = self.variable(node.lineno)
        self.facts.constants.append((variable, value))
        return variable

    def expression_Name(self, node: ast.Name) -> int:
        name = node.id
        scope = self.scope
        current = scope.environment.get(name)
        if current is not None:
            return current
        if scope.class_body or name in scope.outer or name not in scope.locals:
            return self.cell(self.owner_of(name) if scope.function >= 0 else scope, name)
        return self.cell(scope, name)

    def expression_Attribute(self, node: ast.Attribute) -> int:
        path = dotted_path(node)
        if path is not None:
            current = self.scope.environment.get(path)
            if current is not None:
                self.expression(node.value)
                return current
        base = self.expression(node.value)
        if base == NOTHING:
            return NOTHING
        variable = self.variable(node.lineno)
        self.facts.loads.append((variable, base, node.attr))
        return variable

    def expression_Call(self, node: ast.Call) -> int:
        before = stood_for(node, self.helpers)
        if before is not None:
            return self.expression_before(node, before)
        function = stood_for(node.func, self.helpers) or node.func
        method: str | None = None
        if type(function) is ast.Attribute:
            method = function.attr
            bound = self.scope.environment.get(dotted_path(function) or "")
            if bound is not None:
                called, method = bound, None
                self.expression(function.value)
            else:
                called = self.expression(function.value)
        else:
            called = self.expression(function)
        arguments: list[int] = []
        starred = -1
        for index, argument in enumerate(node.args):
            if type(argument) is ast.Starred and starred < 0:
                starred = index
            arguments.append(self.expression(argument))
        keywords = tuple((keyword.arg, self.expression(keyword.value)) for keyword in node.keywords)
        result = self.variable(node.lineno)
        self.call_index[node] = len(self.facts.calls)
        self.facts.calls.append(
            Call(result, called, method, tuple(arguments), keywords, starred, node.lineno, self.scope.function)
        )
        self.forget_rebound(node)
        return result

    def expression_before(self, node: ast.Call, before: ast.expr) -> int:
        """A call of a helper is taken for what stood there."""
        variable = self.expression(before)
        if isinstance(before, ast.Call) and before in self.call_index and before not in node.args:
            self.call_index[node] = self.call_index.pop(before)
        elif before is node.args[0]:
            for other in [*node.args[1:], *(keyword.value for keyword in node.keywords)]:
                self.expression(other)
        return variable

    def forget_rebound(self, node: ast.Call) -> None:
        """A call that receives an object may rebind its attributes: what is known of them is read anew."""
        if not self.scope.bases:
            return
        roots = [dotted_path(argument) for argument in node.args]
        roots += [dotted_path(keyword.value) for keyword in node.keywords]
        if isinstance(node.func, ast.Attribute):
            roots.append(dotted_path(node.func.value))
        for root in roots:
            if root is not None:
                self.scope.forget_below(root)

    def united(self, nodes: list[ast.expr], line: int) -> int:
        values = [value for value in map(self.expression, nodes) if value != NOTHING]
        if len(values) < 2:
            return values[0] if values else NOTHING
        variable = self.variable(line)
        self.facts.copies.extend((variable, value) for value in values)
        return variable

    def expression_IfExp(self, node: ast.IfExp) -> int:
        self.expression(node.test)
        return self.united([node.body, node.orelse], node.lineno)

    def expression_BoolOp(self, node: ast.BoolOp) -> int:
        return self.united(node.values, node.lineno)

    def expression_BinOp(self, node: ast.BinOp) -> int:
        return self.with_pattern(node, self.united([node.left, node.right], node.lineno))

    def expression_JoinedStr(self, node: ast.JoinedStr) -> int:
        for part in children(node):
            for expression in children(part):
                if isinstance(expression, ast.expr):
                    self.expression(expression)
        return self.with_pattern(node, NOTHING)

    def with_pattern(self, node: ast.expr, variable: int) -> int:
        """What a text that is put together holds: a pattern for names beside its parts."""
        pattern = name_pattern(node)
        if pattern is None:
            return variable
        whole = self.variable(node.lineno)
        self.facts.constants.append((whole, pattern))
        if variable != NOTHING:
            self.facts.copies.append((whole, variable))
        return whole

    def expression_NamedExpr(self, node: ast.NamedExpr) -> int:
        value = self.expression(node.value)
        variable = self.variable(node.lineno)
        if value != NOTHING:
            self.facts.copies.append((variable, value))
        self.bind_name(node.target.id, variable)
        return variable

    def expression_Await(self, node: ast.Await) -> int:
        return self.expression(node.value)

    def expression_Starred(self, node: ast.Starred) -> int:
        return self.expression(node.value)

    def expression_Yield(self, node: ast.Yield) -> int:
        if node.value is not None:
            value = self.expression(node.value)
            if value != NOTHING and self.scope.function >= 0:
                returns = self.facts.functions[self.scope.function].returns
                if self.scope.function not in self.generators:
                    self.generators.add(self.scope.function)
                    self.facts.containers.append((returns, "generator"))
                self.facts.stores.append((returns, ANY_KEY, value))
        return NOTHING

    def expression_YieldFrom(self, node: ast.YieldFrom) -> int:
        return self.expression_Yield(ast.Yield(value=node.value))

    # --- containers ---------------------------------------------------------------------------------------

    def container(self, kind: str, line: int) -> int:
        variable = self.variable(line)
        self.facts.containers.append((variable, kind))
        return variable

    def sequence(self, node: ast.Tuple | ast.List | ast.Set) -> int:
        if not node.elts:
            return self.container(type(node).__name__.lower(), node.lineno)
        values = [self.expression(element) for element in node.elts]
        if all(value == NOTHING for value in values):
            return NOTHING
        container = self.container(type(node).__name__.lower(), node.lineno)
        exact = not any(isinstance(element, ast.Starred) for element in node.elts)
        for index, (element, value) in enumerate(zip(node.elts, values, strict=True)):
            if value == NOTHING:
                continue
            if isinstance(element, ast.Starred):
                value = self.element_of(value, element.lineno)
            self.facts.stores.append((container, f"[{index}]" if exact else ANY_KEY, value))
        return container

    expression_Tuple = sequence
    expression_List = sequence
    expression_Set = sequence

    def expression_Dict(self, node: ast.Dict) -> int:
        container = self.container("dict", node.lineno)
        for key, element in zip(node.keys, node.values, strict=True):
            value = self.expression(element)
            if key is None:
                if value != NOTHING:
                    self.facts.stores.append((container, "**", value))
                continue
            self.expression(key)
            if value != NOTHING:
                self.facts.stores.append((container, self.key_of(key), value))
        return container

    def expression_Subscript(self, node: ast.Subscript) -> int:
        kept, name = node.value, node.slice
        if isinstance(kept, ast.Attribute) and kept.attr == "__dict__" and isinstance(name, ast.Constant):
            return self.expression_Attribute(ast.Attribute(kept.value, str(name.value), ast.Load(), lineno=node.lineno))
        base = self.expression(node.value)
        key = self.expression(node.slice)
        if base == NOTHING:
            return NOTHING
        variable = self.variable(node.lineno)
        if key in self.scope.parameters:
            self.facts.parameter_keys[len(self.facts.loads)] = key
        self.facts.loads.append((variable, base, self.key_of(node.slice)))
        return variable

    def key_of(self, node: ast.expr) -> str:
        """The field of a container that a subscript names."""
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, int)):
            return f"[{node.value}]"
        return ANY_KEY

    def element_of(self, container: int, line: int) -> int:
        """The variable of what iteration over a container yields."""
        if container == NOTHING:
            return NOTHING
        variable = self.variable(line)
        self.facts.loads.append((variable, container, ANY_KEY))
        return variable

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> int:
        saved = dict(self.scope.environment)
        for generator in node.generators:
            self.bind_comprehension(generator.target, self.element_of(self.expression(generator.iter), node.lineno))
            for condition in generator.ifs:
                self.expression(condition)
        if isinstance(node, ast.DictComp):
            self.expression(node.key)
            value = self.expression(node.value)
        else:
            value = self.expression(node.elt)
        self.scope.environment = saved
        container = self.container(type(node).__name__, node.lineno)
        if value != NOTHING:
            self.facts.stores.append((container, ANY_KEY, value))
        return container

    expression_ListComp = comprehension
    expression_SetComp = comprehension
    expression_GeneratorExp = comprehension
    expression_DictComp = comprehension

    def bind_comprehension(self, target: ast.expr, value: int) -> None:
        """Binds a comprehension's own names, which no other scope sees."""
        if isinstance(target, ast.Name):
            variable = self.variable(target.lineno)
            if value != NOTHING:
                self.facts.copies.append((variable, value))
            self.note(target, variable)
            self.scope.environment[target.id] = variable
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, element in enumerate(target.elts):
                part = NOTHING
                if value != NOTHING:
                    part = self.variable(target.lineno)
                    self.facts.loads.append((part, value, f"[{index}]"))
                self.bind_comprehension(element, part)

    # --- functions and classes ----------------------------------------------------------------------------

    def expression_Lambda(self, node: ast.Lambda) -> int:
        value = self.variable(node.lineno)
        self.facts.function_values.append((value, self.function(node, "<lambda>")))
        return value

    def function_scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> tuple[set[str], set[str]]:
        raise TypeError("the statement extractor knows which names a body binds")

    def block(self, body: list[ast.stmt]) -> None:
        raise TypeError("the statement extractor walks statements")

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, name: str) -> int:
        """Walks a function in a scope of its own and returns its index."""
        arguments = node.args
        defaults = [self.expression(default) for default in arguments.defaults]
        keyword_defaults = [self.expression(default) if default else NOTHING for default in arguments.kw_defaults]
        index = len(self.facts.functions)
        before = self.sizes()
        function = FunctionFacts(name, self.qualified(name), node.lineno)
        self.facts.functions.append(function)
        function.returns = self.variable(node.lineno)
        if self.scope.class_body and self.current_class is not None:
            function.owner_class = self.current_class
            function.binding = binding(node, name)
        outer_scope, outer_class = self.scope, self.current_class
        names, outer = self.function_scope(node)
        scope = Scope(index, outer_scope, names, outer)
        self.scope = scope
        parameters = [*arguments.posonlyargs, *arguments.args]
        for position, parameter in enumerate(parameters):
            variable = self.parameter(parameter, parameter.arg)
            function.positional.append((parameter.arg, variable))
            default = position - (len(parameters) - len(defaults))
            if default >= 0 and defaults[default] != NOTHING:
                self.facts.copies.append((variable, defaults[default]))
        for parameter, default in zip(arguments.kwonlyargs, keyword_defaults, strict=True):
            variable = self.parameter(parameter, parameter.arg)
            function.keyword_only.append((parameter.arg, variable))
            if default != NOTHING:
                self.facts.copies.append((variable, default))
        if arguments.vararg:
            function.variadic = self.parameter(arguments.vararg, arguments.vararg.arg, annotated=False)
            self.facts.containers.append((function.variadic, "tuple"))
        if arguments.kwarg:
            function.variadic_keywords = self.parameter(arguments.kwarg, arguments.kwarg.arg, annotated=False)
            self.facts.containers.append((function.variadic_keywords, "dict"))
        if isinstance(node, ast.Lambda):
            value = self.expression(node.body)
            if value != NOTHING:
                self.facts.copies.append((function.returns, value))
        else:
            if node.returns is not None:
                self.annotate(function.returns, node.returns)
            self.current_class = None
            self.block(node.body)
        self.scope, self.current_class = outer_scope, outer_class
        if outer_scope.function < 0 and not self.unused:
            function.body = self.body(before, index, outer, hands_back(node))
        return index

    def sizes(self) -> tuple[int, ...]:
        """How many constraints of each kind there are so far."""
        facts = self.facts
        lists = (facts.lines, facts.copies, facts.loads, facts.stores, facts.calls, facts.constants, facts.containers)
        others = (facts.annotations, facts.functions, facts.classes, facts.imports)
        return tuple(len(constraints) for constraints in (*lists, *others))

    def body(self, before: tuple[int, ...], index: int, outer: set[str], hands_back: bool) -> Body | None:
        """The part of the facts that a function just walked has added, if it is small and stands for itself."""
        after = self.sizes()
        defines_others = after[8] > index + 1 or after[9:] != before[9:]
        if defines_others or outer or after[0] - before[0] > (_LARGEST_RELAY if hands_back else _LARGEST_BODY):
            return None
        return Body(*zip(before[:8], after[:8], strict=True), hands_back=hands_back)

    def parameter(self, node: ast.arg, name: str, annotated: bool = True) -> int:
        variable = self.variable(node.lineno)
        self.note(node, variable)
        self.scope.locals.add(name)
        self.scope.parameters.add(variable)
        self.bind_name(name, variable)
        if annotated and node.annotation is not None:
            self.annotate(variable, node.annotation)
        return variable

    def annotate(self, variable: int, annotation: ast.expr) -> None:
        """Notes each name in an annotation, also inside strings and unions."""
        for node in ast.walk(annotation):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                try:
                    quoted = ast.parse(node.value, mode="eval").body
                except (SyntaxError, ValueError):
                    continue
                for inner in ast.walk(quoted):
                    if isinstance(inner, (ast.Name, ast.Attribute)):
                        self.facts.annotations.append((variable, self.expression(inner)))
            elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                named = self.expression(node)
                if named != NOTHING:
                    self.facts.annotations.append((variable, named))

    def open_class(self, node: ast.ClassDef, bases: list[int]) -> int:
        """Adds a class to the facts; its members follow when the body is walked."""
        self.facts.classes.append(ClassFacts(node.name, self.qualified(node.name), node.lineno, bases))
        return len(self.facts.classes) - 1

    def qualified(self, name: str) -> str:
        parts = [name]
        if self.current_class is not None and self.scope.class_body:
            parts.append(self.facts.classes[self.current_class].qualified_name)
        elif self.scope.function >= 0:
            parts.append(self.facts.functions[self.scope.function].qualified_name)
        return ".".join(reversed(parts))

