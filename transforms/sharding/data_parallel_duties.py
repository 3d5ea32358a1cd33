"""What DDP does by itself around the model: broadcasts, devices, and whole parameters on every rank."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..findings import Level
from ..migration import Migration
from ..rule import Outcome
from ..training.conditions import conditions_of
from ..training.passes import called_name
from .changing_buffers import buffers_of
from .model_code import block_classes
from .plan import MODEL, code, length

if TYPE_CHECKING:
    from .data_parallel import DataParallel

_WIDTH = 100
REPLICATE = "torch.distributed._composable.replicate_with_fsdp.replicate"


def refused(message: str, advice: str = "") -> Outcome:
    """A wrap that is left alone, and with it its group."""
    return Outcome(Level.MANUAL, message, advice, holds=True)


def replicate(ddp: DataParallel) -> None:
    """``--ddp replicate``: parameters stay whole on every rank."""
    if ddp.migration.options.ddp != "replicate":
        return
    if ddp.migration.torch_has(2, 9):
        ddp.plan.function = REPLICATE
        return
    if "mesh" in ddp.plan.arguments:
        ddp.refusal = refused(
            "before torch 2.9 replicating over a process group of its own takes a mesh of (ranks, 1) over its ranks",
            'Make it with init_device_mesh(…, mesh_dim_names=("replicate", "shard")), or target torch 2.9.',
        )
        return
    init = ddp.plan.name("torch.distributed.device_mesh.init_device_mesh")
    size = ddp.plan.name("torch.distributed.get_world_size")
    shape = f'({size}(), 1), mesh_dim_names=("replicate", "shard")'
    ddp.plan.arguments["mesh"] = code(init, "(\n    next(", MODEL, f".parameters()).device.type, {shape}\n)")
    ddp.notes.append("replicated over a (ranks, 1) mesh")


def mesh_of_model(ddp: DataParallel) -> None:
    """A model that DDP keeps on the CPU: the default mesh would take the accelerators of the host."""
    devices = ddp.arguments.get("device_ids")
    if "mesh" in ddp.plan.arguments or not (devices.is_none if devices is not None else _only_gloo(ddp.migration)):
        return
    init = ddp.plan.name("torch.distributed.device_mesh.init_device_mesh")
    size = ddp.plan.name("torch.distributed.get_world_size")
    arguments = code("next(", MODEL, f".parameters()).device.type, ({size}(),)")
    mesh = code(init, "(", arguments, ")")
    column = len(ddp.view.indent(ddp.call)) + len("    mesh=,")
    is_long = column + length(ddp.view, mesh) > _WIDTH
    ddp.plan.arguments["mesh"] = code(init, "(\n    ", arguments, "\n)") if is_long else mesh
    ddp.notes.append("the mesh is one of the model's own device")


def _only_gloo(migration: Migration) -> bool:
    """Whether every process group of the repository is one of gloo, by a constant."""

    def find() -> bool:
        backends: list[object] = []
        for view in migration.views():
            for node in view.nodes(ast.Call):
                if called_name(node) == "init_process_group":
                    named = next((k.value for k in node.keywords if k.arg == "backend"), None)
                    given = node.args[0] if node.args else named
                    backends.append(given.value if isinstance(given, ast.Constant) else None)
        return bool(backends) and all(backend == "gloo" for backend in backends)

    return migration.once("only gloo", None, find)


def prepare(ddp: DataParallel) -> None:
    """DDP's own broadcasts: of everything when it wraps, of the buffers before every forward."""
    plan = ddp.plan
    function = plan.name("torch.distributed.broadcast") if ddp.broadcasts else ""
    arguments = code(*(code(", ", argument) for argument in ddp.destination))
    tensor = ddp.view.free_name(ddp.call, "tensor")
    if ddp.broadcasts:
        loop = code(f"for {tensor} in [*", MODEL, ".parameters(), *", MODEL, ".buffers()]:\n    ")
        plan.before.append(code(loop, f"{function}({tensor}.detach()", arguments, ")"))
        ddp.notes.append("parameters and buffers of rank 0 are broadcast before, as DDP did")
    if not _syncs_buffers(ddp):
        return
    buffers = buffers_of(ddp.migration, ddp.models)
    if not buffers.changes and not buffers.unseen:
        return
    if _converts_batch_norm(ddp):
        if buffers.are_unclear:
            ddp.level = Level.REVIEW
            ddp.notes.append(
                "SyncBatchNorm keeps its buffers equal by itself, and no others are broadcast before a forward any more; the "
                f"code of the model is not all seen{buffers.what_is_unseen}, so look whether training changes any"
            )
        return
    function = plan.name("torch.distributed.broadcast")
    hook = ddp.view.free_name(ddp.call, "broadcast_buffers")
    group = ddp.destination[0] if len(ddp.destination) > 1 else None
    # as a default it is evaluated here, also where a loop around changes what it is made of
    head = code(f"\ndef {hook}(module, inputs", *((", ", group) if group else ()), "):\n")
    target = "group=group, group_src=0" if group else "src=0"
    body = f"    for buffer in module.buffers():\n        {function}(buffer, {target})\n"
    plan.after += code(head, body), code(MODEL, f".register_forward_pre_hook({hook})")
    if buffers.are_unclear:
        ddp.level = Level.REVIEW
        ddp.notes.append(
            f"the code of the model is not all seen{buffers.what_is_unseen}, so a hook broadcasts its buffers before every "
            "forward, as DDP did; take it out if training changes none of them"
        )
    else:
        ddp.notes.append("a hook broadcasts the buffers, which training changes, before every forward, as DDP did")


def _syncs_buffers(ddp: DataParallel) -> bool:
    return not any(
        name in ddp.arguments and ddp.arguments[name].constant() is False
        for name in ("broadcast_buffers", "forward_sync_buffers")
    )


def _converts_batch_norm(ddp: DataParallel) -> bool:
    """Whether the model's BatchNorm has become SyncBatchNorm wherever it is wrapped: all ranks agree by themselves."""
    view = ddp.view
    scope = view.function(ddp.call) or view.tree
    certain = conditions_of(view, ddp.call)
    return any(
        isinstance(node, ast.Call) and called_name(node) == "convert_sync_batchnorm"
        and node.lineno <= ddp.call.lineno and view.function(node) is view.function(ddp.call)
        and conditions_of(view, node) <= certain
        for node in ast.walk(scope)
    )  # fmt: skip


def unit_advice(ddp: DataParallel) -> str:
    """How to gather one block at a time instead of the whole model."""
    names = block_classes(ddp.migration, ddp.models)
    if not names:
        return ""
    classes = names[0] if len(names) == 1 else f"({', '.join(names)})"
    return (
        "All parameters are gathered at once, as DDP kept them. To gather block by block, put before "
        "fully_shard(model): "
        f"for module in reversed(list(model.modules())): if isinstance(module, {classes}): fully_shard(module). "
        "Numbers do not depend on it, memory does."
    )
