"""Values are held in another way: attributes, globals, arguments, tuples, dictionaries, data classes, second names."""

# ruff: noqa: B023 - a refactoring returns before its loops go on

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import libcst as cst

from ..code import Code, Statement, expression, parameters, single, statements
from ..project import Changes, Place, Project
from ..uses import local_uses, own_calls
from .extraction import free, importing


def _functions(project: Project) -> Iterator[tuple[str, Code, cst.FunctionDef]]:
    for path, code in project.codes():
        for function in code.find(cst.FunctionDef):
            if isinstance(function.body, cst.IndentedBlock):
                yield path, code, function


def _at_start(function: cst.FunctionDef, line: str) -> Any:
    """The rewrite of a function that begins with one more statement."""
    documented = 1 if function.get_docstring() is not None else 0

    def rewrite(updated: Any) -> Any:
        body = updated.body.body
        return updated.with_changes(
            body=updated.body.with_changes(body=[*body[:documented], *statements(line), *body[documented:]])
        )

    return rewrite


def _assigned_plainly(code: Code, uses: Sequence[cst.Name]) -> bool:
    """Whether all stores could be made to an attribute as well."""
    for use in uses:
        for around in code.up(use):
            if isinstance(around, cst.AnnAssign) and around.target is use:
                return False
            if isinstance(around, cst.Del | cst.NamedExpr):
                return False
            if isinstance(around, cst.BaseStatement):
                break
    return True


def variable_in_namespace(project: Project, rng: Random) -> Changes:
    """A local variable becomes an attribute of a `SimpleNamespace`."""
    for path, code, function in _functions(project):
        if not free(code, "types"):
            continue
        for name in sorted(code.local_names(function) - {"self"}):
            uses = local_uses(code, function, name)
            if not uses or not _assigned_plainly(code, uses):
                continue
            if not (yield Place(path, name)):
                continue
            held = project.fresh(rng, "state", "ns", "env", "run_state", "ctx_state")
            given = f"{name}={name}" if name in parameters(function) else ""
            rewrites: dict[cst.CSTNode, Any] = {use: expression(f"{held}.{name}") for use in uses}
            rewrites[function] = _at_start(function, f"{held} = types.SimpleNamespace({given})\n")
            text = code.rewritten(rewrites)
            return project.changed({path: importing(code, text, "types")})
    return None


def variable_on_self(project: Project, rng: Random) -> Changes:
    """A local variable of a method becomes an attribute of the instance, in classes that derive from nothing."""
    for path, code, function in _functions(project):
        owner = code.class_of(function)
        if not owner or owner.bases or owner.decorators or function.decorators or parameters(function)[:1] != ["self"]:
            continue
        for name in sorted(code.local_names(function) - set(parameters(function))):
            uses = local_uses(code, function, name)
            if not uses or not _assigned_plainly(code, uses):
                continue
            if not (yield Place(path, name)):
                continue
            held = project.fresh(rng, f"_{name}", f"current_{name}")
            return project.changed({path: code.rewritten({use: expression(f"self.{held}") for use in uses})})
    return None


MAIN = ("main", "train", "run", "worker", "main_worker")


def local_to_global(project: Project, rng: Random) -> Changes:
    """A local variable of the main function becomes a global one."""
    for path, code, function in _functions(project):
        if code.parents[function] is not code.module or function.name.value not in MAIN:
            continue
        for name in sorted(code.local_names(function) - set(parameters(function))):
            uses = local_uses(code, function, name)
            if not uses or not _assigned_plainly(code, uses):
                continue
            if not (yield Place(path, name)):
                continue
            new = project.fresh(rng, name.upper(), f"g_{name}", f"_{name}")
            rewrites: dict[cst.CSTNode, Any] = {use: cst.Name(new) for use in uses}
            rewrites[function] = _at_start(function, f"global {new}\n")
            return project.changed({path: code.rewritten(rewrites)})
    return None


def global_to_argument(project: Project, rng: Random) -> Changes:
    """A function is given a global variable that it reads as an argument."""
    for path, code, function in _functions(project):
        if code.parents[function] is not code.module:
            continue
        calls = own_calls(project, path, function)
        if not calls or any(other != path for other, _ in calls):
            continue
        settled = code.module_variables - code.rebound_in_functions - code.declared_in_functions
        read = code.names(*function.body.body).read & settled
        for name in sorted(read):
            if not (yield Place(path, name)):
                continue
            new = project.fresh(rng, f"{name}_", f"the_{name}", f"given_{name}")
            inner = code.variables(within=function.body, name=name)
            rewrites: dict[cst.CSTNode, Any] = {use: cst.Name(new) for use in inner}
            for _, call in calls:
                held = new if function in code.up(call) else name
                rewrites[call] = lambda updated, held=held: _given(updated, held)
            params = function.params
            rewrites[params] = lambda updated: updated.with_changes(params=(cst.Param(cst.Name(new)), *updated.params))
            return project.changed({path: code.rewritten(rewrites)})
    return None


def _given(call: cst.Call, name: str) -> cst.Call:
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")) if call.args else cst.MaybeSentinel.DEFAULT
    return call.with_changes(args=[cst.Arg(cst.Name(name), comma=comma), *call.args])


Settled = tuple[str, Code, Statement, dict[str, list[cst.Name]]]


def _settled(project: Project) -> Iterator[Settled]:
    """(file, its code, an assignment, variables that are bound after it and not again in its block, with their later reads
    there); the assignment binds one of them."""
    for path, code in project.codes():
        uses_of = {}
        for line in code.find(cst.SimpleStatementLine):
            assign = single(line, cst.Assign)
            function = code.function(line)
            if not assign or code.statement(line) is not line or code.in_class_body(line):
                continue
            if not function and path not in project.scripts:
                continue
            stored = {target.target.value for target in assign.targets if isinstance(target.target, cst.Name)}
            if not stored or code.within(line, cst.For, cst.While):
                continue
            if function not in uses_of:
                uses_of[function] = _all_uses(code, function)
            block, index = code.block(line)
            after = block.body[index + 1 :]
            names: dict[str, list[cst.Name]] = {}
            for name in sorted(uses_of[function].keys() & (code.certain(line) | stored)):
                later = [use for use in uses_of[function][name] if any(code.holds(one, use) for one in after)]
                if not any(code.stored(use) or isinstance(code.parents[use], cst.AugAssign | cst.Del) for use in later):
                    names[name] = [use for use in later if code.function(use) is function]
            if any(names.get(name) for name in stored):
                yield path, code, line, names


def _all_uses(code: Code, function: cst.FunctionDef | None) -> dict[str, list[cst.Name]]:
    """The uses of all variables of a function, or of the module, that nothing binds unseen."""
    if function:
        found = {name: local_uses(code, function, name) for name in sorted(code.local_names(function))}
        return {name: uses for name, uses in found.items() if uses}
    hidden = code.rebound_in_functions | code.declared_in_functions
    return {name: list(code.variables(name=name)) for name in sorted(code.module_variables - hidden)}


def _packed(project: Project, rng: Random, held: tuple[str, ...], made: str, read: str, dataclass: bool = False) -> Changes:
    """Changes that put a name, and others that are settled, into a container, and read them from it."""
    for path, code, line, names in _settled(project):
        if not free(code, "dataclasses") or not (yield Place(path, code.text(line))):
            continue
        first = next(t.target.value for t in single(line, cst.Assign).targets if t.target.value in names)  # pyright: ignore
        others = [name for name in names if name != first and names[name]]
        chosen = [first, *rng.sample(others, min(len(others), rng.randint(0, 2)))]
        name, title = project.fresh(rng, *held), project.fresh(rng, "TrainState", "Bundle", "Parts")
        keywords = ", ".join(f"{one}={one}" for one in chosen)
        plain = ", ".join(chosen) + ("," if len(chosen) == 1 else "")
        new = statements(f"{name} = {made.format(title=title, keywords=keywords, plain=plain, names=', '.join(chosen))}\n")
        rewrites: dict[cst.CSTNode, Any] = {line: lambda updated: [updated, *new]}
        for number, one in enumerate(chosen):
            rewrites |= {use: expression(read.format(held=name, name=one, number=number)) for use in names[one]}
        if dataclass:
            fields = "".join(f"    {one}: object\n" for one in chosen)
            lines = statements(f"\n\n@dataclasses.dataclass\nclass {title}:\n{fields}\n\n")
            top = code.top(line)
            rewrites[top] = (lambda u: [*lines, u, *new]) if top is line else (lambda u: [*lines, u])
            text = code.rewritten(rewrites)
            return project.changed({path: importing(code, text, "dataclasses")})
        return project.changed({path: code.rewritten(rewrites)})
    return None


def packed_in_tuple(project: Project, rng: Random) -> Changes:
    """Variables are read from a tuple."""
    return (yield from _packed(project, rng, ("bundle", "parts", "pair", "held"), "({plain})", "{held}[{number}]"))


def packed_in_dictionary(project: Project, rng: Random) -> Changes:
    """Variables are read from a dictionary."""
    return (yield from _packed(project, rng, ("objects", "registry", "parts"), "dict({keywords})", "{held}['{name}']"))


def packed_in_dataclass(project: Project, rng: Random) -> Changes:
    """Variables are read from the fields of a data class."""
    return (yield from _packed(project, rng, ("state", "run", "setup_"), "{title}({keywords})", "{held}.{name}", dataclass=True))


def second_name(project: Project, rng: Random) -> Changes:
    """`x = value` becomes `x = y = value`, and `y` is read in some of the places that read `x`."""
    for path, code, line, names in _settled(project):
        assign = single(line, cst.Assign)
        if not assign or len(assign.targets) != 1 or not names.get(code.text(assign.targets[0].target)):
            continue
        if not (yield Place(path, code.text(line))):
            continue
        name = code.text(assign.targets[0].target)
        new = project.fresh(rng, f"raw_{name}", f"{name}_ref", f"same_{name}")
        uses = [use for use in names[name] if rng.random() < 0.5] or names[name][:1]
        target = cst.AssignTarget(cst.Name(new))
        rewrites: dict[cst.CSTNode, Any] = {use: cst.Name(new) for use in uses}
        rewrites[assign] = lambda updated: updated.with_changes(targets=[*updated.targets, target])
        return project.changed({path: code.rewritten(rewrites)})
    return None
