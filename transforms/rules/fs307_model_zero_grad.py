"""``model.zero_grad()``: after an evaluation it misses the gradients of a sharded model."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.symbols import DDP
from ..analysis.values import Opaque, Optimizer, Value, Wrapped
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..text.patches import Patch
from ..training.conditions import FSDP_MODULE
from ..training.in_scope import optimizer_at

_WHY = "gradients belong to the sharded parameters, which the model does not show after a forward without backward"


def find(migration: Migration) -> Iterator[Site]:
    """Calls of ``zero_grad`` on a model that is wrapped somewhere."""
    for view in migration.views():
        for node in view.nodes(ast.Call):
            if not isinstance(node.func, ast.Attribute) or node.func.attr != "zero_grad":
                continue
            values = tuple(view.values(node.func.value))
            group = migration.groups.of(values)
            if group is None or not _is_model(node.func.value, values, group):
                continue
            yield Site(view, node.func, f"{DDP}.zero_grad", "hazard", group, values, node)


def _is_model(receiver: ast.expr, values: tuple[Value, ...], group: Group) -> bool:
    """Whether a receiver is a model; where a factory from outside makes models and optimizers, names tell them apart."""
    name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
    if any(isinstance(v, Optimizer) for v in values) or "opt" in name.lower():
        return False
    known = [v for v in values if isinstance(v, Wrapped) or v in group.raw]
    surely = [v for v in known if not (isinstance(v, Opaque) and v.name == "?")]
    return bool(surely) or (bool(known) and any(word in name.lower() for word in ("model", "net", "module")))


def check(site: Site, migration: Migration) -> Outcome:
    view, node, group = site.view, site.node, site.group
    assert isinstance(node, ast.Attribute) and group is not None
    optimizer = optimizer_at(view, node, group) if _one_holds_all(migration, group) else None
    if optimizer is not None:
        outcome = Outcome(Level.SAFE, "the optimizer, which holds all parameters of the model, clears the gradients")
        outcome.patches.append(view.replace(node.value, optimizer, _WHY))
        return outcome
    statement = view.statement(node)
    if not view.stands_alone(statement) or not isinstance(statement, ast.Expr):
        return Outcome(
            Level.MANUAL,
            "model.zero_grad() misses gradients of units that a forward without backward left unsharded",
            "Call optimizer.zero_grad(), or module.reshard() on every FSDPModule before it.",
            holds=True,
        )
    outcome = Outcome(Level.REVIEW, "the units are resharded first, so that their gradients are found")
    module = migration.use(outcome, view, FSDP_MODULE, node)
    unit = view.free_name(node, "module")
    indent = view.indent(statement)
    receiver = view.keep(node.value)
    start = view.source.span(statement)[0]
    parts = (
        f"for {unit} in ", receiver, f".modules():\n{indent}    if isinstance({unit}, {module}):\n{indent}        "
        f"{unit}.reshard()\n{indent}", receiver,
    )  # fmt: skip
    outcome.patches.append(Patch(view.path, start, view.source.span(node.value)[1], parts, _WHY))
    return outcome


def _one_holds_all(migration: Migration, group: Group) -> bool:
    """Whether the group has one optimizer, over all parameters (that take gradients) of its model."""
    if len(group.optimizers) != 1:
        return False
    view, call = migration.program.call_node(group.optimizers[0].site)
    given = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "params"), None)
    if isinstance(given, ast.Call) and view.external(given.func) == "builtins.filter" and len(given.args) == 2:
        if not ast.unparse(given.args[0]).endswith("requires_grad"):
            return False
        given = given.args[1]
    if not isinstance(given, ast.Call) or not isinstance(given.func, ast.Attribute) or given.args or given.keywords:
        return False
    owners = view.values(given.func.value)
    return given.func.attr == "parameters" and any(isinstance(v, Wrapped) or v in group.raw for v in owners)


_WRAP = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(build())\n"
_SHARD = "import torch\nfrom torch.distributed.fsdp import fully_shard\n\nmodel = build()\nfully_shard(model)\n"
_OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"

RULE = Rule(
    id="FS307",
    title="model.zero_grad() becomes optimizer.zero_grad()",
    why=(
        "After a forward without backward the model shows plain, unsharded parameters, and the gradients hang on the "
        "sharded ones: model.zero_grad() then clears nothing. With a validation before it, losses of the next steps "
        "were .2278 .4515 .4952 instead of .2393 .5200 .6374, without an error."
    ),
    symbols=(f"{DDP}.zero_grad",),
    roles=("hazard",),
    check=check,
    find=find,
    proof=("gan_ddp",),
    examples=(
        Example(_WRAP + _OPTIMIZER + "model.zero_grad()\n", _SHARD + _OPTIMIZER + "optimizer.zero_grad()\n"),
    ),
)
