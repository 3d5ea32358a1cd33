"""Other names for variables, parameters, functions and attributes."""

from __future__ import annotations

from random import Random
from typing import Any

import libcst as cst

from ..code import parameters
from ..project import Changes, Place, Project
from ..uses import attribute_uses, local_uses, own_calls

WORDS = {
    "model": ("net", "network", "backbone", "engine", "wrapped"),
    "optimizer": ("opt", "solver", "updater", "adam"),
    "rank": ("proc_id", "global_rank", "process", "me"),
    "loss": ("objective", "err", "cost"),
    "state": ("snapshot", "blob", "payload"),
    "device": ("dev", "place", "target_device"),
}


def another(project: Project, rng: Random, name: str) -> str:
    """A new name for what is called `name`."""
    return project.fresh(rng, *WORDS.get(name, (f"{name}_value", f"the_{name}", f"cur_{name}")))


def rename_local(project: Project, rng: Random) -> Changes:
    """A local variable."""
    for path, code in project.codes():
        for function in code.find(cst.FunctionDef):
            for name in sorted(code.local_names(function) - set(parameters(function))):
                uses = local_uses(code, function, name)
                if uses and (yield Place(path, name)):
                    new = cst.Name(another(project, rng, name))
                    return project.changed({path: code.rewritten(dict.fromkeys(uses, new))})
    return None


def rename_global(project: Project, rng: Random) -> Changes:
    """A variable of the module, in the functions too that read or rebind it."""
    for path, code in project.codes():
        for name in sorted(code.module_variables - code.rebound_in_functions):
            uses = project.references(path, name)
            if not uses or any(other != path for other, _ in uses) or name.startswith("__"):
                continue
            items = [item for item in code.find(cst.NameItem) if item.name.value == name]
            if not (yield Place(path, name)):
                continue
            new = cst.Name(another(project, rng, name))
            rewrites: dict[Any, Any] = {node: new for _, node in uses} | {item.name: new for item in items}
            return project.changed({path: code.rewritten(rewrites)})
    return None


def rename_parameter(project: Project, rng: Random) -> Changes:
    """A parameter, in the function and where it is given by keyword."""
    for path, code in project.codes():
        for function in code.find(cst.FunctionDef):
            calls = own_calls(project, path, function)
            if calls is None:
                continue
            for name in parameters(function)[1 if code.class_of(function) else 0 :]:
                uses = local_uses(code, function, name)
                if uses is None or any(arg.keyword is None and arg.star for _, call in calls for arg in call.args):
                    continue
                if not (yield Place(path, name)):
                    continue
                new = cst.Name(another(project, rng, name))
                rewrites: dict[str, dict[cst.CSTNode, Any]] = {path: dict.fromkeys(uses, new)}
                params = code.find(cst.Param, within=function.params)
                rewrites[path] |= {param.name: new for param in params if param.name.value == name}
                for other, call in calls:
                    given = (arg.keyword for arg in call.args if arg.keyword and arg.keyword.value == name)
                    rewrites.setdefault(other, {}).update(dict.fromkeys(given, new))
                return project.changed({other: project.code(other).rewritten(these) for other, these in rewrites.items()})
    return None


def rename_function(project: Project, rng: Random) -> Changes:
    """A function or class at the top of a file, in the other files too."""
    for path, code in project.codes():
        for node in code.module.body:
            if not isinstance(node, cst.FunctionDef | cst.ClassDef):
                continue
            name = node.name.value
            uses = project.references(path, name)
            if uses is None or name in code.module_variables:
                continue
            if not (yield Place(path, name)):
                continue
            title = isinstance(node, cst.ClassDef)
            wanted = (f"My{name}", f"{name}Impl", f"Base{name}") if title else (f"do_{name}", f"{name}_impl", f"run_{name}")
            new = project.fresh(rng, *wanted)
            return project.changed(renamed(project, path, name, new, uses, {node.name: cst.Name(new)}))
    return None


def renamed(
    project: Project, path: str, name: str, new: str, uses: list[tuple[str, cst.BaseExpression]], also: dict[Any, Any]
) -> dict[str, str]:
    """The files in which what the top of a file calls `name` is called `new`, imports and attributes included."""
    rewrites: dict[str, dict[Any, Any]] = {path: dict(also)}
    for other, use in uses:
        these = rewrites.setdefault(other, {})
        if isinstance(use, cst.Attribute):
            these[use.attr] = cst.Name(new)
        elif isinstance(use, cst.Name) and use.value == name:
            these[use] = cst.Name(new)
    for other, code in project.codes():
        for line in code.find(cst.ImportFrom):
            module = "." * len(line.relative) + (code.text(line.module) if line.module else "")
            if module in project.module_names(path, other) and not isinstance(line.names, cst.ImportStar):
                for alias in line.names:
                    if code.text(alias.name) == name:
                        rewrites.setdefault(other, {})[alias.name] = cst.Name(new)
    return {other: project.code(other).rewritten(these) for other, these in rewrites.items()}


def rename_attribute(project: Project, rng: Random) -> Changes:
    """An attribute of a class that derives from nothing."""
    for path, code in project.codes():
        for owner in code.find(cst.ClassDef):
            if owner.bases or owner.decorators:
                continue
            stores = (
                target.target
                for target in code.find(cst.AssignTarget, within=owner)
                if isinstance(target.target, cst.Attribute) and code.text(target.target.value) == "self"
            )
            for name in dict.fromkeys(store.attr.value for store in stores):
                if any(isinstance(node, cst.FunctionDef) and node.name.value == name for node in owner.body.body):
                    continue
                if uses := attribute_uses(project, path, owner, name):
                    if not (yield Place(path, name)):
                        continue
                    new = cst.Name(another(project, rng, name))
                    rewrites: dict[str, dict[Any, Any]] = {}
                    for other, use in uses:
                        rewrites.setdefault(other, {})[use.attr] = new
                    return project.changed({other: project.code(other).rewritten(t) for other, t in rewrites.items()})
    return None
