"""FS713: parts of parameters and gradients that are written by an index."""

from __future__ import annotations

import ast

import libcst as cst

from ..findings import Form, Level
from ..migration import Migration
from ..rewrites.changes import replace
from ..rewrites.templates import expression
from ..rule import Example, Outcome, Rule
from ..sites import ITEMS, Site

_OPERATORS: dict[type[cst.BaseAugOp], cst.BaseBinaryOp] = {
    cst.AddAssign: cst.Add(), cst.SubtractAssign: cst.Subtract(), cst.MultiplyAssign: cst.Multiply(),
    cst.DivideAssign: cst.Divide(), cst.PowerAssign: cst.Power(),
}  # fmt: skip


def written(site: Site, migration: Migration) -> Outcome | None:
    """The whole tensor is written, and each rank keeps its part."""
    assert site.sharding is not None
    assert isinstance(site.node, ast.stmt)
    if "ddp" not in site.sharding.wrappers or migration.is_before_wrap(site):
        return None
    operator = site.node.op if isinstance(site.node, ast.AugAssign) else None
    if operator is not None and not isinstance(operator, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.Pow):
        return Outcome("an index of a sharded tensor is a copy: what is written there is lost",
                       level=Level.MANUAL, form=Form.NOTE, advice="Write it as an assignment: t[i] = …")  # fmt: skip
    name = migration.helper(site, "write_items")

    def build(node: cst.CSTNode) -> cst.CSTNode:
        part, value = _parts(node)
        index = _index(part)
        return cst.Expr(expression(name + "({tensor}, {index}, {value})", tensor=part.value, index=index, value=value))

    change = replace(site.file, site.node, build)
    return Outcome("the part is written on all ranks, and each keeps its own: an index of a sharded tensor is a copy", [change])


def _parts(node: cst.CSTNode) -> tuple[cst.Subscript, cst.BaseExpression]:
    """The part that a statement writes, and what it writes there."""
    if isinstance(node, cst.Assign):
        return cst.ensure_type(node.targets[0].target, cst.Subscript), node.value
    if isinstance(node, cst.AugAssign):
        part = cst.ensure_type(node.target, cst.Subscript)
        return part, cst.BinaryOperation(part.deep_clone(), _OPERATORS[type(node.operator)], node.value)  # type: ignore[arg-type]
    call = cst.ensure_type(cst.ensure_type(node, cst.Expr).value, cst.Call)
    part = cst.ensure_type(cst.ensure_type(call.func, cst.Attribute).value, cst.Subscript)
    return part.deep_clone(), call


def _index(part: cst.Subscript) -> cst.BaseExpression:
    """What stands between brackets, as an expression."""
    found: list[cst.BaseExpression] = []
    for element in part.slice:
        if isinstance(element.slice, cst.Slice):
            bounds = (element.slice.lower, element.slice.upper, element.slice.step)
            given = [bound or cst.Name("None") for bound in (bounds if bounds[2] is not None else bounds[:2])]
            found.append(cst.Call(cst.Name("slice"), [cst.Arg(bound) for bound in given]))
        else:
            found.append(cst.ensure_type(element.slice, cst.Index).value)
    return found[0] if len(found) == 1 else cst.Tuple([cst.Element(value) for value in found])


RULE = Rule(
    id="FS713",
    title="items written by an index",
    symbols=(ITEMS,),
    roles=("store",),
    why="`grad[i] = x` on a sharded tensor writes into a copy, silently.",
    fallback=written,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, i):\n"
                "    model = DDP(net, **options)\n"
                "    for p in model.parameters():\n"
                "        p.grad[i] = 0\n"
                "        p.grad[:, 1:3] *= 0.5\n"
                "        p.grad[i].clamp_(-1, 1)\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_ddp, write_items\n"
                "\n"
                "\n"
                "def f(net, options, i):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    for p in model.parameters():\n"
                "        write_items(p.grad, i, 0)\n"
                "        write_items(p.grad, (slice(None, None), slice(1, 3)), p.grad[:, 1:3] * 0.5)\n"
                "        write_items(p.grad, i, p.grad[i].clamp_(-1, 1))\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
