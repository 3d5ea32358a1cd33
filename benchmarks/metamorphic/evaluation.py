"""Which expressions may be evaluated earlier or later than they stand, and where an expression is evaluated first."""

from __future__ import annotations

import libcst as cst

from .code import Code, Statement, called

# Calls without effects, whose results nothing changes in between.
BUILT = {
    "partial", "dict", "set", "frozenset", "tuple", "list", "len", "int", "float", "str", "bool", "isinstance",
    "getattr", "device", "is_available", "current_device", "get_rank", "get_world_size", "is_initialized", "range",
    "join", "FullStateDictConfig", "FullOptimStateDictConfig", "ShardedStateDictConfig", "ShardedOptimStateDictConfig",
    "LocalStateDictConfig", "MixedPrecision", "CPUOffload", "ModuleWrapPolicy", "CustomPolicy", "nullcontext",
    "Namespace", "min", "max", "repr",
}  # fmt: skip
PLAIN = (cst.Name, cst.BaseNumber, cst.SimpleString, cst.ConcatenatedString, cst.Ellipsis, cst.Lambda)
COMPOUND = (
    cst.Tuple, cst.List, cst.Set, cst.Dict, cst.Element, cst.DictElement, cst.UnaryOperation, cst.BinaryOperation,
    cst.BooleanOperation, cst.Comparison, cst.ComparisonTarget, cst.IfExp, cst.Subscript, cst.SubscriptElement, cst.Index,
    cst.Slice, cst.FormattedString, cst.FormattedStringExpression, cst.Arg, cst.StarredElement, cst.StarredDictElement,
)  # fmt: skip


def pure(node: cst.CSTNode, built: bool = True) -> bool:
    """Whether an expression has no effect and, but for what its names hold, always the same value.

    Attributes count as such. With `built`, so do calls that only build a value.
    """
    if isinstance(node, PLAIN):
        return True
    if isinstance(node, cst.Attribute):
        return pure(node.value, built)
    if isinstance(node, cst.Call):
        return built and called(node) in BUILT and pure(node.func, built) and all(pure(arg, built) for arg in node.args)
    if isinstance(node, COMPOUND):
        return all(pure(child, built) for child in node.children if _is_value(child))
    return False


def _is_value(node: cst.CSTNode) -> bool:
    return isinstance(node, (cst.BaseExpression, *COMPOUND))


def evaluated_first(code: Code, target: cst.CSTNode) -> Statement | None:
    """The statement in front of which an expression may be evaluated as well: it is reached whenever the statement is, once, and
    what comes before it there is pure. None where there is no such statement."""
    child = target
    for around in code.up(target):
        if isinstance(around, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            allowed = (
                (isinstance(around, cst.Assign | cst.Return | cst.Expr | cst.AnnAssign | cst.AugAssign) and child is around.value)
                or (isinstance(around, cst.If) and child is around.test and not isinstance(code.parents[around], cst.If))
                or (isinstance(around, cst.For) and child is around.iter)
                or (isinstance(around, cst.With) and child is around.items[0])
            )
            if isinstance(around, cst.AugAssign) and not isinstance(around.target, cst.Name):
                return None
            return code.statement(around) if allowed else None
        if not _reached(around, child):
            return None
        child = around
    return None


def _reached(around: cst.CSTNode, child: cst.CSTNode) -> bool:
    """Whether `child` is evaluated whenever the expression `around` is, after nothing but pure expressions."""
    if isinstance(around, cst.IfExp):
        return child is around.test
    if isinstance(around, cst.BooleanOperation):
        return child is around.left
    if isinstance(around, cst.Comparison) and child is not around.left and child is not around.comparisons[0]:
        return False
    if isinstance(around, cst.Lambda | cst.BaseComp | cst.CompFor | cst.NamedExpr | cst.Await | cst.Yield | cst.Annotation):
        return False
    for sibling in around.children:
        if sibling is child:
            return True
        if _is_value(sibling) and not pure(sibling):
            return False
    return False
