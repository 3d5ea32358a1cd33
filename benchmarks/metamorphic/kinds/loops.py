"""Other forms of loops and comprehensions."""

# ruff: noqa: B023 - a refactoring returns before its loops go on

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import libcst as cst

from ..code import Code, single, statements, with_body
from ..evaluation import pure
from ..project import Changes, Place, Project
from ..uses import local_uses

MOST_REPEATED = 4


def loops(project: Project) -> Iterator[tuple[str, Code, cst.For]]:
    """`for` loops without `else` over one block, at a line of their own."""
    for path, code in project.codes():
        for node in code.find(cst.For):
            plain = not node.orelse and not node.asynchronous and isinstance(node.body, cst.IndentedBlock)
            if plain and code.statement(node) is node:
                yield path, code, node


def _jumps(code: Code, node: cst.For, *kinds: type[cst.CSTNode]) -> bool:
    """Whether the loop's body has a `break` or `continue`; those of loops inside count too."""
    return code.has(node.body, *kinds)


def _uses(code: Code, node: cst.CSTNode, name: str) -> Sequence[cst.Name] | None:
    function = code.function(node)
    if function:
        return local_uses(code, function, name)
    return None if name in code.rebound_in_functions else list(code.variables(name=name))


def _read_after(code: Code, node: cst.For, name: str) -> bool:
    """Whether the loop's variable is of use outside of the loop."""
    uses = _uses(code, node, name)
    return uses is None or any(not code.holds(node, use) for use in uses)


def _range(node: cst.For) -> list[cst.BaseExpression] | None:
    """The arguments of the `range` that is looped over."""
    call = node.iter
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name) or call.func.value != "range":
        return None
    plain = len(call.args) <= 2 and all(pure(arg.value) and not arg.star for arg in call.args)
    return [arg.value for arg in call.args] if plain else None


def while_counted(project: Project, rng: Random) -> Changes:
    """`for i in range(n):` becomes a `while` that counts."""
    for path, code, node in loops(project):
        values = _range(node)
        if values is None or not isinstance(node.target, cst.Name) or _jumps(code, node, cst.Continue):
            continue
        name = node.target.value
        stored = any(code.stored(one) for one in code.variables(within=node.body, name=name))
        changed = any(isinstance(one, cst.AugAssign) and code.text(one.target) == name for one in code.below(node.body))
        captured = name in code.names(*node.body.body).captured
        if stored or changed or captured or _read_after(code, node, name):
            continue
        if not (yield Place(path, code.text(node))):
            continue
        stop = project.fresh(rng, "stop", "limit", "total_steps", "last")
        start = code.text(values[0]) if len(values) == 2 else "0"
        first = statements(f"{name} = {start}\n{stop} = {code.text(values[-1])}\n")
        first[0] = first[0].with_changes(leading_lines=node.leading_lines)

        def rewrite(updated: cst.For) -> list[Any]:
            loop = with_body(f"while {name} < {stop}:", [*updated.body.body, *statements(f"{name} += 1\n")])  # pyright: ignore
            return [*first, loop]

        return project.changed({path: code.rewritten({node: rewrite})})
    return None


def while_next(project: Project, rng: Random) -> Changes:
    """`for x in xs:` becomes a `while` that takes the next until there is none."""
    for path, code, node in loops(project):
        if not (yield Place(path, code.text(node))):
            continue
        held, end = project.fresh(rng, "iterator", "items", "it", "source"), project.fresh(rng, "END", "nothing", "sentinel")
        taken = project.fresh(rng, "item", "element", "value")
        lines = statements(f"{held} = iter({code.text(node.iter)})\n{end} = object()\n")
        lines[0] = lines[0].with_changes(leading_lines=node.leading_lines)
        target = code.text(node.target)
        head = f"{taken} = next({held}, {end})\nif {taken} is {end}:\n    break\n{target} = {taken}\n"

        def rewrite(updated: cst.For) -> list[Any]:
            return [*lines, with_body("while True:", [*statements(head), *updated.body.body])]  # pyright: ignore

        return project.changed({path: code.rewritten({node: rewrite})})
    return None


def unrolled_loop(project: Project, rng: Random) -> Changes:
    """A loop over few literal values becomes its body, once for each."""
    for path, code, node in loops(project):
        if not isinstance(node.target, cst.Name | cst.Tuple) or _jumps(code, node, cst.Continue, cst.Break):
            continue
        values = _literal_values(code, node)
        if not values or len(values) > MOST_REPEATED:
            continue
        if isinstance(node.target, cst.Name) and node.target.value in code.names(*node.body.body).captured:
            continue
        if not (yield Place(path, code.text(node))):
            continue
        def rewrite(updated: cst.For) -> list[Any]:
            lines: list[Any] = []
            for value in values:
                lines += [*statements(f"{code.text(node.target)} = {value}\n"), *updated.body.body]
            lines[0] = lines[0].with_changes(leading_lines=node.leading_lines)
            return lines

        return project.changed({path: code.rewritten({node: rewrite})})
    return None


def _literal_values(code: Code, node: cst.For) -> list[str]:
    values = _range(node)
    if values is not None:
        whole = all(isinstance(value, cst.Integer) for value in values)
        return [str(number) for number in range(*(int(code.text(value)) for value in values))] if whole else []
    if not isinstance(node.iter, cst.Tuple | cst.List):
        return []
    plain = all(isinstance(one, cst.Element) and pure(one.value, False) for one in node.iter.elements)
    return [code.text(one.value) for one in node.iter.elements] if plain else []


def comprehension_to_loop(project: Project, rng: Random) -> Changes:
    """A list or dictionary that a comprehension makes is filled in a loop."""
    for path, code in project.codes():
        for line in code.find(cst.SimpleStatementLine):
            node = single(line, cst.Assign) or single(line, cst.Return)
            value = node.value if node else None
            if not node or not isinstance(value, cst.ListComp | cst.DictComp):
                continue
            if code.statement(line) is None or code.in_class_body(line):
                continue
            target = value.for_in.target
            names = code.names(target).read
            function = code.function(line)
            local = code.local_names(function)
            if names & local or code.has(value, cst.Lambda):
                continue
            if not (yield Place(path, code.text(line))):
                continue
            held = project.fresh(rng, "found", "collected", "result", "gathered")
            if isinstance(value, cst.ListComp):
                inner, empty = f"{held}.append({code.text(value.elt)})", "[]"
            else:
                inner, empty = f"{held}[{code.text(value.key)}] = {code.value(value.value)}", "{}"
            part: Any = value.for_in
            depth, text = 0, ""
            while part:
                text += f"{'    ' * depth}for {code.value(part.target)} in {code.value(part.iter)}:\n"
                depth += 1
                for test in part.ifs:
                    text += f"{'    ' * depth}if {code.value(test.test)}:\n"
                    depth += 1
                part = part.inner_for_in
            lines = statements(f"{held} = {empty}\n{text}{'    ' * depth}{inner}\n")
            lines[0] = lines[0].with_changes(leading_lines=line.leading_lines)
            last = line.with_changes(body=[node.with_changes(value=cst.Name(held))], leading_lines=())
            return project.changed({path: code.rewritten({line: [*lines, last]})})
    return None


def loop_to_comprehension(project: Project, rng: Random) -> Changes:
    """A list that a loop of one `append` fills becomes a comprehension."""
    for path, code, node in loops(project):
        block, index = code.block(node)
        made = single(block.body[index - 1], cst.Assign) if index else None
        inner = node.body.body[0] if len(node.body.body) == 1 else None
        test = None
        if isinstance(inner, cst.If) and not inner.orelse and len(inner.body.body) == 1:
            test, inner = inner.test, inner.body.body[0]
        call = single(inner, cst.Expr) if inner else None
        if not made or not call or len(made.targets) != 1 or not isinstance(made.value, cst.List) or made.value.elements:
            continue
        line: Any = block.body[index - 1]
        held = code.text(made.targets[0].target)
        if not isinstance(call.value, cst.Call) or code.text(call.value.func) != f"{held}.append" or len(call.value.args) != 1:
            continue
        names = code.names(node.target).read
        value = code.text(call.value.args[0].value)
        if held in code.names(call.value.args[0].value).read or any(_read_after(code, node, name) for name in names):
            continue
        if not (yield Place(path, code.text(node))):
            continue
        condition = f" if {code.text(test)}" if test is not None else ""
        text = f"{held} = [{value} for {code.text(node.target)} in {code.text(node.iter)}{condition}]\n"
        new = statements(text)[0].with_changes(leading_lines=line.leading_lines)
        return project.changed({path: code.rewritten({line: cst.RemoveFromParent(), node: new})})
    return None
