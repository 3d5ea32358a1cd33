"""Where a wrap stands in its statement, and how the statements of its plan take its place.

``fully_shard`` works in place and the wrapper is gone, so a wrap is no longer an expression with a value of its
own: its statements go before the statement that held it, and the model's own name stands where the wrap stood.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis.scopes import dotted_path
from ..analysis.symbols import DDP, FSDP1
from ..analysis.values import Instance, Opaque
from ..text.patches import Old, Part, Patch
from ..view import FileView
from .plan import MODEL, Code, ShardingPlan, code, deeper, fill, written

_DRAWS = ("torch.nn.", "torch.rand", "torch.manual_seed")
_WHY = "the wrap becomes fully_shard calls on the model itself"


class CannotPlace(Exception):
    """The wrap stands where no statements can take its place; the message says where that is."""


def place(plan: ShardingPlan) -> list[Patch]:
    """The patches that put a plan's statements in the place of its wrap. Raises CannotPlace.

    All of them lie inside the statement that holds the wrap (apart from statements that ``moved_up`` takes away
    from behind it), so that a rule that moves this statement can keep its text and gets the new one.
    """
    view, call = plan.view, plan.call
    if plan.model is None:
        raise CannotPlace("the call does not say which model it wraps")
    if isinstance(plan.model, ast.Call) and view.external(plan.model.func) == FSDP1:
        raise CannotPlace(
            "it wraps a model that the same statement has wrapped already, and a module is sharded once"
        )
    statement = view.statement(call)
    value = getattr(statement, "value", None)
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and _single_target(statement) is not None:
        if value is call:
            return _assignment(plan, statement)
        if isinstance(value, ast.IfExp) and value.body is call and view.stands_alone(statement):
            return _conditional(plan, statement, value)
    if isinstance(statement, ast.Return):
        if value is call:
            return _return(plan, statement)
        if isinstance(value, ast.IfExp) and value.body is call and view.stands_alone(statement):
            return _conditional_return(plan, statement, value)
    if isinstance(statement, ast.Expr) and value is call:
        return _statement(plan, statement)
    if _runs_once_and_first(view, call, statement):
        return _hoisted(plan, statement)
    return _local_function(plan, statement)


# --- whole statements ---------------------------------------------------------------------------------------


def _assignment(plan: ShardingPlan, statement: ast.Assign | ast.AnnAssign) -> list[Patch]:
    view, model = plan.view, plan.model
    target = _single_target(statement)
    assert target is not None and model is not None
    name, path = view.text(target), path_text(view, model)
    if path is None:
        first = code(_span(view, statement, plan.call), view.keep(model))
        return _replace(plan, statement, [first, *plan.statements()], name)
    statements = plan.statements()
    loop = _loop_over(view, target, model)
    if path != name and loop is None:
        statements.append(code(_span(view, statement, plan.call), path))
    patches = _replace(plan, statement, statements, path)
    if loop is not None:
        patches.extend(_without_index(view, loop, target))
    return patches


def _conditional(plan: ShardingPlan, statement: ast.Assign | ast.AnnAssign, value: ast.IfExp) -> list[Patch]:
    """``model = FSDP(model) if sharded else model``."""
    view, model = plan.view, plan.model
    target = _single_target(statement)
    assert target is not None and model is not None
    name, path = view.text(target), path_text(view, model)
    inner = _indented(plan.statements())
    head = code("if ", view.keep(value.test), ":")
    if path is not None and path == name:
        branch = code(head, *inner)
    elif path is not None:
        branch = code(head, *inner, f"\n    {name} = {path}")
    else:
        branch = code(head, f"\n    {name} = ", view.keep(model), *inner)
    rest = view.text(value.orelse)
    if rest != name:
        branch = code(branch, f"\nelse:\n    {name} = ", view.keep(value.orelse))
    return _replace(plan, statement, [branch], path or name)


def _return(plan: ShardingPlan, statement: ast.Return) -> list[Patch]:
    view, model = plan.view, plan.model
    assert model is not None
    path = path_text(view, model)
    name = path or view.generated_name(plan.call, "model", statement)
    statements = [*plan.statements(), (f"return {name}",)]
    if path is None:
        statements.insert(0, code(f"{name} = ", view.keep(model)))
    return _replace(plan, statement, statements, name)


def _conditional_return(plan: ShardingPlan, statement: ast.Return, value: ast.IfExp) -> list[Patch]:
    """``return FSDP(model) if sharded else model``."""
    view, model = plan.view, plan.model
    assert model is not None
    path = path_text(view, model)
    name = path or view.generated_name(plan.call, "model", statement)
    inner = list(plan.statements())
    if path is None:
        inner.insert(0, code(f"{name} = ", view.keep(model)))
    branch = code("if ", view.keep(value.test), ":")
    if view.text(value.orelse) == path:
        statements = [code(branch, *_indented(inner)), (f"return {name}",)]
    else:
        other = code("return ", view.keep(value.orelse))
        statements = [code(branch, *_indented([*inner, (f"return {name}",)])), other]
    return _replace(plan, statement, statements, name)


def _statement(plan: ShardingPlan, statement: ast.Expr) -> list[Patch]:
    view, model = plan.view, plan.model
    assert model is not None
    path = path_text(view, model)
    name = path or view.generated_name(plan.call, "model", statement)
    statements = plan.statements()
    if path is None:
        statements.insert(0, code(f"{name} = ", view.keep(model)))
    return _replace(plan, statement, statements, name)


# --- inside expressions -------------------------------------------------------------------------------------


def _hoisted(plan: ShardingPlan, statement: ast.stmt) -> list[Patch]:
    """The statements go before the statement, the model's name where the wrap was."""
    view, model = plan.view, plan.model
    assert model is not None
    inner = [n for n in ast.walk(model) if isinstance(n, ast.Call) and view.external(n.func) in (FSDP1, DDP)]
    if inner:
        raise CannotPlace("the model that it wraps is built of another wrap, which has to come first")
    path = path_text(view, model)
    name = path or view.generated_name(plan.call, "model", statement)
    statements = plan.statements()
    if path is None:
        statements.insert(0, code(f"{name} = ", view.keep(model)))
    return [*_insert(plan, statement, statements, name), view.replace(plan.call, name, _WHY)]


def _local_function(plan: ShardingPlan, statement: ast.stmt) -> list[Patch]:
    """Where the wrap may run never or many times (a comprehension, a lambda): a function of its own."""
    view, call = plan.view, plan.call
    assert plan.model is not None
    bound = _names_bound_around(view, call, statement)
    parameter = "model" if "model" not in bound else "network"
    statements = plan.statements()
    text_names = {n.id for k in call.keywords for n in ast.walk(k.value) if isinstance(n, ast.Name)}
    if bound & text_names:
        names = ", ".join(sorted(bound & text_names))
        raise CannotPlace(f"its arguments use {names}, which only this expression knows")
    if isinstance(view.parents[statement], ast.ClassDef):
        raise CannotPlace("it stands in the body of a class")
    name = view.generated_name(call, "shard")
    body = [*statements, (f"return {parameter}",)]
    function = code(f"def {name}({parameter}):", *_indented(body))
    patches = _insert(plan, statement, [fill(function, {MODEL: parameter}), ()], parameter)
    return [*patches, view.replace(call, (f"{name}(", view.keep(plan.model), ")"), _WHY)]


def shard_function(
    plan: ShardingPlan, name: str, parameter: str, statements: Sequence[Code] | None = None
) -> Code:
    """A function that shards what it is given and returns it: what ``functools.partial(FSDP, …)`` was."""
    body = [*(statements or plan.statements()), (f"return {parameter}",)]
    return fill(code(f"def {name}({parameter}):", *_indented(body)), {MODEL: parameter})


def _runs_once_and_first(view: FileView, call: ast.Call, statement: ast.stmt) -> bool:
    """Whether the wrap is evaluated exactly once when its statement runs, with nothing that matters before it."""
    child: ast.AST = call
    for ancestor in view.ancestors(call):
        if isinstance(ancestor, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            return False
        if isinstance(ancestor, ast.IfExp) and child is not ancestor.test:
            return False
        if isinstance(ancestor, ast.BoolOp) and child is not ancestor.values[0]:
            return False
        if ancestor is statement:
            break
        child = ancestor
    builds = any(isinstance(inner, ast.Call) for argument in call.args[:1] for inner in ast.walk(argument))
    if builds and any(_may_matter(view, earlier, statement) for earlier in _calls_before(view, call, statement)):
        return False
    if isinstance(statement, ast.If):
        return not _is_elif(view, statement)
    return not isinstance(statement, (ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def _calls_before(view: FileView, call: ast.Call, statement: ast.stmt) -> list[ast.Call]:
    """The calls of a statement that are made before a wrap and its arguments."""
    start = view.source.span(call)[0]
    whole = [inner for inner in ast.walk(statement) if isinstance(inner, ast.Call)]
    return [inner for inner in whole if view.source.span(inner)[1] <= start]


def _may_matter(view: FileView, earlier: ast.Call, statement: ast.stmt) -> bool:
    """Whether a call makes a model, or runs code of the repository: random numbers would be drawn in another order.

    What belongs to a wrap that goes in front of the statement, too, keeps its place in the order.
    """
    around = [earlier, *(a for a in view.ancestors(earlier) if isinstance(a, ast.Call))]
    wraps = [a for a in around if view.external(a.func) in (FSDP1, DDP) and view.statement(a) is statement]
    if wraps:
        return not _runs_once_and_first(view, wraps[-1], statement)
    values = view.values(earlier)
    makes = any(isinstance(v, Instance) or (isinstance(v, Opaque) and v.name.startswith(_DRAWS)) for v in values)
    return makes or bool(view.program.callees(view, earlier))


# --- text ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Line:
    """Where the text of a statement starts on its line, and how what comes in its place is indented."""

    start: int
    indent: str
    lead: str


def _line(view: FileView, statement: ast.stmt) -> _Line:
    """A statement behind a colon or a semicolon on the same line gets a line of its own."""
    source = view.source
    start = source.span(statement)[0]
    before = source.text[source.line_starts[statement.lineno - 1] : start]
    indent = source.indent_at(start)
    if not before.strip():
        return _Line(start, indent, "")
    if before.rstrip().endswith(":"):
        indent += "    "
    return _Line(start - (len(before) - len(before.rstrip())), indent, "\n" + indent)


def _replace(plan: ShardingPlan, statement: ast.stmt, statements: Sequence[Code], model: str) -> list[Patch]:
    line = _line(plan.view, statement)
    moved, patches = _moved_up(plan, line.indent)
    start, end = plan.view.source.span(statement)
    text = written(statements, model, line.indent)
    keeps_start = any(isinstance(part, Old) and part.start == start for part in text)
    # What other wraps of the statement put in front of it.
    before = () if keeps_start else (Old(start, start),)
    parts = (line.lead, *before, *moved, *text)
    return [Patch(plan.view.path, line.start, end, parts, _WHY), *patches]


def _insert(plan: ShardingPlan, statement: ast.stmt, statements: Sequence[Code], model: str) -> list[Patch]:
    line = _line(plan.view, statement)
    if line.lead:
        raise CannotPlace("it shares its line with another statement")
    while _is_elif(plan.view, statement):
        parent = plan.view.parents[statement]
        assert isinstance(parent, ast.If)
        statement = parent
        line = _line(plan.view, statement)
    moved, patches = _moved_up(plan, line.indent)
    parts = (*moved, *written(statements, model, line.indent), "\n" + line.indent)
    return [Patch(plan.view.path, line.start, line.start, parts, _WHY), *patches]


def _moved_up(plan: ShardingPlan, indent: str) -> tuple[list[Part], list[Patch]]:
    """Statements of the same block that go before the sharding, with the comments that belong to them."""
    view = plan.view
    parts: list[Part] = []
    patches: list[Patch] = []
    for statement in plan.moved_up:
        start = _with_comments(view, statement)
        parts.extend((Old(start, view.source.span(statement)[1]), "\n" + indent))
        begin = view.source.line_starts[view.source.position(start)[0] - 1]
        if statement is plan.moved_up[0] and not _line_at(view, view.line_end(plan.moved_up[-1])).strip():
            begin = _without_blank_lines(view, begin)
        patches.append(Patch(view.path, begin, view.line_end(statement), (), "applied before sharding"))
    return parts, patches


def _line_at(view: FileView, offset: int) -> str:
    return view.source.text[offset:].partition("\n")[0]


def _without_blank_lines(view: FileView, begin: int) -> int:
    """Offset of the first of the blank lines right above a line: other blank lines follow what is taken out."""
    line = view.source.position(begin)[0]
    while line > 1 and not view.source.lines[line - 2].strip():
        line -= 1
    return view.source.line_starts[line - 1]


def _with_comments(view: FileView, statement: ast.stmt) -> int:
    """Offset of a statement, or of the first of the comment lines right above it."""
    line = statement.lineno
    while line > 1 and view.source.lines[line - 2].lstrip().startswith("#"):
        line -= 1
    begin = view.source.line_starts[line - 1]
    text = view.source.lines[line - 1]
    return begin + len(text) - len(text.lstrip(" \t"))


def path_text(view: FileView, node: ast.expr) -> str | None:
    """The text of an expression that may be written again and again: a path, or an element by a plain index."""
    if dotted_path(node) is not None:
        return view.text(node)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, (ast.Name, ast.Constant)):
        return view.text(node) if dotted_path(node.value) is not None else None
    return None


def _loop_over(view: FileView, target: ast.expr, model: ast.expr) -> ast.For | None:
    """The loop ``for i, layer in enumerate(layers)`` around ``layers[i] = FSDP(layer)``: nothing is to be assigned."""
    if not isinstance(target, ast.Subscript) or not isinstance(model, ast.Name):
        return None
    container = view.text(target.value)
    for ancestor in view.ancestors(target):
        if isinstance(ancestor, ast.For) and isinstance(ancestor.target, ast.Tuple):
            names = [view.text(element) for element in ancestor.target.elts]
            over = view.text(ancestor.iter)
            known = (f"enumerate({container})", f"{container}.items()", f"{container}.named_children()")
            if names == [view.text(target.slice), model.id] and over in known:
                return ancestor
    return None


def _without_index(view: FileView, loop: ast.For, target: ast.expr) -> list[Patch]:
    """``for layer in layers``, where nothing else asks for the index."""
    assert isinstance(loop.target, ast.Tuple) and isinstance(target, ast.Subscript)
    index, element = loop.target.elts
    used = [n for n in ast.walk(loop) if isinstance(n, ast.Name) and n.id == view.text(index)]
    if len(used) > 2 or not isinstance(loop.iter, ast.Call) or not isinstance(loop.iter.func, ast.Name):
        return []
    return [
        view.replace(loop.target, (view.keep(element),), _WHY),
        view.replace(loop.iter, (view.keep(loop.iter.args[0]),), _WHY),
    ]


def _single_target(statement: ast.Assign | ast.AnnAssign) -> ast.expr | None:
    """The one thing that is assigned to, if it is a path or an element."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    plain = isinstance(targets[0], (ast.Name, ast.Attribute, ast.Subscript))
    return targets[0] if len(targets) == 1 and plain else None


def _is_elif(view: FileView, statement: ast.stmt) -> bool:
    parent = view.parents[statement]
    return (
        isinstance(statement, ast.If)
        and isinstance(parent, ast.If)
        and statement in parent.orelse
        and view.source.text.startswith("elif", view.source.span(statement)[0])
    )


def _span(view: FileView, statement: ast.stmt, call: ast.Call) -> Old:
    """``target = ``, annotation included: the statement up to the wrap."""
    return Old(view.source.span(statement)[0], view.source.span(call)[0])


def _indented(statements: Sequence[Code]) -> list[Code]:
    """Statements as the body of a block: each on a line of its own, one step in."""
    return [code("\n    ", *deeper(statement)) for statement in statements]


def _names_bound_around(view: FileView, call: ast.Call, statement: ast.stmt) -> set[str]:
    """Names that lambdas and comprehensions between a wrap and its statement bind."""
    found: set[str] = set()
    for ancestor in view.ancestors(call):
        if ancestor is statement:
            break
        if isinstance(ancestor, ast.Lambda):
            found |= {a.arg for a in ast.walk(ancestor.args) if isinstance(a, ast.arg)}
        elif isinstance(ancestor, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            for generator in ancestor.generators:
                found |= view.names_in(generator.target)
    return found
