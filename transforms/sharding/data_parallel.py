"""The DDP constructor, argument by argument: what each adds to the sharding plan, and how sure that is."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from ..analysis.values import Constant, Container, Unknown, Value
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Outcome
from ..training.comm_hooks import reduce_dtype
from ..training.forward_methods import methods_of
from ..view import FileView
from .additions import last_additions
from .constructor import Argument
from .containers import refused_container
from .data_parallel_duties import mesh_of_model, prepare, refused, replicate
from .entries_of_loops import name_entries
from .frozen_behind import name_freezing
from .plan import MODEL, Code, ShardingPlan, code
from .scalars import made_elsewhere

PARAMETERS = ("module", "device_ids", "output_device", "dim", "broadcast_buffers")
"""Parameters of DistributedDataParallel whose position has been the same since torch 1.0."""


@dataclass
class DataParallel:
    """One DDP call with its plan and an outcome for every keyword."""

    migration: Migration
    view: FileView
    call: ast.Call
    group: Group | None
    arguments: dict[str, Argument] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    level: Level = Level.SAFE
    refusal: Outcome | None = None
    """Why the wrap cannot be migrated at all."""
    broadcasts: bool = True
    destination: tuple[Code, ...] = (("src=0",),)
    """Arguments of the broadcast behind the tensor."""

    def __post_init__(self) -> None:
        self.plan = ShardingPlan(self.view, self.call, None)

    @property
    def models(self) -> list[Value]:
        """What the model may be."""
        assert self.plan.model is not None
        values = self.migration.groups.models(self.view.values(self.plan.model))
        raw = self.group.raw if self.group else set()
        return [value for value in values if value in raw] or values


_UNUSED = (
    "a parameter that no rank uses keeps its gradient of None, as under DDP; where ranks use different parameters in one "
    "step, gradients would be lost or mixed up, or ranks wait for each other"
)

Translator = Callable[[DataParallel, Argument], Outcome]


def data_parallel_of(migration: Migration, view: FileView, call: ast.Call, group: Group | None) -> DataParallel:
    """A DDP call, translated (once)."""
    return migration.once("data_parallel", call, lambda: _translate(DataParallel(migration, view, call, group)))


def _translate(ddp: DataParallel) -> DataParallel:
    for name, node in zip(PARAMETERS, ddp.call.args, strict=False):
        if not isinstance(node, ast.Starred):
            ddp.arguments[name] = Argument(name, ddp.view, node)
    for keyword in ddp.call.keywords:
        if keyword.arg is not None:
            ddp.arguments[keyword.arg] = Argument(keyword.arg, ddp.view, keyword.value)
    model = ddp.arguments.pop("module", None)
    if model is None:
        ddp.refusal = refused("the call does not say which model it wraps")
        return ddp
    ddp.plan.model = model.node
    ddp.refusal = refused_container(ddp.models)
    if ddp.refusal is not None:
        return ddp
    maker = made_elsewhere(ddp.migration, ddp.models)
    if maker:
        ddp.refusal = refused(
            f"{maker} makes a model with a parameter without dimensions, which fully_shard refuses, and its code is not here",
            "Give that parameter one dimension behind the call (model.logit_scale = nn.Parameter(model.logit_scale.detach()"
            ".reshape(1))) and look at what reads it; or leave it out with ignored_params= (torch 2.7) and reduce its "
            "gradient by hand on every step.",
        )
        return ddp
    for name, argument in ddp.arguments.items():
        ddp.outcomes[name] = _TRANSLATORS.get(name, _unknown)(ddp, argument)
    dtype = reduce_dtype(ddp.migration, ddp.group)
    if dtype is not None:
        policy = ddp.plan.name("torch.distributed.fsdp.MixedPrecisionPolicy")
        ddp.plan.arguments["mp_policy"] = (f"{policy}(reduce_dtype={ddp.plan.name(dtype)})",)
    replicate(ddp)
    mesh_of_model(ddp)
    prepare(ddp)
    name_entries(ddp)
    name_freezing(ddp)
    for method in methods_of(ddp.migration, ddp.group, ddp.call):
        register = ddp.plan.name("torch.distributed.fsdp.register_fsdp_forward_method")
        ddp.plan.after.append(code(register, "(", MODEL, f', "{method}")'))
    return ddp


# --- arguments ----------------------------------------------------------------------------------------------


def _dropped(meaning: str) -> Translator:
    return lambda ddp, argument: Outcome(Level.SAFE, f"{argument.name} goes: {meaning}")


def _device_ids(ddp: DataParallel, argument: Argument) -> Outcome:
    outcome = Outcome(Level.SAFE, "device_ids goes: fully_shard takes the current device")
    if argument.is_none or _sets_device(ddp.migration):
        return outcome
    node = argument.node
    one = node.elts[0] if isinstance(node, (ast.List, ast.Tuple)) and len(node.elts) == 1 else None
    outcome.level = Level.REVIEW
    outcome.message += ", and nothing in this repository sets it"
    if one is None or "current_device" in argument.view.text(one):
        outcome.message += "; torch.cuda.set_device has to run before"
        return outcome
    ddp.plan.before.append(
        code(ddp.plan.name("torch.cuda.set_device"), "(", argument.view.keep(one), ")")
    )
    outcome.message += ": torch.cuda.set_device comes before it"
    return outcome


def _sets_device(migration: Migration) -> bool:
    return any(
        call.method in ("set_device", "set_device_index") for file in migration.program.files for call in file.calls
    )


def _find_unused(ddp: DataParallel, argument: Argument) -> Outcome:
    if argument.constant() is False or argument.is_none:
        return Outcome(Level.SAFE, "find_unused_parameters=False goes: it is the default")
    setter = "model.set_reduce_scatter_unused_params(True)"
    return Outcome(
        Level.REVIEW,
        f"find_unused_parameters goes: {_UNUSED}",
        f"If ranks use different parameters in one step, call {setter} (torch 2.13); it gives parameters that no rank "
        "uses zero gradients, on which weight decay and momentum act, so freeze those."
    )  # fmt: skip


def _broadcast_buffers(ddp: DataParallel, argument: Argument) -> Outcome:
    if argument.constant() is False:
        return Outcome(Level.SAFE, f"{argument.name}=False goes: FSDP2 does not touch buffers")
    return Outcome(Level.SAFE, f"{argument.name} goes; what it did is written out where the model may need it")


def _init_sync(ddp: DataParallel, argument: Argument) -> Outcome:
    constant = argument.constant()
    ddp.broadcasts = constant is not False
    if constant in (True, False):
        done = "the broadcast is written out" if constant else "nothing is broadcast, as before"
        return Outcome(Level.SAFE, f"init_sync goes: {done}")
    return Outcome(Level.REVIEW, "init_sync goes: parameters and buffers are broadcast in any case")


def _process_group(ddp: DataParallel, argument: Argument) -> Outcome:
    if argument.is_none:
        return Outcome(Level.SAFE, "process_group=None goes: all ranks are the default")
    from_group = ddp.plan.name("torch.distributed.device_mesh.DeviceMesh")
    mesh = code(from_group, ".from_group(", argument.keep(), ", next(", MODEL, ".parameters()).device.type)")
    if argument.may_be_none():
        mesh = code(mesh, " if ", argument.keep(), " is not None else None")
    ddp.plan.arguments["mesh"] = mesh
    ddp.destination = (code("group=", argument.keep()), ("group_src=0",))
    return Outcome(Level.REVIEW, "process_group becomes a mesh made from it")


def _device_mesh(ddp: DataParallel, argument: Argument) -> Outcome:
    if argument.is_none:
        return Outcome(Level.SAFE, "device_mesh=None goes")
    ddp.plan.arguments["mesh"] = argument.keep()
    ddp.destination = (code("group=", argument.keep(), ".get_group()"), ("group_src=0",))
    return Outcome(Level.SAFE, "device_mesh becomes the mesh of fully_shard")


def _mixed_precision(ddp: DataParallel, argument: Argument) -> Outcome:
    if argument.is_none:
        return Outcome(Level.SAFE, "no mixed precision")
    ddp.refusal = refused(
        "DDP's private mixed_precision casts parameters by rules of its own",
        "Write mp_policy=MixedPrecisionPolicy(param_dtype=…, reduce_dtype=…) in the fully_shard calls instead.",
    )
    return ddp.refusal


def _delayed(ddp: DataParallel, argument: Argument) -> Outcome:
    if argument.is_none:
        return Outcome(Level.SAFE, f"{argument.name}=None goes")
    ddp.refusal = refused(f"{argument.name} reduces some gradients by hand, which FSDP2 cannot be told to leave out")
    return ddp.refusal


def _unknown(ddp: DataParallel, argument: Argument) -> Outcome:
    ddp.refusal = refused(f"{argument.name} is not an argument of DDP in torch 1.12 to 2.13")
    return ddp.refusal


_TRANSLATORS: dict[str, Translator] = {
    "device_ids": _device_ids,
    "output_device": _dropped("outputs stay where the model computes them"),
    "dim": _dropped("one device per process, so no batch is scattered"),
    "broadcast_buffers": _broadcast_buffers,
    "forward_sync_buffers": _broadcast_buffers,
    "find_unused_parameters": _find_unused,
    "skip_all_reduce_unused_params": _find_unused,
    "static_graph": _dropped("FSDP2 needs no promise about the graph"),
    "check_reduction": _dropped("it has done nothing since torch 1.5"),
    "bucket_cap_mb": _dropped("what fully_shard is called on is the bucket"),
    "bucket_cap_mb_list": _dropped("what fully_shard is called on is the bucket"),
    "batched_grad_copy": _dropped("FSDP2 copies the gradients of a group together"),
    "gradient_as_bucket_view": _dropped("gradients are shards of their own"),
    "init_sync": _init_sync,
    "process_group": _process_group,
    "device_mesh": _device_mesh,
    "mixed_precision": _mixed_precision,
    "delay_all_reduce_named_params": _delayed,
    "param_to_hook_all_reduce": _delayed,
}


def spread_outcome(ddp: DataParallel, keyword: ast.keyword) -> Outcome:
    """``**kwargs``: fine where every key that may be in it is one that simply goes."""
    values = ddp.view.values(keyword.value)
    names, known = _keys(ddp.migration, values)
    gone = {name for name in names if _simply_goes(name)}
    listed = ", ".join(sorted(names))
    if known and names == gone:
        what = f"it brings {listed}, which FSDP2 does not have" if listed else "it brings nothing"
        return Outcome(Level.REVIEW if listed else Level.SAFE, f"**{ddp.view.text(keyword.value)} goes: {what}")
    if known:
        ddp.refusal = refused(
            f"**{ddp.view.text(keyword.value)} brings {', '.join(sorted(names - gone))}",
            "Write these arguments out in the call, and run again.",
        )
        return ddp.refusal
    outcome = Outcome(
        Level.REVIEW,
        f"**{ddp.view.text(keyword.value)} goes, and with it DDP arguments that come from outside this repository",
        "process_group needs a mesh, find_unused_parameters set_reduce_scatter_unused_params(True) where ranks use "
        "different parameters; the other arguments have no counterpart and need none.",
    )
    added = [addition for addition in last_additions(ddp.view, keyword.value) if all(map(_simply_goes, addition.names))]
    outcome.patches.extend(ddp.view.delete(addition.statement, "DDP took these arguments") for addition in added)
    here = {name for addition in added for name in addition.names}
    if here:
        outcome.message += f"; those that are put into it here ({', '.join(sorted(here))}) go as well"
    if "find_unused_parameters" in names | here:
        outcome.message += f": without find_unused_parameters {_UNUSED}"
    return outcome


def _simply_goes(name: str) -> bool:
    return name in _TRANSLATORS and name not in (
        "process_group", "device_mesh", "mixed_precision", "delay_all_reduce_named_params", "param_to_hook_all_reduce",
        "init_sync",
    )  # fmt: skip


def _keys(migration: Migration, values: list[Value]) -> tuple[set[str], bool]:
    """Keys that dictionaries may hold, and whether these are all."""
    flow = migration.program.flow
    names: set[str] = set()
    known = bool(values)
    for value in values:
        if isinstance(value, Constant) and value.value is None:
            continue
        if not isinstance(value, Container):
            known = False
            continue
        number = flow.ids.get(value)
        for (owner, name), variable in list(flow.fields.items()):
            if owner != number:
                continue
            if name in ("[any]", "[*]", "**"):
                held = flow.values_of(variable)
                if name == "**":
                    inner, all_of_them = _keys(migration, [v for v in held if v != value])
                    names |= inner
                    known = known and (all_of_them or not held)
                elif name == "[*]":
                    known = known and not any(isinstance(v, Unknown) for v in held)
            elif flow.values_of(variable):
                names.add(name.strip("[]"))
    return names, known
