"""Policies in their new form, as text: tuples of classes, and tests of a module."""

from __future__ import annotations

import ast

from ..analysis.scopes import dotted_path
from ..analysis.values import FunctionValue
from ..findings import Level
from ..migration import Migration
from ..program import Program
from ..rule import Outcome
from ..text.patches import Old
from ..view import FileView
from .plan import Code, Name, code
from .policy_definitions import DISPLAYS, WRAP, Definition, definition_of_call, definitions, form_at

LAMBDA = "lambda module: "
"""Begins a policy that becomes a function of the module."""
_COLLECTIONS = ("builtins.set", "builtins.tuple", "builtins.list", "builtins.frozenset")


def classes_text(view: FileView, node: ast.expr | None) -> Code:
    """A tuple of classes, from the set, list or tuple that a policy was given."""
    if node is None:
        return ("()",)
    if isinstance(node, ast.Call) and len(node.args) == 1 and view.external(node.func) in _COLLECTIONS:
        node = node.args[0]
    if isinstance(node, DISPLAYS) and not any(isinstance(e, ast.Starred) for e in node.elts):
        parts: list[Code] = []
        for number, element in enumerate(node.elts):
            parts.append(code(", " if number else "", view.keep(element)))
        if sum(len(view.text(element)) + 2 for element in node.elts) > 80:
            return code("(", *(code("\n    ", view.keep(element), ",") for element in node.elts), "\n)")
        return code("(", *parts, ",)" if len(node.elts) == 1 else ")")
    return code("tuple(", view.keep(node), ")")


def class_test(view: FileView, node: ast.expr | None) -> Code:
    """What stands as second argument of ``isinstance`` in a condition: one class alone needs no tuple."""
    inner = node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 else node
    if isinstance(inner, DISPLAYS) and len(inner.elts) == 1 and not isinstance(inner.elts[0], ast.Starred):
        return (view.keep(inner.elts[0]),)
    return classes_text(view, node)


def definition_text(migration: Migration, definition: Definition, form: str) -> tuple[Code, Outcome] | None:
    """The policy in its new form, with what is to be said; None where there is none."""
    view, argument, symbol = definition.view, definition.argument, definition.symbol
    if definition.form == "classes":
        if form == "classes":
            return classes_text(view, argument), Outcome(
                Level.SAFE, "the policy becomes the tuple of its classes"
            )
        test = class_test(view, argument)
        return code(LAMBDA, "isinstance(module, ", test, ")"), Outcome(
            Level.SAFE, "the policy becomes a function of the module, like the others that it stands beside"
        )
    if definition.form == "size" and form == "size":
        return None
    if argument is None or form == "mixed":
        return None
    if symbol == f"{WRAP}_or_policy":
        tests = or_tests(migration, view, argument, "module")
        return (
            None
            if tests is None
            else (
                code(LAMBDA, tests),
                Outcome(
                    Level.SAFE, "modules that any of the policies picks are units of their own", UNIFORM
                ),
            )
        )
    if symbol == f"{WRAP}CustomPolicy":
        answers = answers_of(migration.program, view, argument)
        if answers == "arguments":
            return None
        if answers == "unseen":
            return (view.keep(argument),), Outcome(Level.REVIEW, f"the function itself is the condition; {IN_NEW_TERMS}")
    return (view.keep(argument),), Outcome(Level.SAFE, "the function itself is the condition", UNIFORM)


UNIFORM = (
    "FSDP2 lets trained and frozen parameters share a unit: a policy that only kept them apart can go, and units a "
    "block are faster."
)


def or_tests(migration: Migration, view: FileView, policies: ast.expr, module: str | Name) -> Code | None:
    """``first(module) or isinstance(module, second)``; None where the policies of the list cannot be told apart."""
    if not isinstance(policies, DISPLAYS):
        return None
    tests: list[Code] = []
    for element in policies.elts:
        test = _element_test(migration, view, element, module)
        if test is None:
            return None
        tests.append(code(" or " if tests else "", test))
    return code(*tests)


def _element_test(migration: Migration, view: FileView, element: ast.expr, module: str | Name) -> Code | None:
    """The test of one policy in a list: made right there, or known by its name."""
    inline = definition_of_call(view, element) if isinstance(element, ast.Call) else None
    if inline is not None and inline.argument is not None and inline.form == "classes":
        return code("isinstance(", module, ", ", class_test(view, inline.argument), ")")
    if (
        inline is not None
        and inline.argument is not None
        and inline.symbol == f"{WRAP}lambda_auto_wrap_policy"
    ):
        return call_of(view, inline.argument, module)
    if dotted_path(element) is None:
        return None
    found, complete = definitions(migration.program, view.values(element), view, element)
    forms = {form_at(migration, d.view, d.node) or d.form for d in found}
    if (
        not complete
        or len(forms) != 1
        or forms & {"size", "mixed"}
        or any(d.symbol == "function" for d in found)
    ):
        return None
    if forms == {"classes"}:
        return code("isinstance(", module, ", ", view.keep(element), ")")
    return code(view.keep(element), "(", module, ")")


def call_of(view: FileView, function: ast.expr, module: str | Name) -> Code:
    """A function asked about a module; a short lambda becomes its body."""
    if (
        isinstance(function, ast.Lambda)
        and len(function.args.args) == 1
        and "\n" not in view.text(function.body)
    ):
        body = _substituted(view, function.body, function.args.args[0].arg, module)
        return code("(", body, ")") if isinstance(function.body, (ast.BoolOp, ast.IfExp)) else body
    kept = code("(", view.keep(function), ")") if isinstance(function, ast.Lambda) else (view.keep(function),)
    return code(kept, "(", module, ")")


IN_NEW_TERMS = (
    "where it answers with a dictionary, that has to name arguments of fully_shard (mesh, reshard_after_forward, mp_policy, "
    "offload_policy), and one of FSDP1's raises"
)


def answers_of(program: Program, view: FileView, node: ast.expr) -> str:
    """What the function of a CustomPolicy returns: a ``truth`` value, ``arguments`` of FSDP1, or something ``unseen``."""
    if not _may_return_dictionaries(program, view, node):
        return "truth"
    functions = [program.function_node(v)[1] for v in view.values(node) if isinstance(v, FunctionValue)]
    writes_some = any(_is_dictionary(inner) for function in functions for inner in ast.walk(function))
    return "arguments" if writes_some else "unseen"


def _is_dictionary(node: ast.AST) -> bool:
    return isinstance(node, ast.Dict) or (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict")


def _may_return_dictionaries(program: Program, view: FileView, node: ast.expr) -> bool:
    for value in view.values(node):
        if not isinstance(value, FunctionValue):
            return True
        _, function = program.function_node(value)
        if isinstance(function, ast.Lambda):
            return isinstance(function.body, (ast.Dict, ast.Call, ast.IfExp)) and not _is_boolean(
                function.body
            )
        for inner in ast.walk(function):
            if isinstance(inner, ast.Return) and inner.value is not None and not _is_boolean(inner.value):
                return True
    return False


def _is_boolean(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in (
            "isinstance",
            "any",
            "all",
            "hasattr",
            "bool",
        )
    if isinstance(node, ast.BoolOp):
        return all(_is_boolean(value) for value in node.values)
    return isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def _substituted(view: FileView, body: ast.expr, parameter: str, module: str | Name) -> Code:
    """The body of a lambda, over another name."""
    names = [n for n in ast.walk(body) if isinstance(n, ast.Name) and n.id == parameter]
    reached, end = view.source.span(body)
    parts: list[Code] = []
    for start, stop in sorted(view.source.span(name) for name in names):
        parts.append(code(Old(reached, start), module))
        reached = stop
    return code(*parts, Old(reached, end))
