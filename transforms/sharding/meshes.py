"""Process groups and meshes: over which ranks a model is sharded, and over which it is repeated."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..analysis.values import Constant, Container, Opaque, Value
from ..findings import Level
from ..rule import Outcome
from ..text.patches import Part, Patch
from ..view import FileView
from .constructor import Argument, Constructor, translates
from .plan import code
from .process_groups import mesh_in_variable
from .strategy import DIMENSIONS, device_type, mesh_of_pair

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
            f"\n    assert {members}({shard}) in {ranks}.tolist(), \"shard groups have to be ranks in a row\""
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
                constructor.patches.append(_name_dimensions(view, call))
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


def _name_dimensions(view: FileView, call: ast.Call) -> Patch:
    """Names for the dimensions of a mesh; where their number shows at run time only, the shard dimension comes last."""
    last = call.keywords[-1].value if call.keywords else call.args[-1]
    end = view.source.span(last)[1]
    shape = _shape(call)
    names: list[Part] = [f", mesh_dim_names={DIMENSIONS}"]
    if shape is not None and not _dimensions(call):
        names.extend(("[-len(", view.keep(shape), ") :]"))
    return Patch(view.path, end, end, tuple(names), "FSDP2 requires named dimensions")
