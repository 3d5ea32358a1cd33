"""Which code only torch versions without fully_shard reach: branches, what follows an early end, handlers of imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.versions import outcome
from ..analysis.written_names import Names
from ..migration import Migration
from ..program import Program
from ..view import FileView

_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_ALWAYS_THERE = frozenset({"torch", "torch.nn", "torch.distributed", "os", "sys"})
_OF_FSDP2 = frozenset(
    {"fully_shard", "FSDPModule", "MixedPrecisionPolicy", "OffloadPolicy", "CPUOffloadPolicy", "register_fsdp_forward_method"}
)
"""What ``torch.distributed.fsdp`` has had from the first version on."""
_NOT_THERE = frozenset({"ImportError", "ModuleNotFoundError", "AttributeError"})
_SKIPS = {"skipif": True, "skipIf": True, "skipUnless": False}
_BLOCKS = ("body", "orelse", "finalbody")


class OldTorch:
    """Answers for the files of one repository; names are followed from file to file."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._names: dict[int, Names] = {}
        self._parts: dict[int, set[ast.AST]] = {}

    @staticmethod
    def of(migration: Migration) -> OldTorch:
        """The answers for a migration, computed once."""
        return migration.once("old torch", None, lambda: OldTorch(migration.program))

    def is_around(self, view: FileView, node: ast.AST) -> bool:
        """Whether only a torch without fully_shard gets to a place."""
        parts = self.parts(view)
        return node in parts or any(ancestor in parts for ancestor in view.ancestors(node))

    def parts(self, view: FileView) -> set[ast.AST]:
        """The statements and expressions of a file that only a torch without fully_shard gets to, outermost ones."""
        if view.index not in self._parts:
            names = self._names_of(view)
            self._parts[view.index] = {part for node in view.nodes(*_DECIDING) for part in _unreached(node, names)}
        return self._parts[view.index]

    def _names_of(self, view: FileView) -> Names:
        if view.index not in self._names:
            self._names[view.index] = Names(view.tree, lambda module: self._imported(view, module), _is_reached, view.parents)
        return self._names[view.index]

    def _imported(self, view: FileView, module: str) -> Names | None:
        file = self.program.flow.modules.find(view.index, module)
        return self._names_of(self.program.view(file)) if file is not None else None


_DECIDING = (ast.If, ast.IfExp, ast.BoolOp, ast.Assert, ast.Try, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _is_reached(names: Names, place: ast.AST) -> bool:
    """Whether a torch with fully_shard gets to a place that binds a name."""
    child = place
    while (parent := names.parents.get(child)) is not None:
        if isinstance(parent, (ast.If, ast.Try)) and child in _unreached(parent, names):
            return False
        child = parent
    return True


def _unreached(node: ast.AST, names: Names) -> Iterator[ast.AST]:
    """What a torch with fully_shard leaves out because of a node: parts of it, or what stands behind it."""
    match node:
        case ast.If(test=test, body=body, orelse=orelse):
            known = outcome(test, names)
            if known is not None:
                yield from orelse if known else body
                if _ends(body if known else orelse):
                    yield from _behind(node, names)
        case ast.Assert(test=test):
            if outcome(test, names) is False:
                yield from _behind(node, names)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            known = outcome(test, names)
            if known is not None:
                yield orelse if known else body
        case ast.BoolOp(op=operator, values=values):
            deciding = isinstance(operator, ast.Or)
            place = next((n for n, value in enumerate(values[:-1]) if outcome(value, names) is deciding), None)
            yield from values[place + 1 :] if place is not None else ()
        case ast.Try(body=body, handlers=handlers):
            if all(map(_always_works, body)):
                yield from (handler for handler in handlers if _is_for_missing_names(handler))
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            if any(_skips(decorator, names) for decorator in node.decorator_list):
                yield from node.body
        case _:
            pass


def _ends(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], _ENDS)


def _behind(statement: ast.stmt, names: Names) -> list[ast.stmt]:
    """The statements of the same block behind one."""
    parent = names.parents.get(statement)
    for name in _BLOCKS:
        body = getattr(parent, name, None)
        if isinstance(body, list) and statement in body:
            return body[body.index(statement) + 1 :]
    return []


def _always_works(statement: ast.stmt) -> bool:
    """Whether a statement raises nothing where fully_shard is there: imports of it, and constants."""
    match statement:
        case ast.Import(names=aliases):
            return all(alias.name in _ALWAYS_THERE for alias in aliases)
        case ast.ImportFrom(module="torch.distributed.fsdp", names=aliases, level=0):
            return all(alias.name in _OF_FSDP2 for alias in aliases)
        case ast.Assign(targets=[ast.Name()], value=ast.Constant()):
            return True
        case _:
            return False


def _is_for_missing_names(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return all(isinstance(kind, ast.Name) and kind.id in _NOT_THERE for kind in kinds)


def _skips(decorator: ast.expr, names: Names) -> bool:
    """``@pytest.mark.skipif(…)`` and its kin, where they leave a test out on every torch with fully_shard."""
    if not isinstance(decorator, ast.Call) or not decorator.args:
        return False
    function = decorator.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in _SKIPS and outcome(decorator.args[0], names) is _SKIPS[name]
