"""Functions of a repository that do nothing but tell wrappers from other models: `return isinstance(model, DDP)`."""

from __future__ import annotations

import ast

from .file import File

_ASKS_CLASS = frozenset({"isinstance", "issubclass", "hasattr"})


def asked_about(file: File, test: ast.expr) -> ast.expr | None:
    """The model that a call of such a function asks about; None for other calls."""
    if not isinstance(test, ast.Call) or len(test.args) != 1 or test.keywords:
        return None
    functions = list(map(file.program.function_node, file.program.callees(file, test)))
    return test.args[0] if functions and all(own_test(function) is not None for _, function in functions) else None


def own_test(function: ast.AST) -> ast.expr | None:
    """The test that is all that a function makes: of its only parameter, by the class or by what it has."""
    if not isinstance(function, ast.FunctionDef) or len(function.args.args) != 1 or function.decorator_list:
        return None
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    test = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
    call = test.left if isinstance(test, ast.Compare) else test
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or not call.args:
        return None
    asks = call.func.id == "type" if isinstance(test, ast.Compare) else call.func.id in _ASKS_CLASS
    return test if asks and ast.unparse(call.args[0]) == function.args.args[0].arg else None


def uses_of(file: File, function: ast.FunctionDef) -> list[tuple[File, ast.Call]] | None:
    """All calls of a function; None where it may be called otherwise, as something says its name beside them."""
    calls = file.program.callers(file, function)
    called = {call.func for _, call in calls}
    for other in map(file.program.file, file.program.relevant_files()):
        named = [n for n in other.nodes(ast.Name, ast.Attribute) if getattr(n, "id", getattr(n, "attr", "")) == function.name]
        if any(n not in called and not _calls_another(other, n) for n in named):
            return None
    return calls


def _calls_another(file: File, name: ast.expr) -> bool:
    """Whether a name is called where it is known to stand for other functions: another module may have one of this name."""
    call = file.parents[name]
    return isinstance(call, ast.Call) and call.func is name and bool(file.program.callees(file, call))
