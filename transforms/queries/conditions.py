"""Conditions that only some ranks meet: by what is compared, by how names are spelled, and by what they were assigned."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from ..flow.values import Constant, FunctionValue, Instance, Opaque, Value
from .arguments import given_for_parameter
from .assignments import assigned_in_other_files, assigned_values
from .file import File
from .program import Program
from .returned_items import returned_items

_RANK = re.compile(
    r"(?i)^_?((my|this|cur(rent)?|global|local|world|node|dp|ddp|data_parallel|dist|torch|proc(ess)?|worker|machine)_?)*"
    r"(rank|gpu|gpu_?id|gpu_?index|rank_?id|process_?index|proc_?id|process_?id|local_?process_?index)$"
    r"|^\w+_(ddp|dp|dist|global|local|world)_rank$"
)
_MAIN = re.compile(
    r"(?i)^_?((is|am|on|if|should|check)_?)?(the_?)?((local|global|world|dist|distributed)_?)*"
    r"(main_?(process|rank|proc|worker|node)|master_?(process|rank|proc|worker|node)?|primary_?(process|rank)?"
    r"|chief|rank_?(0|zero)|zero_?rank|first_?(rank|process)|root_?(rank|process)|leader|coordinator"
    r"|main|logging_?process|log_?rank)(_?only)?(_?flag)?$"
)
_NEEDS_PREFIX = re.compile(r"(?i)^_?(main|primary|leader|coordinator|master|chief)$")
"""Words that mean a rank only behind ``is_`` and the like: ``main()`` runs on all of them."""
_DISTRIBUTED = re.compile(r"(?i)^_?(is_|use_)?(distributed|dist|ddp|multi_?gpu)$")
_DECORATOR = re.compile(r"(?i)(rank_?(zero|0)|main_?process|master|primary).*(only|_fn|decorator)?$|only_?(on|main|rank|master)")
_OTHER_DIMENSION = re.compile(r"(?i)(^|[^a-z])(pp|tp|ep|mp|p2p|pipe(line)?|stage|tensor|model_parallel|expert)([^a-z]|$)")
_DEEPEST = 4


class _Known:
    """What has been found out about expressions, each as deep as it was asked for."""

    def __init__(self, _: Program) -> None:
        self.conditions: dict[tuple[ast.expr, int], bool] = {}
        self.ranks: dict[tuple[ast.expr, int], bool] = {}


def is_rank_condition(file: File, test: ast.expr, depth: int = 0) -> bool:
    """Whether a condition is met by some ranks and not by others, as far as text and assignments tell."""
    known = file.program.once(_Known).conditions
    if (test, depth) not in known:
        known[test, depth] = _is_rank_condition(file, test, depth)
    return known[test, depth]


def is_rank(file: File, node: ast.expr, depth: int = 0) -> bool:
    """Whether an expression is the number of a rank (or of its device)."""
    known = file.program.once(_Known).ranks
    if (node, depth) not in known:
        known[node, depth] = _is_rank(file, node, depth)
    return known[node, depth]


def _is_rank_condition(file: File, test: ast.expr, depth: int) -> bool:
    if isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.Or) and any(_DISTRIBUTED.match(_last_name(part) or "") for part in test.values):
            return False  # with several ranks all pass
        return any(is_rank_condition(file, part, depth) for part in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return is_rank_condition(file, test.operand, depth)
    if isinstance(test, ast.NamedExpr):
        return is_rank_condition(file, test.value, depth)
    if isinstance(test, ast.IfExp):
        return any(is_rank_condition(file, part, depth) for part in (test.body, test.orelse))
    if isinstance(test, ast.Compare):
        return _compares_ranks(file, test, depth) or _asks_for_own_object(file, test, depth)
    name = _last_name(test)
    if name is not None and _is_main_name(name, isinstance(test, ast.Call)):
        return True
    if isinstance(test, ast.Call):
        inner = test.args[0] if test.args and _last_name(test) in ("bool", "int") else None
        if inner is not None and is_rank_condition(file, inner, depth):
            return True
        return is_rank(file, test, depth) or _returns(file, test, depth)  # `not dist.get_rank()`
    if isinstance(test, (ast.Name, ast.Attribute)):
        if is_rank(file, test, depth) or is_own_object(file, test, depth):
            return True
        assigned = assigned_values(file, test) if depth < _DEEPEST else []
        if any(is_rank_condition(file, value, depth + 1) for value in assigned):
            return True
        if depth < _DEEPEST and any(is_rank_condition(*item, depth + 1) for item in returned_items(file, test)):
            return True
        given = given_for_parameter(file, test) if not assigned and depth < _DEEPEST else ()
        if any(is_rank_condition(caller, value, depth + 1) for caller, value in given):
            return True
        if isinstance(test, ast.Attribute) and not assigned and depth < _DEEPEST:
            deeper = max(depth + 1, _DEEPEST - 1)  # only ever deeper: files may hand each other's attributes on in a circle
            if any(is_rank_condition(other, value, deeper) for other, value in assigned_in_other_files(file, test)):
                return True
        return depth < _DEEPEST and _is_property(file, test, depth)
    return False


def _is_rank(file: File, node: ast.expr, depth: int) -> bool:
    if isinstance(node, ast.BinOp):
        return is_rank(file, node.left, depth) or is_rank(file, node.right, depth)
    if isinstance(node, ast.NamedExpr):
        return is_rank(file, node.value, depth)
    if isinstance(node, (ast.IfExp, ast.BoolOp)):  # get_rank() if is_initialized() else 0
        parts = node.values if isinstance(node, ast.BoolOp) else [node.body, node.orelse]
        return any(is_rank(file, part, depth) for part in parts)
    if isinstance(node, ast.Call):
        name = _last_name(node) or ""
        if name in ("get_rank", "get_local_rank", "get_global_rank", "get_node_rank", "get_process_index", "process_index"):
            return not _is_in_other_dimension(node)
        if name in ("int", "getenv", "get", "getattr") and node.args:
            return any(is_rank(file, a, depth) or _is_rank_key(a) for a in node.args)
        callees = file.program.callees(file, node)
        if not callees:
            return _RANK.match(name.removeprefix("get_")) is not None and not node.args
        return depth < _DEEPEST and any(_gives(file, value, depth, is_rank) for value in callees)
    if isinstance(node, ast.Subscript):
        return _is_rank_key(node.slice) or _is_made_of_rank(file, node, depth)
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = _last_name(node) or ""
        if _RANK.match(name):
            return True
        if isinstance(node, ast.Name) and _is_first_of_spawned(file, node):
            return True
        if depth < _DEEPEST and any(is_rank(file, value, depth + 1) for value in assigned_values(file, node)):
            return True
        if depth < _DEEPEST and any(is_rank(*item, depth + 1) for item in returned_items(file, node)):
            return True
        return _is_made_of_rank(file, node, depth)
    return False


def _is_in_other_dimension(call: ast.Call) -> bool:
    """Whether a rank is that in a pipeline or of a part of each tensor: ranks that share the shards of a model have one there."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(_OTHER_DIMENSION.search(ast.unparse(group)) for group in given)


def _is_made_of_rank(file: File, node: ast.expr, depth: int) -> bool:
    """Whether what a call gave comes to a place, and the call asks for a rank: ``parts[1]`` of ``parts = (args, get_rank())``."""
    sites = [value.site for value in file.values(node) if isinstance(value, Opaque)] if depth < _DEEPEST else []
    made = [file.program.call_node(site) for site in sites if file.program.is_written_as_call(site)]
    return any(call is not node and is_rank(owner, call, depth + 1) for owner, call in made)


def is_rank_decorator(decorator: ast.expr) -> bool:
    """Whether a decorator lets only some ranks in."""
    name = _last_name(decorator)
    return name is not None and _DECORATOR.search(name) is not None


def _compares_ranks(file: File, test: ast.Compare, depth: int) -> bool:
    sides = [test.left, *test.comparators]
    if not any(is_rank(file, side, depth) for side in sides):
        return False
    if any(isinstance(side, ast.Call) and _last_name(side) == "get_rank" and _is_in_other_dimension(side) for side in sides):
        return False
    other = _literal(file, sides[1])
    if len(sides) == 2 and other is not None:
        # Whether there are ranks at all is the same on all of them.
        value = ast.unparse(other)
        if value in ("-1", "None") or (value == "0" and isinstance(test.ops[0], ast.GtE)):
            return False
    return True


def _literal(file: File, node: ast.expr) -> ast.Constant | ast.UnaryOp | None:
    """A literal, or the only one that a name stands for: ``CPU_INDEX = -1``."""
    values = assigned_values(file, node) if isinstance(node, ast.Name) else []
    found = values[0] if len(values) == 1 else node
    return found if isinstance(found, (ast.Constant, ast.UnaryOp)) else None


def _asks_for_own_object(file: File, test: ast.Compare, depth: int) -> bool:
    """``saver is not None`` where only some ranks made a saver."""
    nothing = any(isinstance(side, ast.Constant) and side.value is None for side in test.comparators)
    return nothing and isinstance(test.ops[0], (ast.Is, ast.IsNot)) and is_own_object(file, test.left, depth)


def is_own_object(file: File, node: ast.expr, depth: int = 0) -> bool:
    """Whether a name holds something that only some ranks assign to it, and None on the others."""
    if not isinstance(node, (ast.Name, ast.Attribute)) or depth >= _DEEPEST:
        return False
    values = assigned_values(file, node)
    if any(_is_agreed_on(file, value, depth) for value in values):
        return False
    if _is_made_by_some_ranks(file, node, depth):
        return True
    if any(isinstance(v, ast.IfExp) and _is_nothing(v.orelse) and is_rank_condition(file, v.test, depth + 1) for v in values):
        return True
    if any(isinstance(v, ast.Call) and _answers_some_ranks(file, v, depth + 1) for v in values):
        return True
    empty = [v for v in values if isinstance(v, ast.Constant) and not v.value]
    if any(_is_behind_rank(file, v, depth) for v in empty):
        return True  # some ranks take away what it had
    return bool(empty) and any(_is_behind_rank(file, v, depth) for v in values if v not in empty)


def _is_made_by_some_ranks(file: File, node: ast.expr, depth: int) -> bool:
    """Whether every object that may come to a place, from wherever, is made behind a test of the rank; others have None."""
    values = file.values(node)
    made = [value for value in values if isinstance(value, (Instance, Opaque)) and file.program.is_written_as_call(value.site)]
    if not made or any(value not in made and not _is_none(value) for value in values):
        return False
    return all(_is_behind_rank(*file.program.call_node(value.site), depth) for value in made)


def _is_none(value: Value) -> bool:
    return isinstance(value, Constant) and value.value is None


def _is_agreed_on(file: File, value: ast.expr, depth: int) -> bool:
    """Whether a value was broadcast, or is a variable that was given such a one."""
    if _is_broadcast(file, value):
        return True
    if not isinstance(value, (ast.Name, ast.Attribute)) or depth >= _DEEPEST:
        return False
    return any(_is_agreed_on(file, v, depth + 1) for v in assigned_values(file, value))


def _is_broadcast(file: File, value: ast.expr) -> bool:
    """Whether ranks agree about a value: what a broadcast gave, or an entry of a list that one of them filled."""
    if isinstance(value, ast.Call):
        return "broadcast" in (_last_name(value) or "")
    if not isinstance(value, ast.Subscript) or not isinstance(value.value, ast.Name):
        return False
    name, function = value.value.id, file.function(value)
    calls = (c for c in file.nodes(ast.Call) if file.function(c) is function and "broadcast" in (_last_name(c) or ""))
    return any(isinstance(given, ast.Name) and given.id == name for call in calls for given in call.args)


def _answers_some_ranks(file: File, call: ast.Call, depth: int) -> bool:
    """Whether a function of the repository gives some ranks a value, and the others None."""
    for function in file.program.callees(file, call):
        owner, node = file.program.function_node(function)
        if any(is_rank_decorator(decorator) for decorator in getattr(node, "decorator_list", ())):
            return True
        returns = owner.returns_of(node)
        given = [n for n in returns if n.value is not None and not _is_nothing(n.value)]
        if given and all(_is_behind_rank(owner, n, depth) for n in given):
            return True
        if given and any(_is_behind_rank(owner, n, depth) for n in returns if n not in given):
            return True  # the others have left with nothing
    return False


def _is_nothing(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _is_behind_rank(file: File, node: ast.AST, depth: int) -> bool:
    inside = node
    for around in file.ancestors(node):
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return False
        body = around.body if isinstance(around, ast.If) else [around.body] if isinstance(around, ast.IfExp) else []
        if isinstance(around, (ast.If, ast.IfExp)) and any(inside is part for part in body):
            if is_rank_condition(file, around.test, depth + 1):
                return True
        inside = around
    return False


def _is_main_name(name: str, called: bool) -> bool:
    if _MAIN.match(name) is None:
        return False
    return _NEEDS_PREFIX.match(name) is None or (name.lower().startswith("master") and not called)


def _is_rank_key(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and _RANK.match(node.value) is not None


def _last_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _returns(file: File, call: ast.Call, depth: int) -> bool:
    """Whether a function of the repository that is called here returns a rank condition."""
    return depth < _DEEPEST and any(_gives(file, value, depth) for value in file.program.callees(file, call))


def _is_property(file: File, node: ast.expr, depth: int) -> bool:
    """Whether an attribute is a property that gives a rank condition."""
    if not isinstance(node, ast.Attribute):
        return False
    owners = {value.cls for value in file.values(node.value) if isinstance(value, Instance)}
    found = (value for cls in owners for value in file.program.flow.members_of(cls, node.attr))
    return any(_gives(file, value, depth) for value in found if isinstance(value, FunctionValue))


def _gives(
    file: File, value: FunctionValue, depth: int, is_it: Callable[[File, ast.expr, int], bool] = is_rank_condition
) -> bool:
    """Whether a function of the repository returns a rank condition, or what else ``is_it`` tells."""
    owner, function = file.program.function_node(value)
    if isinstance(function, ast.Lambda):
        return is_it(owner, function.body, depth + 1)
    returns = owner.returns_of(function)
    returned = [n.value for n in returns if n.value is not None]
    return len(returned) <= 2 and any(is_it(owner, r, depth + 1) for r in returned)


def _is_first_of_spawned(file: File, node: ast.Name) -> bool:
    """Whether a name is the first parameter of a function that ``mp.spawn`` starts: the number of the process."""
    function = file.function(node)
    if not isinstance(function, ast.FunctionDef) or not function.args.args or function.args.args[0].arg != node.id:
        return False
    for call in file.nodes(ast.Call):
        if _last_name(call.func) in ("spawn", "start_processes") and call.args:
            if _last_name(call.args[0]) == function.name:
                return True
    return False
