"""Other ways to enter a context."""

# ruff: noqa: B023 - a refactoring returns before its loops go on

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import libcst as cst

from ..code import Code, before, expression, statements, with_body
from ..evaluation import evaluated_first
from ..project import Changes, Place, Project
from .extraction import free, importing
from .shared import function_of_expression, insert_above


def withs(project: Project) -> Iterator[tuple[str, Code, cst.With]]:
    """`with` statements that have a block."""
    for path, code in project.codes():
        for node in code.find(cst.With):
            if not node.asynchronous and isinstance(node.body, cst.IndentedBlock) and code.statement(node) is node:
                yield path, code, node


def context_by_stack(project: Project, rng: Random) -> Changes:
    """The contexts are entered through an `ExitStack`."""
    for path, code, node in withs(project):
        if not free(code, "contextlib"):
            continue
        if not (yield Place(path, code.text(node))):
            continue
        name = project.fresh(rng, "stack", "contexts", "exits")
        lines: list[Any] = []
        for item in node.items:
            target = f"{code.text(item.asname.name)} = " if item.asname else ""
            lines += statements(f"{target}{name}.enter_context({code.text(item.item)})\n")
        new = with_body(f"with contextlib.ExitStack() as {name}:", [*lines, *node.body.body])
        text = code.rewritten({node: new.with_changes(leading_lines=node.leading_lines)})
        return project.changed({path: importing(code, text, "contextlib")})
    return None


def context_by_variable(project: Project, rng: Random) -> Changes:
    """The first context is made in front of the `with`."""
    for path, code, node in withs(project):
        item = node.items[0].item
        if isinstance(item, cst.Name) or evaluated_first(code, item) is not node:
            continue
        if not (yield Place(path, code.text(node))):
            continue
        name = project.fresh(rng, "context", "ctx", "manager", "scope")
        line = statements(f"{name} = {code.value(item)}\n")
        return project.changed({path: code.rewritten({item: cst.Name(name), node: before(*line)})})
    return None


def context_of_conditional_callable(project: Project, rng: Random) -> Changes:
    """`with a() if c else b():` becomes a call of the chosen function."""
    for path, code, node in withs(project):
        item = node.items[0].item
        if not isinstance(item, cst.IfExp) or evaluated_first(code, item) is not node:
            continue
        sides: list[Any] = [item.body, item.orelse]
        if any(not isinstance(side, cst.Call) or side.args for side in sides):
            continue
        if not (yield Place(path, code.text(node))):
            continue
        name = project.fresh(rng, "context", "make_context", "sync_context", "enter")
        one, other = (code.text(side.func) for side in sides)
        line = statements(f"{name} = ({one}) if ({code.text(item.test)}) else ({other})\n")
        return project.changed({path: code.rewritten({item: expression(f"{name}()"), node: before(*line)})})
    return None


def context_by_lambda(project: Project, rng: Random) -> Changes:
    """A lambda makes the context."""
    for path, code, node in withs(project):
        item = node.items[0].item
        if evaluated_first(code, item) is not node:
            continue
        if not (yield Place(path, code.text(node))):
            continue
        name = project.fresh(rng, "make_context", "get_context", "enter", "scope")
        line = statements(f"{name} = lambda: {code.value(item)}\n")
        return project.changed({path: code.rewritten({item: expression(f"{name}()"), node: before(*line)})})
    return None


def context_unless_switched_off(project: Project, rng: Random) -> Changes:
    """The context depends on an environment variable that is not set, else it is a `nullcontext`."""
    for path, code, node in withs(project):
        item = node.items[0].item
        if node.items[0].asname or not (free(code, "contextlib") and free(code, "os")):
            continue
        if not (yield Place(path, code.text(node))):
            continue
        test = f'os.environ.get("{rng.choice(["NO_CONTEXT", "PLAIN_RUN", "DEBUG_PLAIN"])}") is None'
        new = expression(f"({code.text(item)}) if {test} else contextlib.nullcontext()")
        text = importing(code, code.rewritten({item: new}), "contextlib")
        return project.changed({path: importing(code, text, "os")})
    return None


def context_to_branches(project: Project, rng: Random) -> Changes:
    """`with c if x else nullcontext():` becomes an `if` with the body in both branches."""
    for path, code, node in withs(project):
        item = node.items[0].item
        if len(node.items) > 1 or node.items[0].asname or not isinstance(item, cst.IfExp):
            continue
        sides = {name: code.text(side) for name, side in (("body", item.body), ("orelse", item.orelse))}
        if not any("nullcontext" in text for text in sides.values()):
            continue
        if not (yield Place(path, code.text(node))):
            continue
        def side(name: str) -> list[Any]:
            if "nullcontext" in sides[name]:
                return list(node.body.body)
            return [with_body("with x:", node.body.body).with_changes(items=[cst.WithItem(getattr(item, name))])]

        new = with_body("if True:", side("body")).with_changes(
            test=item.test, orelse=cst.Else(body=cst.IndentedBlock(body=side("orelse"))), leading_lines=node.leading_lines
        )
        return project.changed({path: code.rewritten({node: new})})
    return None


def context_by_generator(project: Project, rng: Random) -> Changes:
    """A function with `contextlib.contextmanager` enters the context."""
    for path, code, node in withs(project):
        item = node.items[0].item
        if not free(code, "contextlib"):
            continue
        if not (yield Place(path, code.text(node))):
            continue
        name = project.fresh(rng, "whole_model", "maybe_context", "training_context", "entered")
        made = function_of_expression(code, item, name, code.text(item))
        if made is None:
            return None
        parameters = made[0].split("\n")[0]
        lines = f"    with {code.text(item)} as held:\n        yield held\n"
        definition = f"@contextlib.contextmanager\n{parameters}\n{lines}\n\n"
        text = code.rewritten(insert_above(code, node, definition) | {item: expression(made[1])})
        return project.changed({path: importing(code, text, "contextlib")})
    return None


def split_contexts(project: Project, rng: Random) -> Changes:
    """`with a, b:` becomes two nested `with`s."""
    for path, code, node in withs(project):
        if len(node.items) < 2:
            continue
        if not (yield Place(path, code.text(node))):
            continue
        first = node.items[0].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        inner = with_body("with x:", node.body.body).with_changes(items=node.items[1:])
        new = with_body("with x:", [inner]).with_changes(items=[first], leading_lines=node.leading_lines)
        return project.changed({path: code.rewritten({node: new})})
    return None
