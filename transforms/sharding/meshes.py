"""Process groups and meshes: over which ranks a model is sharded, and over which it is repeated."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..analysis.scopes import dotted_path
from ..analysis.values import Constant, Container, Opaque, Value
from ..findings import Level
from ..rule import Outcome
from ..text.patches import Part, Patch
from ..text.spelling import quoted
from ..view import FileView
from .constructor import Argument, Constructor, translates
from .mesh_text import DIMENSIONS, HYBRID, device_type, mesh_of_pair, node_mesh, replicated_mesh
from .plan import Code, code, deeper
from .process_groups import mesh_in_variable

_MESHES = (
    "torch.distributed.device_mesh.init_device_mesh",
    "torch.distributed._tensor.device_mesh.init_device_mesh",
    "torch.distributed._tensor.init_device_mesh",
    "torch.distributed.tensor.init_device_mesh",
    "torch.distributed.init_device_mesh",
)


@translates("process_group")
def process_group(constructor: Constructor, argument: Argument) -> Outcome:
    """A group becomes a mesh of one dimension; (shard, replicate) a mesh (replicate, shard)."""
    if argument.is_none:
        return Outcome(Level.SAFE, "no process group: the default mesh over all ranks")
    plan = constructor.plan
    if isinstance(argument.node, ast.Tuple) and len(argument.node.elts) == 2:
        plan.arguments["mesh"] = mesh_of_pair(constructor, argument.node)
        return Outcome(
            Level.REVIEW,
            "FSDP1 takes (shard, replicate), a mesh is (replicate, shard); the mesh assumes that ranks of one shard "
            "group follow each other",
        )
    from_group = plan.name("torch.distributed.device_mesh.DeviceMesh") + ".from_group"
    if any(isinstance(v, Container) for v in argument.values):
        return mesh_in_variable(constructor, argument) or _group_or_pair(constructor, argument, from_group)
    mesh = code(f"{from_group}(", argument.keep(), ", ", device_type(constructor), ")")
    if _is_optional(constructor, argument):
        text = argument.keep()
        mesh = code(mesh, " if ", text, " is not None else None")
    plan.arguments["mesh"] = mesh
    return Outcome(
        Level.REVIEW, "the process group becomes a mesh of one dimension; a pair of groups would need two"
    )


def _is_optional(constructor: Constructor, argument: Argument) -> bool:
    """Whether a group may be missing: it may where a mesh can come instead of it."""
    is_none = any(isinstance(v, Constant) and v.value is None for v in argument.values)
    return is_none or (bool(constructor.with_mesh) and argument.may_be_none())


def _group_or_pair(constructor: Constructor, argument: Argument, from_group: str) -> Outcome:
    """A variable that may hold one group or two: which it is shows at run time."""
    plan, view = constructor.plan, constructor.view
    size, arange = plan.name("torch.distributed.get_world_size"), plan.name("torch.arange")
    members = plan.name("torch.distributed.get_process_group_ranks")
    mesh, ranks, shard, replicate = (
        view.free_name(constructor.call, name) for name in ("mesh", "ranks", "shard_group", "replicate_group")
    )
    given = argument.keep()
    single = code(f"{from_group}(", given, ", ", device_type(constructor), ")")
    if _is_optional(constructor, argument):
        single = code(single, " if ", given, " is not None else None")
    plan.before.append(
        code(
            "if isinstance(", given, f", tuple):\n    {shard}, {replicate} = ", given,
            f"\n    {ranks} = {arange}({size}()).view(-1, {shard}.size())"
            f"\n    if {members}({shard}) not in {ranks}.tolist():"
            f"\n        raise ValueError(\"shard groups have to be ranks in a row\")"
            f"\n    {mesh} = {from_group}("
            f"\n        [{replicate}, {shard}], ", device_type(constructor), f", mesh={ranks}, mesh_dim_names={DIMENSIONS}"
            f"\n    )\nelse:\n    {mesh} = ", single,
        )
    )  # fmt: skip
    plan.arguments["mesh"] = (mesh,)
    return Outcome(
        Level.REVIEW,
        "the process group becomes a mesh; FSDP1 takes a pair as (shard, replicate), a mesh is (replicate, shard), and one "
        "whose shard groups are not ranks in a row is refused",
    )


@translates("device_mesh")
def device_mesh(constructor: Constructor, argument: Argument) -> Outcome:
    """The mesh is the same one; FSDP2 wants names for its dimensions where there are two."""
    if argument.is_none:
        return Outcome(Level.SAFE, "no mesh: the default one over all ranks")
    group = constructor.arguments.get("process_group")
    if group is not None and not group.is_none:
        return Outcome(
            Level.MANUAL,
            "process_group is given as well: FSDP1 takes one of the two, and which one it gets shows when the code runs",
            "Make one mesh before the wrap, DeviceMesh.from_group(group, \"cuda\") where there is none, hand it over as "
            "device_mesh, leave process_group out, and run the tool again.",
            holds=True,
        )
    constructor.plan.arguments["mesh"] = argument.keep()
    level, notes = Level.SAFE, ["mesh takes the device mesh as it is"]
    named, is_seen = name_mesh_dimensions(constructor, argument.values)
    if named or not is_seen:
        level = Level.REVIEW
    notes.extend(f"its dimensions are named at {place}, which FSDP2 requires" for place in named)
    if level is Level.REVIEW and len(notes) == 1:
        notes.append("if it has two dimensions they must be named, replicate first")
    return Outcome(level, "; ".join(notes))


def name_mesh_dimensions(constructor: Constructor, values: Iterable[Value]) -> tuple[list[str], bool]:
    """Names the dimensions of meshes where they are made; says where, and whether every mesh is seen being made."""
    named: list[str] = []
    is_seen = True
    for value in values:
        if isinstance(value, Opaque) and value.name in _MESHES:
            view, call = constructor.program.call_node(value.site)
            if not _has_names(call) and _dimensions(call) != 1:
                named.append(f"{view.path}:{call.lineno}")
                constructor.patches.extend(_name_dimensions(view, call))
        elif not isinstance(value, Constant):
            is_seen = False
    return named, is_seen


def _has_names(call: ast.Call) -> bool:
    return len(call.args) > 2 or any(k.arg == "mesh_dim_names" for k in call.keywords)


def _shape(call: ast.Call) -> ast.expr | None:
    named = next((k.value for k in call.keywords if k.arg == "mesh_shape"), None)
    return call.args[1] if len(call.args) > 1 else named


def _dimensions(call: ast.Call) -> int:
    """Dimensions of the mesh that a call makes, 0 where its shape is not written out."""
    shape = _shape(call)
    return len(shape.elts) if isinstance(shape, (ast.Tuple, ast.List)) else 0


def _name_dimensions(view: FileView, call: ast.Call) -> list[Patch]:
    """Names for the dimensions of a mesh; where their number shows at run time only, the shard dimension comes last."""
    last = call.keywords[-1].value if call.keywords else call.args[-1]
    end = view.source.span(last)[1]
    start = view.source.span(last)[0]
    before = view.source.line_of(start)[: view.source.position(start)[1] - 1]
    joint = ", " if before.strip() else f",\n{before}"
    names: list[Part] = [f"{joint}mesh_dim_names={DIMENSIONS}"]
    patches: list[Patch] = []
    shape = _shape(call)
    if shape is not None and not _dimensions(call):
        kept: Part = view.keep(shape)
        statement = view.statement(call)
        if dotted_path(shape) is None and view.stands_alone(statement):
            kept = view.free_name(call, "mesh_shape")
            line = f"{view.indent(statement)}{kept} = {view.text(shape)}\n"
            patches = [view.insert_before(statement, line, _NAMED), view.replace(shape, kept, _NAMED)]
        names.extend(("[-len(", kept, ") :]"))
    return [*patches, Patch(view.path, end, end, tuple(names), _NAMED)]


_NAMED = "FSDP2 requires named dimensions"


# --- strategies that are chosen at run time -----------------------------------------------------------------


def choose_mesh(constructor: Constructor) -> None:
    """A mesh by the strategy that is chosen at run time, where no argument gives one."""
    if constructor.chosen is None or {*HYBRID, "NO_SHARD"}.isdisjoint(constructor.chosen[1]):
        return
    plan, view = constructor.plan, constructor.view
    given = plan.arguments.get("mesh")
    if given is not None and not _may_be_missing(constructor):
        return
    own = given[0] if given is not None and len(given) == 1 and isinstance(given[0], str) else None
    local = own or view.free_name(constructor.call, "mesh")
    if given is not None and own is None:
        plan.before.append(code(local, " = ", given))
    missing: list[Code] = [code(f"{local} is None")] if given is not None else []
    missing.extend(code(quoted(view, "mesh"), " not in ", view.keep(k.value)) for k, _ in constructor.with_mesh)
    plan.before.append(_by_strategy(constructor, local, missing, "" if given is not None else "None"))
    plan.arguments["mesh"] = (local,)


def _by_strategy(constructor: Constructor, local: str, missing: list[Code], otherwise: str) -> Code:
    """``if`` the strategy is one that replicates: its mesh; each only where it is ``missing``."""
    assert constructor.chosen is not None
    strategy, names = constructor.chosen
    branches: list[tuple[Code, Code]] = []
    hybrid = [name for name in HYBRID if name in names]
    if hybrid:
        listed = f' == "{hybrid[0]}"' if len(hybrid) == 1 else f" in {tuple(hybrid)}".replace("'", '"')
        branches.append((code(strategy, listed), node_mesh(constructor)))
    if "NO_SHARD" in names:
        branches.append((code(strategy, ' == "NO_SHARD"'), replicated_mesh(constructor)))
    guard = code(*(code(" and ", test) if number else test for number, test in enumerate(missing)))
    if len(branches) == 1 and guard:
        branches = [(code(guard, " and ", branches[0][0]), branches[0][1])]
    text: Code = ()
    for number, (test, mesh) in enumerate(branches):
        text = code(text, "\nelif " if number else "if ", test, f":\n    {local} = ", deeper(mesh))
    if len(branches) > 1 and guard:
        text = code("if ", guard, ":\n    ", deeper(text))
    return code(text, f"\nelse:\n    {local} = {otherwise}") if otherwise else text


def _may_be_missing(constructor: Constructor) -> bool:
    """Whether an argument that gives ranks may come without any."""
    group, mesh = (constructor.arguments.get(name) for name in ("process_group", "device_mesh"))
    if mesh is not None and not mesh.is_none:
        return mesh.may_be_none()
    return group is not None and not group.is_none and _is_optional(constructor, group)
