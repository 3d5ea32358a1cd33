"""Statements become a function, a method, or a function of another module; functions and classes move to another module."""

# ruff: noqa: B023 - a refactoring returns before its loops go on

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from random import Random
from typing import Any

import libcst as cst

from .. import names
from ..code import Code, Statement, expression, is_import, parameters, single, statements, with_body
from ..project import Changes, Place, Project, imported_names
from .shared import function_of_expression, insert_above

LONGEST = 6


@dataclass(frozen=True)
class Fragment:
    """Statements that could be a function: its parameters, and the names that it has to return."""

    code: Code
    statements: tuple[Statement, ...]
    parameters: tuple[str, ...]
    results: tuple[str, ...]

    def definition(self, name: str, *first: str) -> cst.FunctionDef:
        body: list[Any] = list(self.statements)
        if self.results:
            body += statements(f"return {', '.join(self.results)}\n")
        body[0] = body[0].with_changes(leading_lines=[line for line in body[0].leading_lines if line.comment])
        return with_body(f"def {name}({', '.join((*first, *self.parameters))}):", body)

    def call(self, name: str) -> Any:
        given = f"{name}({', '.join(self.parameters)})"
        return statements(f"{', '.join(self.results)} = {given}\n" if self.results else f"{given}\n")[0]

    def rewrites(self, call: Any) -> dict[cst.CSTNode, Any]:
        """The call in place of the statements."""
        first, *others = self.statements
        blank = [line for line in first.leading_lines if not line.comment]
        return {first: call.with_changes(leading_lines=blank), **dict.fromkeys(others, cst.RemoveFromParent())}


def fragments(project: Project, path: str, rng: Random) -> Iterator[Fragment]:
    """Runs of statements of a file, one drawn for each first statement."""
    code = project.code(path)
    for block in code.find(cst.Module, cst.IndentedBlock):
        if code.in_class_body(block) or (block is code.module and path not in project.scripts):
            continue
        if block is not code.module and isinstance(code.parents[block], cst.ClassDef):
            continue
        for start in range(len(block.body)):
            length = rng.randint(1, LONGEST)
            found = fragment(project, path, block.body[start : start + length])  # pyright: ignore[reportArgumentType]
            if found:
                yield found


def fragment(project: Project, path: str, part: Sequence[Statement]) -> Fragment | None:
    """The statements as a function, if that is sound."""
    code = project.code(path)
    function = code.function(part[0])
    if not function and path not in project.scripts:
        return None
    if any(isinstance(one, cst.FunctionDef | cst.ClassDef) or is_import(one) or single(one, cst.Pass) for one in part):
        return None
    tree = code.tree(*part)
    if names.jumps(tree) or not _worth_it(code, part):
        return None
    found = names.names(tree)
    scope = code.scope(function)
    variables = code.enclosing_names(function) if function else code.module_variables
    if found.bound & scope.declared or (found.bound - variables):
        return None
    simple = len(part) == 1 and single(part[0], cst.Assign)
    if found.bound & scope.captured and not simple:
        return None
    if any(_rebound(code, function, name) for name in found.captured & variables):
        return None
    certain = code.certain(part[0]) | (variables - code.local_names(function) if function else set())
    needed = names.needs(tree, set())[0] & variables
    results = found.bound & (_read_outside(code, function, part) | needed)
    needed |= results - names.needs(tree, set())[1]
    if not needed <= certain or (not function and needed & code.declared_in_functions):
        return None
    order = [node.value for node in code.variables() if node.value in needed | results]
    ordered = list(dict.fromkeys(order))
    return Fragment(
        code, tuple(part), tuple(name for name in ordered if name in needed), tuple(name for name in ordered if name in results)
    )


def _worth_it(code: Code, part: Sequence[Statement]) -> bool:
    return any(code.has(one, cst.Call) for one in part)


def _rebound(code: Code, function: cst.FunctionDef | None, name: str) -> bool:
    stores = [node for node in code.variables(within=function, name=name) if code.stored(node)]
    return len(stores) + (function is not None and name in parameters(function)) > 1


def _read_outside(code: Code, function: cst.FunctionDef | None, part: Sequence[Statement]) -> set[str]:
    names = code.variables(within=function.body if function else None)
    return {name.value for name in names if not any(code.holds(one, name) for one in part) and not code.stored(name)}


def extract_function(project: Project, rng: Random) -> Changes:
    """Statements become a function of the same module."""
    for path in project.files:
        for found in fragments(project, path, rng):
            if not (yield Place(path, found.code.text(*found.statements))):
                continue
            name = project.fresh(rng, "step_part", "helper", "do_part", "_inner", "prepare", "finish")
            top = found.code.top(found.statements[0])
            return project.changed({path: _with_definition(found, found.definition(name), top, found.call(name))})
    return None


def _with_definition(found: Fragment, definition: cst.FunctionDef, top: Statement, call: Any) -> str:
    """The file with the definition in front of a statement of the module, and the call in place of the fragment."""
    rewrites = found.rewrites(call)
    spaced = definition.with_changes(leading_lines=[cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)])
    if top in rewrites:
        rewrites[top] = [spaced, rewrites[top]]
    else:
        rewrites[top] = lambda updated: [spaced, updated]
    return found.code.rewritten(rewrites)


def extract_expression(project: Project, rng: Random) -> Changes:
    """A call becomes a function that makes it."""
    for path, code in project.codes():
        for call in code.find(cst.Call):
            if code.within(call, cst.Decorator, cst.FormattedString, cst.Annotation) or code.in_class_body(call):
                continue
            if not (yield Place(path, code.text(call))):
                continue
            name = project.fresh(rng, "get_it", "made", "compute", "fetch", "build")
            made = function_of_expression(code, call, name, code.text(call))
            if made is None:
                return None
            rewrites = insert_above(code, call, made[0]) | {call: expression(made[1])}
            return project.changed({path: code.rewritten(rewrites)})
    return None


def extract_method(project: Project, rng: Random) -> Changes:
    """Statements of a method become another method of its class."""
    for path in project.files:
        for found in fragments(project, path, rng):
            code, function = found.code, found.code.function(found.statements[0])
            if not function or not code.class_of(function) or function.decorators or "self" not in parameters(function)[:1]:
                continue
            if "self" in found.results:
                continue
            if not (yield Place(path, code.text(*found.statements))):
                continue
            name = project.fresh(rng, "_part", "_prepare", "_run_part", "_finish_up")
            without = tuple(name for name in found.parameters if name != "self")
            moved = Fragment(found.code, found.statements, without, found.results)
            definition = moved.definition(name, "self").with_changes(leading_lines=[cst.EmptyLine(indent=False)])
            rewrites = found.rewrites(moved.call(f"self.{name}")) | {function: lambda updated: [updated, definition]}
            return project.changed({path: found.code.rewritten(rewrites)})
    return None


def extract_to_module(project: Project, rng: Random) -> Changes:
    """Statements become a function of a new module."""
    for path in project.files:
        for found in fragments(project, path, rng):
            code = found.code
            if any(_names_the_module(code, statement) for statement in found.statements):
                continue
            outside = _globals(code, found)
            given = {name for name in outside if name not in top_imports(code)}
            imports = imports_of(code, outside - given)
            here = found.statements[0] if not code.function(found.statements[0]) else None
            if not given <= (code.certain(here) if here else names.needs(code.tree(*code.module.body), set())[1]):
                continue
            if given & code.rebound_in_functions or given & code.declared_in_functions:
                continue
            if not (yield Place(path, code.text(*found.statements))):
                continue
            name = project.fresh(rng, "run_part", "helper", "prepare_all", "step_part")
            full = Fragment(found.code, found.statements, (*found.parameters, *given), found.results)
            module, statement = new_module(project, path, rng, name)
            text = found.code.rewritten(found.rewrites(full.call(name)))
            body = cst.Module(body=[full.definition(name)]).code
            return project.changed({path: with_import(text, statement), module: f"{imports}\n\n{body}"})
    return None


def _globals(code: Code, found: Fragment) -> set[str]:
    read = code.names(*found.statements)
    return (read.read | read.captured) - set(found.parameters) - read.bound - set(dir(builtins))


def _names_the_module(code: Code, node: cst.CSTNode) -> bool:
    """Whether something asks which module it is in."""
    return any(name.value in ("__file__", "__name__") for name in code.find(cst.Name, within=node))


def top_imports(code: Code) -> set[str]:
    """Names that import statements at the top of a file bind."""
    lines = [line for line in code.module.body if is_import(line)]
    return code.names(*lines).bound if lines else set()


def imports_of(code: Code, wanted: set[str]) -> str:
    """Import statements that bind these names as the file binds them."""
    lines: list[str] = []
    for line in code.module.body:
        node = single(line, cst.Import) or single(line, cst.ImportFrom)
        if isinstance(node, cst.Import):
            for alias in node.names:
                text = code.text(alias).strip().rstrip(",")
                bound = code.text(alias.asname.name) if alias.asname else text.split(".")[0]
                lines += [f"import {text}"] if bound in wanted else []
        elif isinstance(node, cst.ImportFrom):
            for module, name, bound in imported_names(node):
                spelled = name if name == bound else f"{name} as {bound}"
                lines += [f"from {module} import {spelled}"] if bound in wanted or module == "__future__" else []
    return "\n".join(lines) + "\n"


def new_module(project: Project, path: str, rng: Random, name: str) -> tuple[str, str]:
    """The path of a new file beside another one, and the statement by which that imports a name from it."""
    stem = project.fresh(rng, "pieces", "helpers", "parts", "common", "lib", "support")
    folder = PurePosixPath(path).parent
    package = folder != PurePosixPath(".") and str(folder / "__init__.py") in project.files and path not in project.scripts
    return str(folder / f"{stem}.py"), f"from {'.' if package else ''}{stem} import {name}\n"


def with_import(text: str, statement: str) -> str:
    """A file's text with one more import, at the end of the first imports."""
    if statement in text.splitlines(keepends=True):
        return text
    module = cst.parse_module(text)
    body = list(module.body)
    last = next((n for n, line in enumerate(body) if is_import(line)), -1)
    while 0 <= last + 1 < len(body) and is_import(body[last + 1]):
        last += 1
    if last < 0:
        last = 0 if body and module.get_docstring() is not None else -1
    body[last + 1 : last + 1] = statements(statement)
    return module.with_changes(body=body).code


def importing(code: Code, text: str, module: str) -> str:
    """The new text of a file, with a module that is used now imported if it was not."""
    return text if module in top_imports(code) else with_import(text, f"import {module}\n")


def free(code: Code, module: str) -> bool:
    """Whether the name of a module stands for nothing else in a file."""
    return module not in code.rebound_in_functions | (code.local_names(None) - top_imports(code))


def move_to_module(project: Project, rng: Random) -> Changes:
    """A function or class, and what it needs of its module, move to a new module, from which they are imported."""
    for path, code in project.codes():
        for node in code.module.body:
            if not isinstance(node, cst.FunctionDef | cst.ClassDef):
                continue
            moved = _with_needed(code, node)
            if moved is None:
                continue
            if not (yield Place(path, code.text(node))):
                continue
            read = code.names(*moved)
            imports = imports_of(code, (read.read | read.captured) - read.bound)
            module, statement = new_module(project, path, rng, ", ".join(sorted(read.bound)))
            text = code.rewritten(dict.fromkeys(moved, cst.RemoveFromParent()))
            body = cst.Module(body=moved).code
            return project.changed({path: with_import(text, statement), module: f"{imports}\n\n{body}"})
    return None


def _with_needed(code: Code, node: Statement) -> list[Statement] | None:
    """A definition and all that it needs of its file, in order; None where that cannot move."""
    defined: dict[str, Statement] = {}
    for line in code.module.body:
        simple = single(line, cst.Assign)
        if isinstance(line, cst.FunctionDef | cst.ClassDef):
            defined[line.name.value] = line
        elif simple and len(simple.targets) == 1 and isinstance(simple.targets[0].target, cst.Name):
            if not code.has(simple.value, cst.Call):
                defined[simple.targets[0].target.value] = line  # pyright: ignore[reportArgumentType]
    imports, known = top_imports(code), set(dir(builtins))
    wanted, moved = [node], list[Statement]()
    while wanted:
        one = wanted.pop()
        if one in moved:
            continue
        moved.append(one)
        found = code.names(one)
        if found.declared or _names_the_module(code, one):
            return None
        for name in (found.read | found.captured) - found.bound - known:
            if name in defined and len([n for n in code.variables(name=name) if code.stored(n) and not code.function(n)]) <= 1:
                wanted.append(defined[name])
            elif name not in imports:
                return None
        if any(name in code.declared_in_functions for name in found.bound):
            return None
    return [line for line in code.module.body if line in moved]  # pyright: ignore[reportReturnType]
