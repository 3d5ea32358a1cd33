"""Random numbers drawn for parameters that are sharded: another initialisation than that of whole ones."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Annotated, Bound, Derived, FunctionValue, Value, Wrapped
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.local_reads import runs_behind_the_wrap, tensor_values
from ..training.passes import called_name, calls_named, outside_name
from ..view import FileView

_INIT = "torch.nn.init."
_FIXED = frozenset({"constant_", "zeros_", "ones_", "eye_", "dirac_", "calculate_gain"})
_DRAWS = frozenset(
    {"normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_"}
)
_LIKE = frozenset(f"torch.{name}" for name in ("randn_like", "rand_like", "randint_like", "bernoulli", "normal"))
_INITIALISERS = _DRAWS | {
    "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "orthogonal_", "sparse_",
    "reset_parameters",
}  # fmt: skip
_SYMBOL = "torch.Tensor.random"


def find(migration: Migration) -> Iterator[Site]:
    """Draws for parameters of a group, and calls of initialisers on its model, that may run after the wrap."""
    for view in migration.views():
        for node in view.nodes(ast.Call):
            group, values = _drawn_for(migration, view, node)
            if group is not None and runs_behind_the_wrap(migration, view, node, group):
                yield Site(view, node, f"{_SYMBOL}.{called_name(node)}", "hazard", group, values, node)


def _drawn_for(migration: Migration, view: FileView, call: ast.Call) -> tuple[Group | None, tuple[Value, ...]]:
    """The group whose parameters a call draws random numbers for."""
    name = outside_name(view, call.func) or ""
    if call.args and ((name.startswith(_INIT) and name.removeprefix(_INIT) not in _FIXED) or name in _LIKE):
        return tensor_values(migration, view, call.args[0])
    if not isinstance(call.func, ast.Attribute):
        return None, ()
    receiver, method = call.func.value, call.func.attr
    if method in _DRAWS:
        return tensor_values(migration, view, receiver)
    if method == "reset_parameters" or (method == "apply" and _applies_an_initialiser(migration, view, call)):
        values = tuple(v for v in view.values(receiver) if _is_module(migration, v))
        return (migration.groups.of(values) if values else None), values
    return None, ()


def _is_module(migration: Migration, value: Value) -> bool:
    if isinstance(value, Derived):
        return value.kind == "modules"
    return isinstance(value, (Wrapped, Annotated)) or any(value in group.raw for group in migration.groups.all)


def _applies_an_initialiser(migration: Migration, view: FileView, call: ast.Call) -> bool:
    """``model.apply(function)`` with a function of the repository that draws random numbers."""
    for value in view.values(call.args[0]) if call.args else ():
        function = value.function if isinstance(value, Bound) else value
        if isinstance(function, FunctionValue):
            inner, node = migration.program.function_node(function)
            body = getattr(node, "body", [])
            if calls_named(migration, inner, body if isinstance(body, list) else [body], _INITIALISERS):
                return True
    return False


def check(site: Site, migration: Migration) -> Outcome:
    if site.group is not None and site.group.kinds == {"FSDP1"}:
        return Outcome(
            Level.REVIEW,
            "FSDP1 drew these numbers for its flat shards, FSDP2 draws them for rows of each parameter: the same "
            "distribution, other numbers",
        )
    return Outcome(
        Level.MANUAL,
        f"{site.view.text(site.node).splitlines()[0]} draws random numbers for parameters after the wrap: for shards "
        "these are others than for whole tensors, so the same seed trains another way",
        "Initialise before the model is sharded, with the same seed on every rank; a model on the meta device is "
        "materialised with to_empty and initialised afterwards, knowing that its numbers differ from those of one process.",
        holds=True,
    )


_DDP = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(build())
for p in model.parameters():
    torch.nn.init.normal_(p, std=0.02)
"""
_APPLIED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def initialise(module):
    if isinstance(module, torch.nn.Linear):
        torch.nn.init.xavier_uniform_(module.weight)


model = FSDP(build())
model.apply(initialise)
"""

RULE = Rule(
    id="FS704",
    title="Random initialisation after the wrap",
    why=(
        "A draw for a DTensor fills its shards from a generator that is kept per mesh (on the CPU: with the same numbers on "
        "every rank), and the fan of a weight may be that of its shard. DDP drew for whole parameters. The model "
        "starts from other weights with the same seed, without an error."
    ),
    symbols=(f"{_SYMBOL}.*",),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("xavier_uniform_ after DDP and after fully_shard compared on torch 2.13, two ranks",),
    examples=(
        Example(_DDP, _DDP, Level.MANUAL),
        Example(
            _APPLIED,
            _APPLIED.replace("FullyShardedDataParallel as FSDP", "fully_shard").replace(
                "model = FSDP(build())\n", "model = build()\nfully_shard(model)\n"
            ),
            Level.REVIEW,
        ),
    ),
)
