"""Other shapes of branches and guards."""

# ruff: noqa: B023 - a refactoring returns before its loops go on

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random
from typing import Any

import libcst as cst

from ..code import Code, expression, single, statements, with_body
from ..project import Changes, Place, Project
from .extraction import fragment, free, importing, with_import
from .shared import function_of_expression, insert_above

RANK = re.compile(r"rank|is_main|master|main_process|primary|get_rank")


def negated(code: Code, test: cst.BaseExpression) -> cst.BaseExpression:
    """The opposite of a condition."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return test.expression
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        operator = test.comparisons[0].operator
        for one, other in ((cst.Equal, cst.NotEqual), (cst.Is, cst.IsNot), (cst.In, cst.NotIn)):
            for here, there in ((one, other), (other, one)):
                if isinstance(operator, here):
                    return test.with_changes(comparisons=[test.comparisons[0].with_changes(operator=there())])
    return expression(f"not ({code.text(test)})")


def branches(project: Project) -> Iterator[tuple[str, Code, cst.If]]:
    """`if` statements that are no `elif` and have blocks."""
    for path, code in project.codes():
        for node in code.find(cst.If):
            blocks = all(isinstance(block, cst.IndentedBlock) for block in (node.body, getattr(node.orelse, "body", node.body)))
            if not isinstance(code.parents[node], cst.If) and blocks:
                yield path, code, node


def _spaced(test: cst.BaseExpression) -> dict[str, Any]:
    return {"test": test, "whitespace_before_test": cst.SimpleWhitespace(" ")}


def invert_condition(project: Project, rng: Random) -> Changes:
    """The branches of an `if` change places."""
    for path, code, node in branches(project):
        if not (yield Place(path, code.text(node))):
            continue
        def rewrite(updated: cst.If) -> cst.If:
            test = negated(code, updated.test)
            if isinstance(updated.orelse, cst.If):
                other: Any = cst.IndentedBlock(body=[updated.orelse])
            else:
                other = updated.orelse.body if updated.orelse else cst.IndentedBlock(body=statements("pass\n"))
            return updated.with_changes(body=other, orelse=cst.Else(body=updated.body), **_spaced(test))

        return project.changed({path: code.rewritten({node: rewrite})})
    return None


def nest_condition(project: Project, rng: Random) -> Changes:
    """`if a and b:` becomes two `if`s."""
    for path, code, node in branches(project):
        joined = isinstance(node.test, cst.BooleanOperation) and isinstance(node.test.operator, cst.And)
        if node.orelse or not joined or not (yield Place(path, code.text(node))):
            continue

        def rewrite(updated: cst.If) -> cst.If:
            test: Any = updated.test
            inner = cst.If(test=test.right, body=updated.body)
            return updated.with_changes(body=cst.IndentedBlock(body=[inner]), **_spaced(test.left))

        return project.changed({path: code.rewritten({node: rewrite})})
    return None


def join_conditions(project: Project, rng: Random) -> Changes:
    """An `if` that holds nothing but an `if` becomes one with `and`."""
    for path, code, node in branches(project):
        inner = node.body.body[0] if len(node.body.body) == 1 else None
        if node.orelse or not isinstance(inner, cst.If) or inner.orelse or not (yield Place(path, code.text(node))):
            continue

        def rewrite(updated: cst.If) -> cst.If:
            within: Any = updated.body.body[0]
            test = expression(f"({code.text(updated.test)}) and ({code.text(within.test)})")
            return updated.with_changes(body=within.body, **_spaced(test))

        return project.changed({path: code.rewritten({node: rewrite})})
    return None


def conditional_to_branches(project: Project, rng: Random) -> Changes:
    """`x = a if c else b` becomes an `if` with two assignments."""
    for path, code in project.codes():
        for line in code.find(cst.SimpleStatementLine):
            assign = single(line, cst.Assign)
            if not assign or not isinstance(assign.value, cst.IfExp) or code.statement(line) is None or code.in_class_body(line):
                continue
            if not (yield Place(path, code.text(line))):
                continue
            value: Any = assign.value
            one, other = (cst.SimpleStatementLine([assign.with_changes(value=part)]) for part in (value.body, value.orelse))
            new = with_body("if True:", [one]).with_changes(
                test=value.test, orelse=cst.Else(body=cst.IndentedBlock(body=[other])), leading_lines=line.leading_lines
            )
            return project.changed({path: code.rewritten({line: new})})
    return None


def branches_to_conditional(project: Project, rng: Random) -> Changes:
    """An `if` with an assignment to the same name in both branches becomes a conditional expression."""
    for path, code, node in branches(project):
        if not isinstance(node.orelse, cst.Else) or len(node.body.body) != 1 or len(node.orelse.body.body) != 1:
            continue
        one, other = (single(block.body[0], cst.Assign) for block in (node.body, node.orelse.body))
        if not one or not other or code.text(*one.targets) != code.text(*other.targets):
            continue
        if any(isinstance(part.value, cst.Tuple | cst.Yield) for part in (one, other)):
            continue
        if not (yield Place(path, code.text(node))):
            continue
        value = expression(f"({code.text(one.value)}) if ({code.text(node.test)}) else ({code.text(other.value)})")
        line = cst.SimpleStatementLine([one.with_changes(value=value)], leading_lines=node.leading_lines)
        return project.changed({path: code.rewritten({node: line})})
    return None


def guard_by_helper(project: Project, rng: Random) -> Changes:
    """The condition of an `if` becomes a function."""
    for path, code, node in branches(project):
        if not (yield Place(path, code.text(node.test))):
            continue
        of_rank = RANK.search(code.text(node.test))
        name = project.fresh(rng, *(("is_main", "is_primary", "should_write") if of_rank else ("wanted", "applies", "active")))
        made = function_of_expression(code, node.test, name, code.text(node.test))
        if made is None:
            return None
        rewrites = insert_above(code, node, made[0]) | {node.test: expression(made[1])}
        return project.changed({path: code.rewritten(rewrites)})
    return None


def guard_by_return(project: Project, rng: Random) -> Changes:
    """The `if` at the end of a function, or of a loop's body, becomes a jump on the opposite condition."""
    for path, code, node in branches(project):
        block = code.parents[node]
        owner = code.parents.get(block)
        if node.orelse or not isinstance(block, cst.IndentedBlock) or block.body[-1] is not node:
            continue
        if not isinstance(owner, cst.FunctionDef | cst.For | cst.While):
            continue
        jump = "return" if isinstance(owner, cst.FunctionDef) else "continue"
        if not (yield Place(path, code.text(node))):
            continue
        def rewrite(updated: Any) -> Any:
            last: Any = updated.body[-1]
            guard = with_body("if True:", statements(f"{jump}\n") if jump == "continue" else _return())
            guard = guard.with_changes(test=negated(code, last.test), leading_lines=last.leading_lines)
            return updated.with_changes(body=[*updated.body[:-1], guard, *last.body.body])

        return project.changed({path: code.rewritten({block: rewrite})})
    return None


def _return() -> list[Any]:
    return [cst.SimpleStatementLine([cst.Return()])]


ON_MAIN = '''def {0}(function):
    @functools.wraps(function)
    def run(*args, **kwargs):
        if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
            return function(*args, **kwargs)
        return None

    return run
'''


def guard_by_decorator(project: Project, rng: Random) -> Changes:
    """What is done on rank 0 becomes a function with a decorator that does nothing on the others."""
    for path, code, node in branches(project):
        if node.orelse or not _is_rank_zero(code.text(node.test).strip()):
            continue
        if not free(code, "functools") or not free(code, "torch"):
            continue
        found = fragment(project, path, [node])
        if found is None or found.results:
            continue
        within = fragment(project, path, list(node.body.body))  # pyright: ignore[reportArgumentType]
        if within is None or within.results:
            continue
        if not (yield Place(path, code.text(node))):
            continue
        guard = project.fresh(rng, "rank_zero_only", "main_process_only", "on_main", "master_only")
        name = project.fresh(rng, "write_out", "report", "save_all", "on_first_rank")
        definition = within.definition(name).with_changes(decorators=[cst.Decorator(cst.Name(guard))])
        definition = definition.with_changes(leading_lines=[cst.EmptyLine(indent=False)] * 2)
        call = within.call(name).with_changes(leading_lines=node.leading_lines)
        above = [*statements("\n\n" + ON_MAIN.format(guard)), definition]
        rewrites: dict[cst.CSTNode, Any] = {node: call}
        top = code.top(node)
        rewrites[top] = [*above, call] if top is node else lambda updated: [*above, updated]
        new = importing(code, with_import(code.rewritten(rewrites), "import torch.distributed\n"), "functools")
        return project.changed({path: new})
    return None


def _is_rank_zero(test: str) -> bool:
    plain = re.fullmatch(r"(self\.|args\.|cfg\.)?(global_|ddp_)?rank == 0|(torch\.)?(dist|distributed)\.get_rank\(\) == 0", test)
    return bool(plain) or test in ("is_main", "master_process", "is_main()", "du.is_main()", "main_process", "is_master")
