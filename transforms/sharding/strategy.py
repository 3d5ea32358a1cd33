"""Sharding strategies, process groups and meshes: over which ranks, and whether parameters stay gathered."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.scopes import dotted_path
from ..analysis.values import Constant, External, Opaque, Unknown, Value
from ..findings import Level
from ..migration import Migration
from ..rule import Outcome
from ..sites import Site
from ..view import FileView
from .constructor import Argument, Constructor, is_left_out, translates, wrapping_calls
from .outside import for_others, uses_fsdp1
from .plan import Code, code, deeper, length

STRATEGY = "torch.distributed.fsdp.ShardingStrategy"
MEMBERS = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
_WIDTH = 100
_HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
_RESHARDS = {
    "FULL_SHARD": True,
    "SHARD_GRAD_OP": False,
    "HYBRID_SHARD": True,
    "_HYBRID_SHARD_ZERO2": False,
    "NO_SHARD": False,
}
DIMENSIONS = '("replicate", "shard")'


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
    return _alike(constructor, argument) or _chosen(constructor, argument)


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


def _alike(constructor: Constructor, argument: Argument) -> Outcome | None:
    """A choice between strategies that differ in nothing but the mesh, which another argument gives."""
    names = _named(argument)
    if not names or "NO_SHARD" in names or len({_RESHARDS[name] for name in names}) != 1:
        return None
    if {*names} & {*_HYBRID} and not _gives_mesh(constructor):
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
    names = [name for name in MEMBERS if name in known or (name in ("FULL_SHARD", "SHARD_GRAD_OP"))]
    if gives_mesh and "HYBRID_SHARD" not in names:
        names += [name for name in _HYBRID if name not in names]
    twice = not plan.has_units or (not gives_mesh and known & {*_HYBRID, "NO_SHARD"})
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
    if not gives_mesh:
        _choose_mesh(constructor, wanted, known)
    missing = [name for name in MEMBERS if name not in names and not name.startswith("_")]
    others = f"{' and '.join(missing)} and any other name raise" if missing else "any other name raises"
    message = f"the strategy is chosen by its name now, {', '.join(names)}; {others} instead of training differently"
    mesh = constructor.arguments.get("device_mesh")
    if mesh is not None and any(isinstance(v, Constant) and v.value is None for v in mesh.values):
        message += (
            "; without a mesh HYBRID_SHARD shards over all ranks now, FSDP1 made groups of a node's ranks"
        )
    return Outcome(Level.REVIEW if open_ended or len(names) > 2 or gives_mesh else Level.SAFE, message)


def _needs_local(argument: Argument) -> bool:
    """Whether the strategy is more than a path, or a look-up by a path."""
    node = argument.node
    if isinstance(node, ast.Subscript) and argument.view.external(node.value) == STRATEGY:
        node = node.slice
    return dotted_path(node) is None


def _choose_mesh(constructor: Constructor, strategy: Code, known: set[str]) -> None:
    """A mesh by strategy, where one of the known ones replicates."""
    plan = constructor.plan
    branches: list[tuple[Code, Code]] = []
    hybrid = [name for name in _HYBRID if name in known]
    if hybrid:
        test = (
            code(strategy, f' == "{hybrid[0]}"')
            if len(hybrid) == 1
            else code(strategy, f" in {tuple(hybrid)}".replace("'", '"'))
        )
        branches.append((test, node_mesh(constructor)))
    if "NO_SHARD" in known:
        branches.append((code(strategy, ' == "NO_SHARD"'), replicated_mesh(constructor)))
    if not branches:
        return
    local = constructor.view.free_name(constructor.call, "mesh")
    text: Code = ()
    for number, (test, mesh) in enumerate(branches):
        text = code(text, "elif " if number else "if ", test, f":\n    {local} = ", deeper(mesh), "\n")
    plan.before.append(code(text, f"else:\n    {local} = None"))
    plan.arguments["mesh"] = (local,)


def device_type(constructor: Constructor) -> Code:
    """The type of device that the model trains on, as ``init_device_mesh`` wants it."""
    argument = constructor.arguments.get("device_id")
    if argument is None or argument.is_none:
        return ('"cuda"',)
    text = argument.view.text(argument.node)
    for value in argument.values:
        if isinstance(value, Opaque) and value.name == "torch.device":
            simple = isinstance(argument.node, (ast.Name, ast.Attribute))
            return code(argument.keep(), ".type") if simple else ('"cpu"' if "cpu" in text else '"cuda"',)
    if "xpu" in text:
        return ('"xpu"',)
    return ('"cuda"',)


def node_mesh(constructor: Constructor) -> Code:
    """Shards over the devices of a node, replicates over nodes: what FSDP1 makes of HYBRID_SHARD by itself."""
    init = constructor.plan.name("torch.distributed.device_mesh.init_device_mesh")
    size = constructor.plan.name("torch.distributed.get_world_size")
    torch = constructor.plan.name("torch.cuda.device_count")
    shape = f"({size}() // {torch}(), {torch}())"
    return code(
        f"{init}(\n    ", device_type(constructor), f",\n    {shape},\n    mesh_dim_names={DIMENSIONS},\n)"
    )


def replicated_mesh(constructor: Constructor) -> Code:
    """Replicates over all ranks and shards over one."""
    init = constructor.plan.name("torch.distributed.device_mesh.init_device_mesh")
    size = constructor.plan.name("torch.distributed.get_world_size")
    arguments = code(device_type(constructor), f", ({size}(), 1), mesh_dim_names={DIMENSIONS}")
    line = code(f"{init}(", arguments, ")")
    room = _WIDTH - len(constructor.view.indent(constructor.call)) - len("mesh = ")
    return line if length(constructor.view, line) <= room else code(f"{init}(\n    ", arguments, "\n)")


def mesh_of_pair(constructor: Constructor, pair: ast.Tuple) -> Code:
    """``(shard, replicate)``, as FSDP1 takes two process groups, as a mesh (replicate, shard)."""
    plan = constructor.plan
    from_group = plan.name("torch.distributed.device_mesh.DeviceMesh") + ".from_group"
    shard, replicate = (constructor.view.keep(element) for element in pair.elts)
    size = plan.name("torch.distributed.get_world_size")
    arange = plan.name("torch.arange")
    return code(
        f"{from_group}(\n    [", replicate, ", ", shard, "],\n    ", device_type(constructor),
        f",\n    mesh={arange}({size}()).view(-1, {size}(", shard, f")),\n    mesh_dim_names={DIMENSIONS},\n)",
    )  # fmt: skip


# --- mentions elsewhere -------------------------------------------------------------------------------------


def names_of_chosen(migration: Migration) -> Iterator[Site]:
    """Mentions that no symbol shows: ``strategy.name`` of a variable with several members, and ``case`` patterns."""
    for view in migration.views():
        for pattern in view.nodes(ast.MatchValue):
            value = pattern.value
            if isinstance(value, ast.Attribute) and value.attr in MEMBERS:
                if view.text(value.value).endswith("ShardingStrategy"):
                    group = migration.groups.of_strategies()
                    yield Site(view, value, f"{STRATEGY}.{value.attr}", "hazard", group)
        for node in view.nodes(ast.Attribute):
            if node.attr not in ("name", "value"):
                continue
            held = [v.name for v in view.values(node.value) if isinstance(v, External) and member(v) is not None]
            if len(held) > 1:
                group = migration.groups.of_strategies()
                yield Site(view, node, f"{held[0]}.{node.attr}", "hazard", group, tuple(view.values(node.value)))


def check_mention(site: Site, migration: Migration) -> Outcome:
    """A member becomes its name, the type a string, a look-up by name the name that was looked up."""
    view, node = site.view, site.node
    if not uses_fsdp1(migration):
        return for_others("ShardingStrategy", "a setting like fsdp_reshard_after_forward")
    if site.role == "keyword" or site.role == "call":
        return _unnamed(site, "is made from a value")
    tail = site.symbol[len(STRATEGY) + 1 :].split(".") if site.symbol != STRATEGY else []
    if any(isinstance(ancestor, ast.JoinedStr) for ancestor in view.ancestors(node)):
        return Outcome(Level.MANUAL, "a strategy is printed here", "It is a string now: print the name.")
    if tail and tail[0] in MEMBERS and len(tail) == 1:
        return _member(site, migration, tail[0])
    if tail and tail[0] in MEMBERS and tail[1:] == ["name"] and isinstance(node, ast.Attribute):
        return _name_of(site, node.value, tail[0])
    if site.symbol != STRATEGY:
        return _unnamed(site, "is asked for more than a member's name")
    if site.role == "annotation":
        return Outcome(Level.SAFE, "strategies are strings now", patches=[view.replace(node, "str", _NAMED)])
    parent = view.parents[node]
    if isinstance(parent, ast.Subscript) and parent.value is node:
        return _by_name(view, parent, parent.slice)
    if (
        isinstance(parent, ast.Call)
        and view.external(parent.func) == "builtins.getattr"
        and len(parent.args) >= 2
    ):
        return _by_name(view, parent, parent.args[1])
    return _unnamed(site, "is used as a type")


_NAMED = "strategies are named by strings"


def _member(site: Site, migration: Migration, name: str) -> Outcome:
    view, node = site.view, site.node
    parent = view.parents[node]
    if isinstance(parent, ast.keyword):
        call = view.parents[parent]
        if call in wrapping_calls(migration):
            return Outcome(Level.SAFE, f"{name} decides how the wrap shards")
        assert isinstance(call, ast.Call)
        if any(isinstance(v, Opaque) for v in view.values(call)):
            return _unnamed(site, "is handed to code outside this repository")
    if is_left_out(site, migration):
        return Outcome(Level.SAFE, f"{name} decides how the wraps shard")
    outcome = Outcome(Level.SAFE, f"the strategy is named by its string, {name}")
    outcome.patches.append(view.replace(node, f'"{name}"', _NAMED))
    if isinstance(parent, ast.Compare) and any(isinstance(o, (ast.Is, ast.IsNot)) for o in parent.ops):
        return _by_equality(site, parent, outcome)
    return outcome


def _by_equality(site: Site, compare: ast.Compare, outcome: Outcome) -> Outcome:
    """Members are compared by identity, strings by equality."""
    if len(compare.ops) != 1:
        return _unnamed(site, "is compared by identity in a chain")
    operator = " == " if isinstance(compare.ops[0], ast.Is) else " != "
    keep = site.view.keep
    outcome.patches.append(
        site.view.replace(compare, (keep(compare.left), operator, keep(compare.comparators[0])), _NAMED)
    )
    return outcome


def _name_of(site: Site, owner: ast.expr, name: str) -> Outcome:
    """``ShardingStrategy.FULL_SHARD.name``, or ``.name`` of a variable: the string already is the name."""
    view = site.view
    written = isinstance(owner, ast.Attribute) and view.external(owner.value) == STRATEGY
    text = (f'"{name}"',) if written else (view.keep(owner),)
    return Outcome(Level.SAFE, "a strategy is its own name", patches=[view.replace(site.node, text, _NAMED)])


def _by_name(view: FileView, look_up: ast.expr, name: ast.expr) -> Outcome:
    return Outcome(
        Level.SAFE,
        "the name itself stands for the strategy",
        patches=[view.replace(look_up, (view.keep(name),), _NAMED)],
    )


def _unnamed(site: Site, what: str) -> Outcome:
    return Outcome(
        Level.MANUAL,
        f"ShardingStrategy {what}, and strategies are strings after the migration",
        'Use the names ("FULL_SHARD", "SHARD_GRAD_OP", …) here as well.',
        holds=True,
    )
