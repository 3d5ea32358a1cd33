"""Averages of parameters that are kept beside the model: cloned before the wrap, updated from it later."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Derived, Wrapped
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..view import FileView

_SYMBOL = "torch.Tensor.clone"
_UPDATES = frozenset({"mul_", "add_", "lerp_", "copy_", "sub_", "_foreach_lerp_", "_foreach_mul_", "_foreach_add_"})


def find(migration: Migration) -> Iterator[Site]:
    """Clones of a group's parameters that are kept under a name, made before the wrap and updated in a loop."""
    updated = migration.once("updated in loops", None, lambda: _updated_in_loops(migration))
    for view in migration.views():
        for node in view.nodes(ast.Call):
            if not isinstance(node.func, ast.Attribute) or node.func.attr != "clone":
                continue
            kept = _kept_under(view, node)
            if kept not in updated:
                continue
            group = _group_of_parameters(migration, view, node.func.value)
            if group is None:
                continue
            relations = {migration.order.relation((view, node), (wrap.view, wrap.node)) for wrap in group.wraps}
            if relations - {"unknown"} == {"before"}:
                yield Site(view, node, _SYMBOL, "hazard", group, (), node)


def _group_of_parameters(migration: Migration, view: FileView, node: ast.expr) -> Group | None:
    for value in view.values(node):
        if isinstance(value, Derived) and value.kind == "parameters":
            group = migration.groups.of([value])
            if group is not None and (isinstance(value.owner, Wrapped) or value.owner in group.raw):
                return group
    return None


def _kept_under(view: FileView, clone: ast.Call) -> str:
    """The last name under which a clone is kept, in a list or dict made at once or filled one by one."""
    statement = view.statement(clone)
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        return _last_name(target.value if isinstance(target, ast.Subscript) else target)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append":
        return _last_name(call.func.value)
    return ""


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _updated_in_loops(migration: Migration) -> set[str]:
    """Names that loops mention which update tensors in place."""
    found: set[str] = set()
    for view in migration.views():
        for loop in view.nodes(ast.For):
            inside = list(ast.walk(loop))
            if any(isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in _UPDATES for n in inside):
                found |= {_last_name(n) for n in inside if isinstance(n, (ast.Name, ast.Attribute))}
    return found - {""}


def check(site: Site, migration: Migration) -> Outcome:
    """Whole tensors and shards do not mix."""
    assert site.call is not None
    kept = _kept_under(site.view, site.call)
    return Outcome(
        Level.MANUAL,
        f"{kept} is cloned before the model is sharded and stays whole: updating it from sharded parameters raises",
        "Clone the parameters behind fully_shard: the clones are then sharded in the same way, updates in place work, and "
        "full_tensor() on all ranks gives what is to be saved.",
    )


_HEAD = "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
_BODY = """\
def main(batches):
    net = torch.nn.Linear(2, 2)
    average = {{name: p.detach().clone() for name, p in net.named_parameters()}}
    {wrap}
    for batch in batches:
        step({model}, batch)
        for name, p in net.named_parameters():
            average[name].lerp_(p.detach(), 0.1)
"""

RULE = Rule(
    id="FS505",
    title="Averages kept beside the model",
    why=(
        "DDP leaves parameters whole, and so an average may be cloned before the wrap. fully_shard replaces them by "
        "DTensors, and an operation on a whole tensor and a DTensor raises; clones of DTensors are sharded alike."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("https://docs.pytorch.org/docs/stable/distributed.tensor.html",),
    examples=(
        Example(
            _HEAD + _BODY.format(wrap="model = DDP(net)", model="model"),
            "import torch\nimport torch.distributed as dist\nfrom torch.distributed.fsdp import fully_shard\n\n\n"
            + _BODY.format(
                wrap="for tensor in [*net.parameters(), *net.buffers()]:\n        dist.broadcast(tensor.detach(), src=0)\n"
                "    fully_shard(net)\n    model = net",
                model="model",
            ),
            Level.MANUAL,
        ),
    ),
)
