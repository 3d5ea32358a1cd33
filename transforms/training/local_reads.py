"""Places that turn a parameter or gradient (or what is computed from one) into a plain Python value.

Under FSDP2 a parameter is a DTensor. What torch computes from it is one as well and right as such, but ``.item()``,
``float()`` or a test in an ``if`` take this rank's part of it: each rank gets another number, and nothing raises.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis import library
from ..analysis.values import ClassValue, Derived, Opaque, Value
from ..groups import Group
from ..migration import Migration
from ..sites import Site
from ..state.summoned_blocks import is_whole_in_block
from ..view import FileView
from .forward_results import is_forward_result

_READERS = frozenset({"item", "tolist", "numpy", "__float__", "__bool__"})
_CONVERSIONS = frozenset({"builtins.float", "builtins.bool", "builtins.int"})

COMPARED = "torch.Tensor.__lt__"
"""A number computed from shards that is compared: the comparison itself makes it whole."""

_DEEPEST = 3
_QUANTIFIERS = frozenset({"builtins.any", "builtins.all"})


def tensor_values(migration: Migration, view: FileView, node: ast.expr) -> tuple[Group | None, tuple[Value, ...]]:
    """The group whose parameters or gradients an expression may hold, and those values."""
    values = tuple(v for v in view.values(node) if isinstance(v, Derived) and v.kind in library.TENSORS)
    if any(isinstance(v.owner, Opaque) for v in values):
        values = tuple(v for v in values if not (isinstance(v.owner, Opaque) and _is_whole(migration, view, node, v)))
    return (migration.groups.of_tensors(values) if values else None), values


def _is_whole(migration: Migration, view: FileView, node: ast.expr, value: Derived) -> bool:
    """Whether a layer's parameter, or what is computed from it, is met where its model has gathered it."""
    if _is_in_a_module(view, node):
        return True
    group = migration.groups.of_tensors([value])
    return group is not None and is_forward_result(migration, view, node, value, group)


def _is_in_a_module(view: FileView, node: ast.AST, depth: int = 0) -> bool:
    """Whether a place is code of a model itself, or of a helper of such code: its layers are whole while it runs forward."""
    owner = view.enclosing_class(node)
    flow = view.program.flow
    classes = [v for v in view.values(owner) if isinstance(v, ClassValue)] if owner is not None else []
    if any(name.startswith("torch.nn.") for cls in classes for name in flow.external_bases(cls)):
        return True
    function = view.function(node)
    callers = view.program.callers(view, function) if function is not None and depth < _DEEPEST else []
    return bool(callers) and all(_is_in_a_module(at, call, depth + 1) for at, call in callers)


def runs_on_shards(migration: Migration, view: FileView, node: ast.AST, group: Group) -> bool:
    """Whether a place may run on sharded parameters: behind the wrap, and not where they are summoned whole."""
    if any(_summons(ancestor) for ancestor in view.ancestors(node)) or is_whole_in_block(migration, view, node, group):
        return False
    answers = {migration.order.relation((view, node), (wrap.view, wrap.node)) for wrap in group.wraps}
    return answers != {"before"}


def runs_behind_the_wrap(migration: Migration, view: FileView, node: ast.AST, group: Group) -> bool:
    """Whether a place is seen to run behind the wrap, on some way: for what is too common to be asked in doubt."""
    if any(_summons(ancestor) for ancestor in view.ancestors(node)) or is_whole_in_block(migration, view, node, group):
        return False
    answers = {migration.order.relation((view, node), (wrap.view, wrap.node)) for wrap in group.wraps}
    return bool(answers & {"after", "both"})


def _summons(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any(
        isinstance(item.context_expr, ast.Call)
        and isinstance(item.context_expr.func, ast.Attribute)
        and item.context_expr.func.attr == "summon_full_params"
        for item in node.items
    )


_READING = (ast.Call, ast.FormattedValue, ast.If, ast.While, ast.IfExp, ast.Assert, ast.comprehension)


def local_reads(migration: Migration) -> Iterator[Site]:
    """Every such place; the symbol says how the value is read."""
    for view in migration.views():
        for node in view.nodes(*_READING):
            for read, symbol in _reads(view, node):
                group, values = tensor_values(migration, view, read)
                if group is not None and runs_on_shards(migration, view, node, group):
                    yield Site(view, read, symbol, "hazard", group, values)


def _reads(view: FileView, node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """(expression that is read, symbol of the read) for one node of a tree."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _READERS:
        yield node.func.value, f"torch.Tensor.{node.func.attr}"
    elif isinstance(node, ast.Call) and len(node.args) == 1 and view.external(node.func) in _CONVERSIONS:
        yield node.args[0], f"torch.Tensor.__{node.func.id if isinstance(node.func, ast.Name) else 'float'}__"
    elif isinstance(node, ast.FormattedValue) and node.format_spec is not None:
        yield node.value, "torch.Tensor.__format__"
    elif isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
        yield from _asked(view, node.test)
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield from _asked(view, test)
    elif isinstance(node, ast.Call) and len(node.args) == 1 and view.external(node.func) in _QUANTIFIERS:
        quantified = node.args[0]
        if isinstance(quantified, (ast.GeneratorExp, ast.ListComp)):
            yield from _asked(view, quantified.elt)


def _asked(view: FileView, test: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """What a test takes the truth of, as far as it may be computed from tensors."""
    for part in _conjuncts(test):
        if isinstance(part, ast.Compare):
            if not any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in part.ops):
                yield from ((side, COMPARED) for side in (part.left, *part.comparators))
        elif isinstance(part, ast.Call):
            if view.external(part.func) not in _QUANTIFIERS:
                yield part, "torch.Tensor.__bool__"
        elif isinstance(part, ast.Name):
            # A name may also hold a list of parameters, or the name of one: only what is computed is surely a tensor.
            values = [v for v in view.values(part) if isinstance(v, Derived)]
            if values and all(v.kind == "statistic" for v in values):
                yield part, "torch.Tensor.__bool__"


def _conjuncts(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _conjuncts(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _conjuncts(test.operand)
    else:
        yield test
