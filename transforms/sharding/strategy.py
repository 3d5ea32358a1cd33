"""Sharding strategies, process groups and meshes: over which ranks, and whether parameters stay gathered."""

from __future__ import annotations

import ast

from ..analysis.scopes import dotted_path
from ..analysis.values import Constant, External, Opaque, Unknown, Value
from ..findings import Level
from ..rule import Outcome
from .constructor import Argument, Constructor, translates
from .mesh_text import HYBRID, node_mesh, replicated_mesh
from .plan import code

STRATEGY = "torch.distributed.fsdp.ShardingStrategy"
MEMBERS = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
_RESHARDS = {
    "FULL_SHARD": True,
    "SHARD_GRAD_OP": False,
    "HYBRID_SHARD": True,
    "_HYBRID_SHARD_ZERO2": False,
    "NO_SHARD": False,
}


def member(value: Value) -> str | None:
    """The strategy that a value is: an enum member, or its name after the migration."""
    if isinstance(value, External) and value.name.startswith(STRATEGY + "."):
        name = value.name[len(STRATEGY) + 1 :].partition(".")[0]
        return name if name in MEMBERS else None
    if isinstance(value, Constant) and value.value in MEMBERS:
        return str(value.value)
    return None


@translates("sharding_strategy")
def sharding_strategy(constructor: Constructor, argument: Argument) -> Outcome:
    """Decides reshard_after_forward, and the mesh where parameters are replicated."""
    if argument.is_none:
        return Outcome(Level.SAFE, "no strategy given: FULL_SHARD, which is what fully_shard does")
    named = _literal(argument, argument.node)
    if named is not None:
        return _constant(constructor, named)
    return _either(constructor, argument) or _alike(constructor, argument) or _chosen(constructor, argument)


def frees_parameters(argument: Argument) -> bool:
    """Whether an argument surely says that parameters are freed after the forward."""
    names = _named(argument)
    return bool(names) and all(_RESHARDS[name] for name in names)


def _named(argument: Argument) -> list[str]:
    """The strategy that an argument names, or both where it chooses between two that it names."""
    node = argument.node
    branches = [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]
    names = [_literal(argument, branch) for branch in branches]
    return [name for name in names if name is not None] if None not in names else []


def _either(constructor: Constructor, argument: Argument) -> Outcome | None:
    """A choice between FULL_SHARD and SHARD_GRAD_OP: its test says whether units are resharded."""
    node, plan = argument.node, constructor.plan
    names = _named(argument)
    if not isinstance(node, ast.IfExp) or {*names} != {"FULL_SHARD", "SHARD_GRAD_OP"} or not plan.has_units:
        return None
    test = argument.view.keep(node.test)
    is_simple = isinstance(node.test, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    opposite = ("not ", test) if is_simple else ("not (", test, ")")
    plan.unit_arguments["reshard_after_forward"] = (test,) if names[0] == "FULL_SHARD" else opposite
    return Outcome(Level.SAFE, "FULL_SHARD reshards behind the forward, SHARD_GRAD_OP does not: the choice says which")


def _alike(constructor: Constructor, argument: Argument) -> Outcome | None:
    """A choice between strategies that differ in nothing but the mesh, which another argument gives."""
    names = _named(argument)
    if not names or "NO_SHARD" in names or len({_RESHARDS[name] for name in names}) != 1:
        return None
    if {*names} & {*HYBRID} and not _gives_mesh(constructor):
        return None
    if not _RESHARDS[names[0]]:
        constructor.plan.arguments["reshard_after_forward"] = ("False",)
    return Outcome(
        Level.REVIEW,
        f"{' and '.join(names)} differ in the mesh alone: one of two dimensions replicates, without one HYBRID_SHARD "
        "shards over all ranks now",
    )


def _gives_mesh(constructor: Constructor) -> bool:
    return any(
        name in constructor.arguments and not constructor.arguments[name].is_none
        for name in ("device_mesh", "process_group")
    )


def _literal(argument: Argument, node: ast.expr) -> str | None:
    """The strategy where an expression names it, ``ShardingStrategy.FULL_SHARD``."""
    if not isinstance(node, ast.Attribute) or argument.view.external(node.value) != STRATEGY:
        return None
    return node.attr if node.attr in MEMBERS else None


def _constant(constructor: Constructor, strategy: str) -> Outcome:
    plan = constructor.plan
    if strategy == "FULL_SHARD":
        return Outcome(Level.SAFE, "FULL_SHARD is what fully_shard does")
    if strategy == "SHARD_GRAD_OP":
        plan.arguments["reshard_after_forward"] = ("False",)
        return Outcome(Level.SAFE, "SHARD_GRAD_OP becomes reshard_after_forward=False")
    if strategy == "NO_SHARD":
        return _no_shard(constructor)
    if strategy == "_HYBRID_SHARD_ZERO2":
        plan.arguments["reshard_after_forward"] = ("False",)
    if "device_mesh" in constructor.arguments and not constructor.arguments["device_mesh"].is_none:
        return Outcome(Level.SAFE, f"{strategy} over a mesh of two dimensions is fully_shard over that mesh")
    if "process_group" in constructor.arguments and not constructor.arguments["process_group"].is_none:
        return Outcome(Level.REVIEW, f"{strategy} over two process groups becomes a mesh of two dimensions")
    plan.arguments["mesh"] = node_mesh(constructor)
    return Outcome(
        Level.REVIEW,
        f"{strategy} shards within a node and replicates across nodes: the mesh says so now; where nodes have "
        "different numbers of devices, its shape has to be given by hand",
    )


def _no_shard(constructor: Constructor) -> Outcome:
    plan = constructor.plan
    if _gives_mesh(constructor):
        return Outcome(
            Level.REVIEW, "NO_SHARD over ranks of its own choice shards over them now: the same numbers, with less memory"
        )
    if constructor.migration.torch_has(2, 9):
        plan.function = "torch.distributed._composable.replicate_with_fsdp.replicate"
        return Outcome(Level.REVIEW, "NO_SHARD becomes replicate, which keeps all parameters on every rank")
    plan.arguments["mesh"] = replicated_mesh(constructor)
    plan.named.add("mesh")
    return Outcome(
        Level.SAFE,
        "NO_SHARD becomes a mesh that replicates over all ranks and shards over one: every rank keeps all "
        "parameters; from torch 2.9 there is replicate for this",
    )


def _chosen(constructor: Constructor, argument: Argument) -> Outcome:
    """A strategy that is chosen at run time: by its name, which replaces the enum member everywhere."""
    plan, view = constructor.plan, constructor.view
    values = argument.values
    known = {name for name in map(member, values) if name is not None}
    open_ended = not values or any(isinstance(v, (Unknown, Opaque)) for v in values)
    wanted = argument.keep()
    if any(isinstance(v, Constant) and v.value is None for v in values):
        wanted = code("(", wanted, ' or "FULL_SHARD")')
        known.add("FULL_SHARD")
    gives_mesh = _gives_mesh(constructor)
    if open_ended or len(known) < 2:
        known |= {"FULL_SHARD", "SHARD_GRAD_OP"}
    names = [name for name in MEMBERS if gives_mesh or name in known]
    twice = not plan.has_units or not {*HYBRID, "NO_SHARD"}.isdisjoint(names)
    if twice and _needs_local(argument):
        local = view.free_name(constructor.call, "sharding_strategy")
        plan.before.append(code(local, " = ", wanted))
        wanted = (local,)
    if plan.has_units:
        entries = [f'"{name}": {_RESHARDS[name]}' for name in names]
        table = (
            "{" + ", ".join(entries) + "}"
            if len(entries) < 3
            else "{\n    " + ",\n    ".join(entries) + ",\n}"
        )
        plan.unit_arguments["reshard_after_forward"] = code(table, "[", wanted, "]")
    else:
        listing = ", ".join(f'"{name}"' for name in names)
        plan.before.append(code("assert ", wanted, f" in ({listing}), ", wanted))
    constructor.chosen = (wanted, names)
    missing = [name for name in MEMBERS if name not in names and not name.startswith("_")]
    others = f"{', '.join(missing)} and any other name raise" if missing else "any other name raises"
    message = f"the strategy is chosen by its name now, {', '.join(names)}; {others} instead of training differently"
    if gives_mesh and "NO_SHARD" in names:
        message += "; NO_SHARD with a mesh or group of its own shards over it now, with the same numbers"
    return Outcome(Level.REVIEW if open_ended or len(names) > 2 or gives_mesh else Level.SAFE, message)


def _needs_local(argument: Argument) -> bool:
    """Whether the strategy is more than a path, or a look-up by a path."""
    node = argument.node
    if isinstance(node, ast.Subscript) and argument.view.external(node.value) == STRATEGY:
        node = node.slice
    return dotted_path(node) is None
