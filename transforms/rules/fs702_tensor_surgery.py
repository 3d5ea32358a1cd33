"""Work on single parameters and gradients that shards cannot take: collectives, hooks, replaced data."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis import library
from ..analysis.values import Container, Derived, Opaque, Value, Wrapped
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.parameters_beside import parameters_beside
from ..text.spelling import all_imports, imported_names
from ..training.certainty import surely_sharded
from ..training.filled import fill_whole, filled_at
from ..training.local_reads import runs_behind_the_wrap, runs_on_shards, tensor_values
from ..training.made_like import made_like_shards
from ..training.optimizer_sums import sums_of_both
from ..training.parameter_work import of_gradients
from ..training.passes import called_name
from ..training.pieces import written_piece
from ..view import FileView

_COLLECTIVES = frozenset({"all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter"})
_VECTORS = frozenset({"parameters_to_vector", "vector_to_parameters"})
_IN_PLACE = frozenset({"copy_", "add_", "sub_", "mul_", "lerp_", "addcmul_", "addcdiv_"})
_WHOLE = frozenset(f"torch.{name}" for name in ("randn", "rand", "zeros", "ones", "full", "empty", "from_numpy", "load"))

_HOOKS = {"register_hook": "hook", "register_post_accumulate_grad_hook": "accumulated"}
_OF_DICTIONARIES = frozenset({"items", "keys"})
_REFUSED = frozenset(
    {"flatten", "ravel", "view", "reshape", "quantile", "unique", "nonzero", "renorm", "fill_diagonal_", "unbind"}
)
_REDUCTIONS = frozenset({"norm", "sum", "mean", "max", "min", "amax", "amin", "std", "var"})
_AVERAGES = frozenset(
    f"torch.nn.functional.{name}" for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div")
)

_WHAT = {
    "refused": (
        "this operation raises on a DTensor, some only where the rows do not divide evenly among the ranks",
        "Take .full_tensor() first, on every rank; what is to go back into the parameter is distributed again with "
        "distribute_tensor(new, parameter.device_mesh, parameter.placements).",
    ),
    "listed": (
        "torch._foreach_copy_ raises on DTensors",
        "Copy one by one: for target, source in zip(targets, sources): target.copy_(source).",
    ),
    "averaged": (
        "a mean over a parameter's elements taken by a loss function: on a DTensor it is the mean of the ranks' means, "
        "which is another number where the rows do not divide evenly",
        "Write it with arithmetic: (a - b).pow(2).mean().",
    ),
    "loss": (
        "a term of the loss is computed from parameters: behind the forward those of the root are whole tensors and the "
        "numbers stay, but before it, and in units of their own, they are DTensors, and adding the two raises",
        "Compute such a term behind the forward of a model without units of its own, or inside the model's forward; keep "
        "what is compared with parameters as full tensors.",
    ),
    "collective": (
        "a collective on a parameter or gradient: they are DTensors under FSDP2, and torch.distributed refuses them",
        "FSDP2 reduces gradients itself, and sharding is preceded by the broadcast of initial weights: the loop usually "
        "goes. What other ranks have to know is read with .full_tensor().",
    ),
    "hook": (
        "a tensor hook on a parameter never fires under FSDP2, without an error",
        "Register register_post_accumulate_grad_hook after fully_shard (the gradient is a DTensor there), or do the work "
        "between backward and optimizer.step().",
    ),
    "accumulated": (
        "a hook on accumulated gradients: registered before fully_shard it never fires under FSDP2, and behind it it gets "
        "the reduced gradient of this rank's rows, where DDP gave it the gradient of this rank alone",
        "Do the work between backward and optimizer.step(), or register the hook behind fully_shard if it is right for "
        "reduced gradients in DTensors.",
    ),
    "differentiated": (
        "autograd is asked for gradients of parameters: sharded parameters are not in the graph, whose tensors are gathered "
        "ones, and it raises",
        "Call loss.backward() and read p.grad, which is reduced and a DTensor then.",
    ),
    "vector": (
        "parameters are flattened into one vector, which DTensors of different layouts refuse",
        "Gather with get_model_state_dict(full_state_dict=True), work on that, and put it back with set_model_state_dict.",
    ),
    "data": (
        "the data of a parameter is replaced: on a sharded one the assignment changes nothing, and no error says so",
        "Write into the parameter under torch.no_grad(): parameter.copy_(new) where new is computed from sharded parameters, "
        "parameter.copy_(distribute_tensor(new, parameter.device_mesh, parameter.placements)) where it is plain; keep "
        "copies (clone) of what is to be put back. set_model_state_dict does it for whole models.",
    ),
    "grad": (
        "a gradient is replaced by a tensor that is computed from none of the model's: a plain tensor is taken, and the "
        "optimizer's arithmetic with it raises",
        "Assign distribute_tensor(new, parameter.device_mesh, parameter.placements).",
    ),
    "mixed": (
        "a parameter is updated from a tensor that is not one of its model: plain tensors and DTensors do not mix",
        "Shard the other model in the same way (an average: copy before fully_shard, then fully_shard both with "
        "reshard_after_forward=True), so that both sides are DTensors of one layout.",
    ),
    "store": (
        "elements of a parameter, a gradient or a tensor like one are assigned: on a DTensor the assignment may go into a "
        "copy, and nothing raises",
        "Build the new tensor whole (torch.where with a mask made by distribute_tensor), or do it on .full_tensor() and "
        "distribute the result.",
    ),
    "piece": (
        "rows or a part of a parameter, a gradient or a tensor like one are changed in place: of a DTensor that part is a "
        "copy, so nothing changes, and nothing raises",
        "Multiply or add in place by a whole mask: distribute_tensor(mask, parameter.device_mesh, parameter.placements), made "
        "of a plain tensor of the full shape on every rank.",
    ),
    "saved": (
        "parameters are saved as they are: under FSDP2 each is a DTensor with this rank's rows, and a file written by one "
        "rank holds these alone",
        "Take .full_tensor() of each on every rank, or get_model_state_dict(full_state_dict=True), and save that on one.",
    ),
}

_WHAT["summed"] = (
    "an optimizer adds what it computes from parameters and gradients to a plain tensor: with a sharded model the first is "
    "a DTensor, and the sum raises",
    "Add .full_tensor() of it, which all ranks take, and drop what combined the ranks' sums by hand.",
)
_WHAT["made"] = (
    "a tensor is made like a parameter: like a sharded one it is a DTensor, and a model that gets it as an input raises",
    "Make it with torch.zeros(…, dtype=parameter.dtype, device=parameter.device), or with torch.ones, torch.full, torch.empty.",
)
_WHAT["clipped"] = (
    "parameters of a sharded model are clipped together with some that are not: a norm over DTensors and plain tensors raises",
    "Take torch.nn.utils.get_total_norm of the gradients of each kind, with .full_tensor() for the sharded ones, combine the "
    "two, and scale both lists by torch.nn.utils.clip_grads_with_norm_.",
)
_SILENT = frozenset({"hook", "accumulated", "data", "saved", "store", "piece", "averaged", "loss"})


def find(migration: Migration) -> Iterator[Site]:
    """Each such place, with the kind of work as symbol."""
    for view in migration.views():
        for node in view.nodes(ast.Assign, ast.AugAssign, ast.Call):
            for tensor, kind in _work(migration, view, node):
                if kind in _HOOKS.values():
                    yield from _hooks(migration, view, node, tensor, kind)
                    continue
                held = kind in ("saved", "listed", "differentiated")
                values = _held(migration, view, tensor) if held else tensor_values(migration, view, tensor)[1]
                group = migration.groups.of_tensors(values)
                seen = runs_behind_the_wrap if kind in ("saved", "store", "piece") else runs_on_shards
                if group is not None and seen(migration, view, node, group):
                    yield Site(view, node, f"torch.Tensor.surgery.{kind}", "hazard", group, values)
                    break
    for view, node, group in made_like_shards(migration):
        yield Site(view, node, "torch.Tensor.surgery.made", "hazard", group)
    for view in migration.views():
        for node in view.nodes(ast.Call):
            if of_gradients(view, node) and called_name(node) == "clip_grad_norm_" and node.args:
                group = parameters_beside(migration, view.values(node.args[0]))
                if group is not None:
                    yield Site(view, node, "torch.Tensor.surgery.clipped", "hazard", group)
        if any(name == "FullyShardedDataParallel" for _, name in imported_names(all_imports(view))):
            yield from (Site(view, node, "torch.Tensor.surgery.summed", "hazard") for node in sums_of_both(view))


def _hooks(
    migration: Migration, view: FileView, node: ast.AST, tensor: ast.expr, kind: str
) -> Iterator[Site]:
    """A hook on a parameter: DDP's fire wherever they are registered, those of FSDP1 only behind the wrap."""
    values = tuple(v for v in view.values(tensor) if isinstance(v, Derived) and v.kind in library.TENSORS)
    group = migration.groups.of_tensors(values)
    behind = any(isinstance(value.owner, Wrapped) for value in values)
    if group is not None and ("DDP" in group.kinds or (behind and runs_on_shards(migration, view, node, group))):
        yield Site(view, node, f"torch.Tensor.surgery.{kind}", "hazard", group, values)


def _work(
    migration: Migration, view: FileView, node: ast.Assign | ast.AugAssign | ast.Call
) -> Iterator[tuple[ast.expr, str]]:
    """(tensor, kind of work) for one node of a tree."""
    piece = written_piece(view, node) if not isinstance(node, ast.Assign) else None
    if piece is not None:
        yield piece, "piece"
    if isinstance(node, ast.AugAssign):
        return
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute) and target.attr == "data":
                yield target.value, "data"
            elif isinstance(target, ast.Attribute) and target.attr == "grad" and _is_plain(migration, view, node.value):
                yield target.value, "grad"
            elif isinstance(target, ast.Subscript) and not _is_of_dictionary(view, target):
                yield target.value, "store"
        return
    name = view.external(node.func)
    if name is None and isinstance(node.func, ast.Attribute):
        owner = view.external(node.func.value)
        name = f"{owner}.{node.func.attr}" if owner else None
    if name is not None:
        last = name.rpartition(".")[2]
        if name.startswith("torch.distributed.") and last in _COLLECTIVES:
            yield from ((argument, "collective") for argument in node.args[:2])
        elif last in _VECTORS:
            yield from ((argument, "vector") for argument in node.args)
        elif name == "torch.save" and node.args:
            yield node.args[0], "saved"
        elif name == "torch.autograd.grad" and len(node.args) > 1:
            yield node.args[1], "differentiated"
        elif name == "torch._foreach_copy_":
            yield from ((argument, "listed") for argument in node.args[:2])
        elif name in _AVERAGES and node.args and not _has_reduction(node):
            yield from ((argument, "averaged") for argument in node.args[:2])
    elif isinstance(node.func, ast.Attribute):
        if node.func.attr == "backward":
            yield node.func.value, "loss"
        elif node.func.attr in _REFUSED or _changes_a_reduction(node.func):
            yield node.func.value, "refused"
        elif node.func.attr in _HOOKS:
            yield node.func.value, _HOOKS[node.func.attr]
        elif node.func.attr in _IN_PLACE and node.args and not _is_number(node.args[0]):
            yield from _mixing(migration, view, node)


def _is_of_dictionary(view: FileView, target: ast.Subscript) -> bool:
    """Whether an element is one of a dictionary: of the groups of an optimizer, or of the state that it keeps."""
    node, key = target.value, target.slice
    if isinstance(key, ast.JoinedStr) or (isinstance(key, ast.Constant) and isinstance(key.value, str)):
        return True
    if not any(isinstance(value, Container) and value.kind == "dict" for value in view.values(node)):
        return False
    scope = ast.walk(view.function(node) or view.tree)
    asked = (inner.value for inner in scope if isinstance(inner, ast.Attribute) and inner.attr in _OF_DICTIONARIES)
    return any(ast.unparse(owner) == ast.unparse(node) for owner in asked)


def _changes_a_reduction(function: ast.Attribute) -> bool:
    """``weight.norm().clamp_(…)``: what is still to be summed up over the ranks is not changed in place."""
    inner = function.value
    if function.attr not in ("clamp_", "clamp_min_", "clamp_max_", "pow_", "sqrt_") or not isinstance(inner, ast.Call):
        return False
    return isinstance(inner.func, ast.Name) or (isinstance(inner.func, ast.Attribute) and inner.func.attr in _REDUCTIONS)


def _has_reduction(call: ast.Call) -> bool:
    return any(keyword.arg == "reduction" and not _is_mean(keyword.value) for keyword in call.keywords)


def _is_mean(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == "mean"


def _mixing(migration: Migration, view: FileView, node: ast.Call) -> Iterator[tuple[ast.expr, str]]:
    """An in-place update where one side is of the group's model and the other of no sharded one."""
    assert isinstance(node.func, ast.Attribute)
    sides = (node.func.value, node.args[0])
    for side, other in (sides, sides[::-1]):
        group, _ = tensor_values(migration, view, side)
        if group is not None and any(_is_foreign(migration, value, group) for value in view.values(other)):
            yield side, "mixed"
            return


def _is_foreign(migration: Migration, value: Value, group: Group) -> bool:
    """Whether a value is surely a tensor, and neither a number nor one of the group's."""
    if isinstance(value, Derived) and value.kind in library.TENSORS:
        return migration.groups.of_tensors([value]) is not group
    return isinstance(value, Opaque) and value.name in _WHOLE


def _held(migration: Migration, view: FileView, node: ast.expr) -> tuple[Value, ...]:
    """The parameters that a thing to be saved holds, at any depth."""
    parts = node.values if isinstance(node, ast.Dict) else [node]
    held = migration.program.elements([value for part in parts for value in view.values(part)])
    return tuple(v for v in held if isinstance(v, Derived) and v.kind in library.TENSORS)


def _is_plain(migration: Migration, view: FileView, node: ast.expr) -> bool:
    """Whether a new gradient may be anything but None or computed from sharded tensors."""
    if isinstance(node, ast.Constant) and node.value is None:
        return False
    return not surely_sharded(migration, view, node)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or (isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant))


def check(site: Site, migration: Migration) -> Outcome:
    message, advice = _WHAT[site.member]
    filled = filled_at(site.view, site.node) if site.member == "store" else None
    if filled is not None:
        return fill_whole(migration, site, filled)
    if site.member == "loss" and site.group is not None and "FSDP1" not in site.group.kinds:
        return Outcome(Level.REVIEW, message, advice)
    # What raises is loud: it is named and left for a person. The others would pass unnoticed.
    return Outcome(Level.MANUAL, message, advice, holds=site.member in _SILENT)


_REDUCED = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(torch.nn.Linear(2, 2))
model(batch()).sum().backward()
for p in model.parameters():
    dist.all_reduce(p.grad)
"""
_REDUCED_AFTER = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

model = torch.nn.Linear(2, 2)
for tensor in [*model.parameters(), *model.buffers()]:
    dist.broadcast(tensor.detach(), src=0)
fully_shard(model)
model(batch()).sum().backward()
for p in model.parameters():
    dist.all_reduce(p.grad)
"""
_HOOKED = """\
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(build())
for p in model.parameters():
    p.register_hook(lambda grad: grad.clamp(-1, 1))
"""

RULE = Rule(
    id="FS702",
    title="Work on single parameters that shards cannot take",
    why=(
        "After fully_shard a parameter and its gradient are DTensors. Collectives on them raise, hooks on them never "
        "fire, assigning data to them is accepted and changes nothing, and arithmetic with plain tensors raises. A migration "
        "that leaves such a place behind trains differently or stops, so its group waits."
    ),
    symbols=("torch.Tensor.surgery.*",),
    roles=("hazard",),
    check=check,
    sources=("semantics measured on torch 2.13: hooks before and after fully_shard, p.data = plain, dist.all_reduce(p.grad)",),
    examples=(
        Example(before=_REDUCED, after=_REDUCED_AFTER, level=Level.MANUAL, note="the collective raises when it is reached"),
        Example(before=_HOOKED, after=_HOOKED, level=Level.MANUAL),
    ),
    find=find,
)
