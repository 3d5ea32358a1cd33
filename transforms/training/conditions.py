"""Conditions in generated code: what runs only where the model is sharded, and a test turned round."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import partial

from ..analysis.facts import Call
from ..analysis.scopes import dotted_path
from ..analysis.symbols import DDP, FSDP1, FSDP_MODULE
from ..analysis.values import Annotated, External, Unknown
from ..groups import Group
from ..introspection.plain import is_not_ddp, like
from ..keeping import may_be_kept
from ..members import UNIQUE_MEMBERS
from ..migration import Migration
from ..rule import Outcome
from ..sites import Site
from ..text.patches import Part
from ..view import FileView

_INVERSE = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_OPPOSITE = {
    "==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">", "is": "is not", "is not": "is",
    "in": "not in", "not in": "in",
}  # fmt: skip

_MAIN = "__name__ == '__main__'"


def negated(view: FileView, test: ast.expr) -> tuple[Part, ...]:
    """The opposite of a condition, as people would write it."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return (view.keep(test.operand),)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        operator = _OPPOSITE[_INVERSE[type(test.ops[0])]]
        return (view.keep(test.left), f" {operator} ", view.keep(test.comparators[0]))
    if isinstance(test, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return ("not ", view.keep(test))
    return ("not (", view.keep(test), ")")


def negated_all(view: FileView, parts: Sequence[ast.expr]) -> tuple[Part, ...]:
    """The opposite of several conditions that hold together."""
    if len(parts) == 1:
        return negated(view, parts[0])
    joined: list[Part] = []
    for number, part in enumerate(parts):
        joined.extend((" and ",) if number else ())
        joined.append(view.keep(part))
    return ("not (", *joined, ")")


def negated_text(view: FileView, parts: Sequence[ast.expr]) -> str:
    """The same as text, for where it is written more than once."""
    text = view.source.text
    return "".join(part if isinstance(part, str) else text[part.start : part.end] for part in negated_all(view, parts))


def only_where_sharded(
    site: Site, migration: Migration, outcome: Outcome, statement: Sequence[Part], indent: str, at: ast.AST
) -> list[Part]:
    """A statement about ``site``'s receiver at ``at``, in an ``isinstance`` test where a plain model may come by.

    The parts start behind the indentation and end without a newline.
    """
    if not needs_guard(site, at):
        return list(statement)
    assert isinstance(site.node, ast.Attribute)
    receiver = site.view.keep(site.node.value)
    inner = [part.replace("\n" + indent, f"\n{indent}    ") if isinstance(part, str) else part for part in statement]
    if compiles(migration):
        # isinstance does not see through torch.compile's module, attributes do
        return ["if hasattr(", receiver, f', "set_requires_gradient_sync"):\n{indent}    ', *inner]
    module = migration.use(outcome, site.view, FSDP_MODULE, site.node)
    return ["if isinstance(", receiver, f", {module}):\n{indent}    ", *inner]


def compiles(migration: Migration) -> bool:
    """Whether the repository compiles a model anywhere, so that a wrapper of ``torch.compile`` may come by."""
    return migration.once("compiles", None, lambda: any(map(partial(_compiles, migration), migration.program.flow.calls)))


def _compiles(migration: Migration, call: Call) -> bool:
    """Whether a call may be one of a model's ``compile`` or of torch's, as ``re.compile`` is not."""
    if call.method != "compile":
        return False
    receivers = migration.program.flow.values_of(call.function)
    names = {value.name.partition(".")[0] for value in receivers if isinstance(value, External)}
    return not (names and names <= {"re", "regex"})


def is_known(site: Site, migration: Migration) -> bool:
    """Whether anything in the repository, a wrap or an annotation, says that the receiver may be wrapped."""
    return bool(migration.groups.all) or any(isinstance(value, Annotated) for value in site.values)


def needs_guard(site: Site, at: ast.AST) -> bool:
    """Whether a path without sharding reaches ``at``, and no branch around it keeps that path out."""
    if (not site.maybe_plain and site.certain) or _wrapped_by_constructor(site, at):
        return False
    if _tested_before(site, at):
        return False
    here = conditions_of(site.view, at)
    return not any(conditions <= here for conditions in conditions_of_wraps(site))


def may_meet_ddp(site: Site, at: ast.AST) -> bool:
    """Whether a model that stays under DDP may come to ``at``, where those that are sharded come as well."""
    if not site.view.program.keeps_ddp:
        return False
    known = any(not isinstance(value, Unknown) for value in site.values)
    if known and not may_be_kept(site.values):
        return False
    if isinstance(site.node, ast.Attribute) and is_not_ddp(site.view, at, like(site.node.value)):
        return False
    return needs_guard(site, at) and not _under_kind_of_state(site.view, at)


def _under_kind_of_state(view: FileView, at: ast.AST) -> bool:
    """Whether a place lies in a ``with FSDP.state_dict_type(…)``, which raises KeyError for a model without FSDP1."""
    return any(
        isinstance(item.context_expr, ast.Call) and ast.unparse(item.context_expr.func).endswith(".state_dict_type")
        for ancestor in view.ancestors(at)
        if isinstance(ancestor, ast.With)
        for item in ancestor.items
    )


def _tested_before(site: Site, at: ast.AST) -> bool:
    """Whether the code itself asks if the receiver is wrapped: in a branch around, or by leaving where it is not."""
    view, node = site.view, site.node
    receiver = view.text(node.value) if isinstance(node, ast.Attribute) else ""
    child = at
    for ancestor in view.ancestors(at):
        if isinstance(ancestor, ast.If) and child in ancestor.body and _asks(view, ancestor.test, receiver):
            return True
        for name in ("body", "orelse"):
            block = getattr(ancestor, name, None)
            if isinstance(block, list) and child in block:
                for earlier in block[: block.index(child)]:
                    if isinstance(earlier, ast.If) and not earlier.orelse and _jumps(earlier.body[-1]):
                        test = earlier.test
                        negative = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
                        if negative and _asks(view, test.operand, receiver):  # pyright: ignore[reportAttributeAccessIssue]
                            return True
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return False
        child = ancestor
    return False


def _asks(view: FileView, test: ast.expr, receiver: str) -> bool:
    """``isinstance(model, …)`` or ``hasattr(model, …)``, alone or in an ``and``."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_asks(view, value, receiver) for value in test.values)
    if not isinstance(test, ast.Call) or not isinstance(test.func, ast.Name) or len(test.args) != 2:
        return False
    keeps = bool(view.program.keeps_ddp)
    named = isinstance(test.args[1], ast.Constant) and test.args[1].value in UNIQUE_MEMBERS and not keeps
    classes = {view.external(n) for n in ast.walk(test.args[1]) if isinstance(n, (ast.Name, ast.Attribute))}
    typed = test.func.id == "isinstance" and bool(classes & {FSDP1, DDP}) and not (keeps and DDP in classes)
    return view.text(test.args[0]) == receiver and ((test.func.id == "hasattr" and named) or typed)


def _jumps(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Return, ast.Continue, ast.Raise, ast.Break))


def _wrapped_by_constructor(site: Site, at: ast.AST) -> bool:
    """Whether ``at`` lies in a method that runs after ``__init__`` has wrapped the attribute without condition."""
    view, node = site.view, site.node
    wraps = site.group.wraps if site.group else []
    receiver = node.value if isinstance(node, ast.Attribute) else node
    path = dotted_path(receiver) if isinstance(receiver, ast.expr) else None
    function = view.function(at)
    if not wraps or path is None or path.count(".") != 1 or getattr(function, "name", "__init__") == "__init__":
        return False
    if may_be_kept(site.values):
        return False
    for wrap in wraps:
        statement = wrap.view.statement(wrap.node)
        constructor = wrap.view.parents[statement]
        if not isinstance(statement, ast.Assign) or [dotted_path(target) for target in statement.targets] != [path]:
            return False
        if not isinstance(constructor, ast.FunctionDef) or constructor.name != "__init__" or wrap.view is not view:
            return False
        if view.enclosing_class(constructor) is not view.enclosing_class(at):
            return False
        if _runs_within(view, constructor, function, statement.lineno):
            return False
    return True


def _runs_within(view: FileView, constructor: ast.FunctionDef, function: ast.AST | None, line: int) -> bool:
    """Whether a constructor calls a method, directly or through others, before a line."""
    pending, seen = [function], set()
    while pending:
        current = pending.pop()
        if current is None or current in seen:
            continue
        seen.add(current)
        for caller, call in view.program.callers(view, current):
            owner = caller.function(call)
            if owner is constructor and call.lineno < line:
                return True
            if caller is view and owner is not constructor:
                pending.append(owner)
    return False


def conditions_of_wraps(site: Site) -> list[set[str]]:
    """For each wrap of the site's group that is not unconditional: what is true where it stands.

    Wraps in both branches of a test count as one that stands before it.
    """
    return conditions_of_group(site.group) if site.group is not None else []


def conditions_of_group(group: Group) -> list[set[str]]:
    """The same for the wraps of a group."""
    found = [conditions_of(wrap.view, wrap.node) - {_MAIN} for wrap in group.wraps]
    for one in list(found):
        for other in list(found):
            only_one, only_other = one - other, other - one
            if len(only_one) == 1 and only_other == {f"not {condition}" for condition in only_one}:
                found.append(one & other)
    return [conditions for conditions in found if conditions]


def split_guard(site: Site, test: ast.expr) -> tuple[list[ast.expr], list[ast.expr]]:
    """Parts of an ``and`` that say the model is wrapped at all (``ddp and not last``), and the others."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    for conditions in conditions_of_wraps(site):
        guards = [part for part in parts if _conjuncts(part) <= conditions]
        if {name for part in guards for name in _conjuncts(part)} == conditions:
            return guards, [part for part in parts if part not in guards]
    return [], parts


def conditions_of(view: FileView, node: ast.AST) -> set[str]:
    """What is surely true at a node: the tests of the branches around it, paths by their last name."""
    found: set[str] = set()
    child = node
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            break
        if isinstance(ancestor, (ast.If, ast.IfExp)) and child is not ancestor.test:
            holds = child in ancestor.body if isinstance(ancestor, ast.If) else child is ancestor.body
            found |= _conjuncts(ancestor.test) if holds else _opposite(ancestor.test)
        child = ancestor
    return found


def _conjuncts(test: ast.expr) -> set[str]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return {name for value in test.values for name in _conjuncts(value)}
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _opposite(test.operand)
    path = dotted_path(test)
    return {path.rpartition(".")[2] if path is not None else ast.unparse(test)}


def _opposite(test: ast.expr) -> set[str]:
    """What is true where a test is false."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _conjuncts(test.operand)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return {name for value in test.values for name in _opposite(value)}
    inner = _conjuncts(test)
    return {f"not {inner.pop()}" if len(inner) == 1 else f"not ({ast.unparse(test)})"}
