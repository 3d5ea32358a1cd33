"""Other ways to import the same names."""

# ruff: noqa: B023 - a refactoring returns before its loops go on

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import libcst as cst

from ..code import Code, single, statements
from ..project import Changes, Place, Project, imported_names, join
from .extraction import new_module

# Names that are modules: `import a.b` does not always make `a.b.NAME` known for them.
MODULES = {
    "nn", "functional", "optim", "distributed", "fsdp", "checkpoint", "multiprocessing", "parallel", "utils", "data",
    "amp", "wrap", "lr_scheduler", "autograd", "cuda", "api", "state_dict", "algorithms", "default_hooks",
    "checkpoint_wrapper", "dist_cp", "mp", "_checkpoint", "ddp_comm_hooks", "default_planner",
}  # fmt: skip


class Imported:
    """One name of an import statement at the top of a file, and all its uses there."""

    def __init__(self, code: Code, line: cst.SimpleStatementLine, module: str, name: str, bound: str) -> None:
        self.code, self.line, self.module, self.name, self.bound = code, line, module, name, bound
        self.uses = list(code.variables(name=bound))

    def without(self) -> Any:
        """The import statement without the name: None, or what is left of it."""
        node: Any = single(self.line, cst.ImportFrom)
        left = [alias for alias in node.names if (alias.evaluated_alias or alias.evaluated_name) != self.bound]
        if not left:
            return None
        left[-1] = left[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return self.line.with_changes(body=[node.with_changes(names=left)])

    def replaced(self, *lines: str, uses: str = "") -> str:
        """The file with other import statements, and other expressions in place of the name."""
        rest = self.without()
        new = [line for text in lines for line in statements(f"{text}\n")]
        rewrites: dict[cst.CSTNode, Any] = {self.line: [*([rest] if rest else []), *new]}
        if not rest and not new:
            rewrites[self.line] = cst.RemoveFromParent()
        if uses:
            rewrites |= {use: cst.parse_expression(uses) for use in self.uses}
        return self.code.rewritten(rewrites)


def imported(project: Project) -> Iterator[tuple[str, Imported]]:
    """Names that nothing but their own file uses, that are bound there once and never as something else."""
    for path, code in project.codes():
        for line in code.module.body:
            node = single(line, cst.ImportFrom)
            if not node or isinstance(node.names, cst.ImportStar):
                continue
            for module, name, bound in imported_names(node):
                if module == "__future__" or bound in code.texts or bound in code.rebound_in_functions | code.module_variables:
                    continue
                again = [one for one in code.find(cst.Import, cst.ImportFrom) for *_, b in imported_names(one) if b == bound]
                if len(again) == 1 and not _used_from_outside(project, path, bound):
                    yield path, Imported(code, line, module, name, bound)  # pyright: ignore[reportArgumentType]


def _used_from_outside(project: Project, path: str, name: str) -> bool:
    for other, code in project.codes():
        names = project.module_names(path, other)
        for node in code.find(cst.ImportFrom, cst.Import):
            for module, alias, _ in imported_names(node):
                whole = module in names and not alias
                if (module in names and alias in (name, "*")) or (other != path and (whole or join(module, alias) in names)):
                    return True
    return False


def _plain(found: Imported) -> bool:
    return not found.module.startswith(".") and found.name not in MODULES and bool(found.uses)


def import_as_module(project: Project, rng: Random) -> Changes:
    """`from a.b import N` becomes `import a.b as m`, and `N` becomes `m.N`."""
    for path, found in imported(project):
        if _plain(found):
            if not (yield Place(path, found.name)):
                continue
            last = found.module.split(".")[-1]
            alias = project.fresh(rng, f"{last}_lib", f"{last[:4]}m", f"_{last}")
            return project.changed({path: found.replaced(f"import {found.module} as {alias}", uses=f"{alias}.{found.name}")})
    return None


def import_dotted(project: Project, rng: Random) -> Changes:
    """`from a.b import N` becomes `import a.b`, and `N` becomes `a.b.N`."""
    for path, found in imported(project):
        root = found.module.split(".")[0]
        taken = found.code.rebound_in_functions | found.code.module_variables
        if _plain(found) and root not in taken | _otherwise_bound(found.code, root) and (yield Place(path, found.name)):
            return project.changed({path: found.replaced(f"import {found.module}", uses=f"{found.module}.{found.name}")})
    return None


def _otherwise_bound(code: Code, root: str) -> set[str]:
    """The name, where the file binds it to something else than the package of this name."""
    nodes = code.find(cst.Import, cst.ImportFrom)
    others = [bound for node in nodes for module, name, bound in imported_names(node) if name or bound != module]
    defined = [node.name.value for node in code.find(cst.FunctionDef, cst.ClassDef)]
    return {root} & {*others, *defined}


def import_renamed(project: Project, rng: Random) -> Changes:
    """`from a import N` becomes `from a import N as M`."""
    for path, found in imported(project):
        if found.uses:
            if not (yield Place(path, found.name)):
                continue
            short = "".join(letter for letter in found.name if letter.isupper()) or found.name[:3]
            new = project.fresh(rng, f"{short}_", f"Torch{found.name}", f"_{found.name}", f"{found.name}Cls")
            return project.changed({path: found.replaced(f"from {found.module} import {found.name} as {new}", uses=new)})
    return None


def import_in_functions(project: Project, rng: Random) -> Changes:
    """An import moves into the functions that use its name."""
    for path, found in imported(project):
        functions: list[Any] = [_outermost(found.code, use) for use in found.uses]
        if found.uses and all(functions):
            if not (yield Place(path, found.name)):
                continue
            spelled = found.name if found.name == found.bound else f"{found.name} as {found.bound}"
            line = statements(f"from {found.module} import {spelled}\n")[0]
            rest = found.without()
            rewrites: dict[cst.CSTNode, Any] = {found.line: rest or cst.RemoveFromParent()}
            for function in functions:
                documented = 1 if function.get_docstring() is not None else 0
                rewrites[function.body] = lambda body, at=documented: body.with_changes(
                    body=[*body.body[:at], line, *body.body[at:]]
                )
            return project.changed({path: found.code.rewritten(rewrites)})
    return None


def _outermost(code: Code, node: cst.CSTNode) -> cst.FunctionDef | None:
    function = code.function(node)
    while function and (outer := code.function(function)):
        function = outer
    return function if function and isinstance(function.body, cst.IndentedBlock) else None


def import_through_module(project: Project, rng: Random) -> Changes:
    """A name is imported from a new module of the program, which imports it from where it is."""
    for path, found in imported(project):
        if found.uses and found.module != "__future__":
            if not (yield Place(path, found.name)):
                continue
            new = project.fresh(rng, f"{found.bound}Class", f"the_{found.bound}", f"{found.bound}_")
            new = rng.choice([new, found.bound])
            module, statement = new_module(project, path, rng, new if new == found.bound else f"{new} as {found.bound}")
            spelled = found.name if found.name == new else f"{found.name} as {new}"
            text = found.replaced(statement.strip())
            return project.changed({path: text, module: f"from {found.module} import {spelled}\n"})
    return None


