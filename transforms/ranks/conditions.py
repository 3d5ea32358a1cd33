"""Conditions about the rank: which expressions are ranks, and what a test says on ranks other than the first."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..analysis.scopes import dotted_path
from ..analysis.values import FunctionValue
from ..program import Program
from ..view import FileView
from .absences import is_absent_somewhere
from .origins import branch_taken, given_as, set_as

_RANK = re.compile(r"(^|_)rank$|^rank_?id$|^process_index$", re.IGNORECASE)
_NO_RANK = re.compile(r"lora|matrix|tensor|low_", re.IGNORECASE)
_FLAG = re.compile(
    r"^(is_?|_is_?|on_?|this_is_?)?(global_|local_|world_)?"
    r"(main|master|primary|chief|leader|rank_?(zero|0)|root_rank|coordinator)"
    r"(_?(process|proc|rank|node|worker))?(_?only)?$",
    re.IGNORECASE,
)
_DISTRIBUTED = re.compile(r"dist(ributed)?(_|$)|ddp|fsdp|initialized|multi_?gpu|parallel", re.IGNORECASE)
_DECORATOR = re.compile(r"(main|master|rank_?(zero|0))(_?(process|rank))?(_?only)?$", re.IGNORECASE)
_ENVIRONMENT = frozenset({"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "NODE_RANK", "GROUP_RANK"})
_DEEPEST = 4


class RankConditions:
    """Reads conditions, through assignments and through functions of the repository."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._assignments: dict[ast.AST, dict[str, list[ast.expr]]] = {}
        self._known_origins: dict[ast.AST, list[tuple[FileView, ast.expr]]] = {}

    def selects_ranks(self, view: FileView, test: ast.expr, depth: int = 0) -> bool:
        """Whether the truth of an expression depends on the rank."""
        if depth > _DEEPEST:
            return False
        if isinstance(test, ast.BoolOp):
            return any(self.selects_ranks(view, operand, depth) for operand in test.values)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            # ``if not rank:`` is how some write ``rank == 0``
            return self.is_rank(view, test.operand, depth) or self.selects_ranks(view, test.operand, depth)
        if isinstance(test, ast.NamedExpr):
            return self.selects_ranks(view, test.value, depth)
        if isinstance(test, ast.IfExp):
            return any(self.selects_ranks(view, part, depth) for part in (test.test, test.body, test.orelse))
        if isinstance(test, ast.Compare):
            sides = (test.left, *test.comparators)
            if _asks_whether_none(test) and is_absent_somewhere(self, view, test.left, depth):
                return True
            return not _asks_whether_distributed(test) and any(self.is_rank(view, side, depth) for side in sides)
        if isinstance(test, ast.Call):
            return self._calls_a_rank_test(view, test, depth)
        if isinstance(test, (ast.Name, ast.Attribute)):
            if _FLAG.match(last_name(test)) or is_absent_somewhere(self, view, test, depth):
                return True
            return any(self.selects_ranks(owner, value, depth + 1) for owner, value in self._origins(view, test))
        return False

    def is_rank(self, view: FileView, node: ast.expr, depth: int = 0) -> bool:
        """Whether an expression is a rank, of whatever scope (world, node, group)."""
        if depth > _DEEPEST:
            return False
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = last_name(node)
            if _RANK.search(name):
                return not _NO_RANK.search(name)
            return any(self.is_rank(view, value, depth + 1) for value in self.assigned(view, node))
        if isinstance(node, ast.Subscript):
            return isinstance(node.slice, ast.Constant) and node.slice.value in _ENVIRONMENT
        if isinstance(node, ast.BinOp):
            return self.is_rank(view, node.left, depth)
        if not isinstance(node, ast.Call):
            return False
        if view.external(node.func) == "builtins.int" and node.args:
            return self.is_rank(view, node.args[0], depth)
        if any(isinstance(a, ast.Constant) and a.value in _ENVIRONMENT for a in node.args):
            return True
        name = last_name(node.func)
        return bool(_RANK.search(name)) and not _NO_RANK.search(name)

    def is_decorator(self, decorator: ast.expr) -> bool:
        """Whether a decorator lets a function run on one rank only, by its name."""
        return bool(_DECORATOR.search(last_name(decorator.func if isinstance(decorator, ast.Call) else decorator)))

    def _calls_a_rank_test(self, view: FileView, call: ast.Call, depth: int) -> bool:
        if _FLAG.match(last_name(call.func)):
            return True
        if view.external(call.func) in ("builtins.bool", "builtins.int") and call.args:
            return self.selects_ranks(view, call.args[0], depth) or self.is_rank(view, call.args[0], depth)
        return any(
            self.selects_ranks(owner, returned, depth + 1)
            for value in self.program.callees(view, call)
            for owner, returned in self.returned(value)
        )

    def returned(self, value: FunctionValue) -> Iterator[tuple[FileView, ast.expr]]:
        """What a function returns, with the file it stands in."""
        owner, function = self.program.function_node(value)
        if isinstance(function, ast.Lambda):
            yield owner, function.body
            return
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None and owner.function(node) is function:
                yield owner, node.value

    def assigned(self, view: FileView, node: ast.Name | ast.Attribute) -> list[ast.expr]:
        """What a name, or an attribute of ``self``, is assigned in its function, its class or the module."""
        if isinstance(node, ast.Attribute):
            if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                return []
            scope = view.enclosing_class(node)
            return self._assignments_of(view, scope).get(f"self.{node.attr}", []) if scope is not None else []
        function = view.function(node)
        if function is not None:
            own = self._assignments_of(view, function)
            if node.id in own or any(a.arg == node.id for a in ast.walk(function.args) if isinstance(a, ast.arg)):
                return own.get(node.id, [])
        return self._assignments_of(view, view.tree).get(node.id, [])

    def _origins(self, view: FileView, node: ast.Name | ast.Attribute) -> list[tuple[FileView, ast.expr]]:
        """What a name or attribute is assigned here, passed in as, or set to elsewhere."""
        if node not in self._known_origins:
            away = given_as(self.program, view, node) if isinstance(node, ast.Name) else set_as(self.program, node)
            self._known_origins[node] = [*((view, value) for value in self.assigned(view, node)), *away]
        return self._known_origins[node]

    def _assignments_of(self, view: FileView, scope: ast.AST) -> dict[str, list[ast.expr]]:
        """All assignments in a function, class or module, by the text of their target."""
        known = self._assignments.get(scope)
        if known is not None:
            return known
        found: dict[str, list[ast.expr]] = {}
        for statement in ast.walk(scope):
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if isinstance(statement, ast.AnnAssign) and statement.value is not None:
                targets = [statement.target]
            for target in targets:
                value = getattr(statement, "value", None)
                path = dotted_path(target)
                if value is not None and path is not None:
                    found.setdefault(path, []).append(value)
        self._assignments[scope] = found
        return found

    # --- on ranks other than 0 ------------------------------------------------------------------------------

    def elsewhere(self, view: FileView, test: ast.expr, depth: int = 0) -> bool | None:
        """The truth of a condition on every rank of the world but the first; None where it is not known."""
        if depth > _DEEPEST:
            return None
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            if self.is_rank(view, test.operand):
                return None if self._is_local(view, test.operand) else False
            inner = self.elsewhere(view, test.operand, depth)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            truths = [self.elsewhere(view, operand, depth) for operand in test.values]
            decisive = isinstance(test.op, ast.Or)
            if decisive in truths:
                return decisive
            return None if None in truths else not decisive
        if isinstance(test, ast.Compare):
            return self._compared_elsewhere(view, test)
        if not isinstance(test, (ast.Name, ast.Attribute, ast.Call)) or self._is_local(view, test):
            return None
        if _DISTRIBUTED.search(last_name(test.func if isinstance(test, ast.Call) else test)):
            return True  # a rank other than the first exists only then
        if isinstance(test, ast.Call):
            told = {
                self.elsewhere(owner, branch_taken(self.program, owner, returned, view, test), depth + 1)
                for value in self.program.callees(view, test)
                for owner, returned in self.returned(value)
            }
        else:
            told = {self.elsewhere(owner, value, depth + 1) for owner, value in self._origins(view, test)}
        if told:
            # one process without a group is rank 0, so ``True`` beside ``rank == 0`` does not count
            return False if False in told else None
        return False if _FLAG.match(last_name(test.func if isinstance(test, ast.Call) else test)) else None

    def _compared_elsewhere(self, view: FileView, test: ast.Compare) -> bool | None:
        """``rank == 0`` is false and ``rank != 0`` true on every rank but the first."""
        if len(test.ops) != 1 or not self.is_rank(view, test.left) or self._is_local(view, test.left):
            return None
        operator, other = test.ops[0], test.comparators[0]
        parts = other.elts if isinstance(other, (ast.Tuple, ast.List, ast.Set)) else [other]
        numbers = [_number(part) for part in parts]
        first_only = all(number is not None and number <= 0 for number in numbers)
        if isinstance(operator, (ast.Eq, ast.In)):
            return False if first_only else None
        if isinstance(operator, (ast.NotEq, ast.NotIn)):
            return True if first_only else None
        if isinstance(operator, (ast.Lt, ast.LtE)):
            limit = 1 if isinstance(operator, ast.Lt) else 0
            return False if numbers[0] is not None and numbers[0] <= limit else None
        return True if isinstance(operator, ast.Gt) and numbers[0] == 0 else None

    def _is_local(self, view: FileView, node: ast.expr, depth: int = 0) -> bool:
        """Whether a rank or a flag counts within a node or a group, so that several ranks have it."""
        text = view.text(node).lower()
        if "local" in text or "node" in text:
            return True
        if depth > _DEEPEST or not isinstance(node, (ast.Name, ast.Attribute)):
            return False
        return any(self._is_local(view, value, depth + 1) for value in self.assigned(view, node))


def last_name(node: ast.expr) -> str:
    """``c`` of ``a.b.c``; empty where there is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _asks_whether_none(test: ast.Compare) -> bool:
    """``value is None`` and ``value is not None``."""
    other = test.comparators[0]
    return isinstance(test.ops[0], (ast.Is, ast.IsNot)) and isinstance(other, ast.Constant) and other.value is None


def _asks_whether_distributed(test: ast.Compare) -> bool:
    """``local_rank != -1`` and ``rank is not None``: the same on all ranks."""
    if len(test.ops) != 1:
        return False
    operator, other = test.ops[0], test.comparators[0]
    if isinstance(other, ast.Constant) and (other.value is None or isinstance(other.value, str)):
        return True
    number = _number(other)
    return number == -1 or (number == 0 and isinstance(operator, (ast.GtE, ast.Lt)))


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None

