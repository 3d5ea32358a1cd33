"""Other members of the wrappers: what can go, what is the model's own, and what breaks."""

from __future__ import annotations

import ast

from ..analysis.symbols import DDP, FSDP1
from ..analysis.values import Instance, Opaque, Unknown
from ..findings import Level
from ..groups import Wrap
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..text.generated import removed

_PUBLIC = (
    "require_forward_param_sync", "will_sync_module_buffers", "gradient_as_bucket_view", "find_unused_parameters",
    "device_ids", "process_group", "broadcast_buffers", "static_graph", "scatter", "gather", "to_kwargs",
    "mixed_precision", "bucket_bytes_cap", "reducer", "logger", "parameters_to_ignore", "output_device",
)  # fmt: skip
_PRIVATE = frozenset(
    {
        "_set_static_graph", "_sync_params", "_sync_buffers", "_sync_params_and_buffers", "_sync_module_states",
        "_rebuild_buckets", "_module_copies", "_ddp_init_helper", "_get_ddp_logging_data", "_has_rebuilt_buckets",
        "_set_params_and_buffers_to_ignore_for_model", "_set_ddp_runtime_logging_sample_rate", "_lazy_init_ran",
        "_delay_all_reduce_params", "_ddp_params_and_buffers_to_ignore", "_use_replicated_tensor_module",
        "_find_tensors", "_passing_sync_batchnorm_handle", "_check_sync_bufs_pre_fwd", "_pre_forward", "_post_forward",
        "_should_disable_cpp_reducer", "_comm_hooks", "_register_buffer_comm_hook", "_remove_autograd_hooks",
        "_check_default_group", "_distributed_rank", "_sync_final_model", "_match_all_reduce_for_bwd_pass",
        "_check_and_sync_module_buffers", "_update_process_group", "_get_parameters", "_log_and_throw",
    }
)  # fmt: skip
_WITHOUT_EFFECT = ("_set_static_graph", "_set_ddp_runtime_logging_sample_rate")


def check(site: Site, migration: Migration) -> Outcome:
    view, name = site.view, site.member
    if name.startswith("_") and name not in _PRIVATE:
        return Outcome(Level.OK, f"{name} is no member of DDP: it belongs to the model or another object")
    if _may_be_own(site, migration):
        return Outcome(Level.REVIEW, f"{name} may be that of another object here; an FSDP2 model does not have it")
    statement = view.statement(site.node)
    if name in _WITHOUT_EFFECT and isinstance(statement, ast.Expr) and statement.value is site.call:
        outcome = Outcome(Level.REVIEW, f"{name} goes: FSDP2 needs nothing of the kind")
        outcome.patches.append(removed(view, statement, "a method of DDP alone"))
        return outcome
    if name == "process_group" and _is_over_all_ranks(site):
        outcome = Outcome(Level.REVIEW, "the model is divided over all ranks, which are the default group")
        group = migration.use(outcome, view, "torch.distributed.group", site.node)
        outcome.patches.append(view.replace(site.node, f"{group}.WORLD", "the group belonged to the wrapper"))
        return outcome
    return Outcome(
        Level.MANUAL,
        f"{name} is a member of the wrapper, and an FSDP2 model does not have it",
        _ADVICE.get(name, "Look at what it is for: FSDP2 reduces gradients in hooks and keeps no buckets."),
    )


_ADVICE = {
    "process_group": "Keep the group or mesh in a variable of your own: torch.distributed.group.WORLD where the model is "
    "divided over all ranks, mesh.get_group('shard') of a mesh of two dimensions.",
    "device_ids": "Keep the device in a variable of your own.",
    "output_device": "Keep the device in a variable of your own.",
    "find_unused_parameters": "Keep the flag in a variable of your own, if anything else goes by it: fully_shard takes none.",
    "static_graph": "Leave it out: fully_shard takes no such flag.",
    "gradient_as_bucket_view": "Leave it out: gradients of FSDP2 are DTensors, and no views of buckets.",
    "bucket_bytes_cap": "Leave it out: what is reduced together is a unit of fully_shard.",
    "mixed_precision": "Keep the MixedPrecisionPolicy in a variable of your own where the model is sharded.",
    "broadcast_buffers": "Keep the flag in a variable of your own: FSDP2 never touches buffers.",
    "will_sync_module_buffers": "Leave it out: FSDP2 never touches buffers.",
    "parameters_to_ignore": "Keep the set that ignored_params of fully_shard is given (torch 2.7).",
    "to_kwargs": "Move the inputs to the device with .to(device).",
    "scatter": "Move the inputs to the device with .to(device).",
    "gather": "Leave it out: each rank has its own outputs.",
    "_set_params_and_buffers_to_ignore_for_model": "Pass ignored_params={…} to fully_shard (torch 2.7).",
    "_ddp_params_and_buffers_to_ignore": "Pass ignored_params={…} to fully_shard (torch 2.7).",
    "_sync_params_and_buffers": "Broadcast parameters and buffers from rank 0 before fully_shard.",
    "require_forward_param_sync": "Buffers are broadcast in a forward pre-hook, if at all; remove the hook instead.",
}


def _is_over_all_ranks(site: Site) -> bool:
    """Whether every wrap of a model surely takes the default group and divides the model over all of it."""
    node = site.node
    if site.group is None or not site.certain or not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
        return False
    return bool(site.group.wraps) and all(
        wrap.names_wrapper and len(wrap.node.args) == 1 and _keeps_default_group(wrap) for wrap in site.group.wraps
    )


def _keeps_default_group(wrap: Wrap) -> bool:
    given = {keyword.arg: keyword.value for keyword in wrap.node.keywords}
    if None in given or not {"process_group", "device_mesh"}.isdisjoint(given):
        return False
    strategy = given.get("sharding_strategy")
    return strategy is None or wrap.view.external(strategy) in _OVER_ALL_RANKS


_OVER_ALL_RANKS = frozenset(f"torch.distributed.fsdp.ShardingStrategy.{name}" for name in ("FULL_SHARD", "SHARD_GRAD_OP"))


def _may_be_own(site: Site, migration: Migration) -> bool:
    """Whether a receiver may be an object that brings the attribute itself."""
    raw = site.group.raw if site.group else set()
    for value in site.values:
        if isinstance(value, (Opaque, Unknown)) and value not in raw:
            return True
        if isinstance(value, Instance) and value not in raw and _has(migration, value, site.member):
            return True
    return False


def _has(migration: Migration, value: Instance, name: str) -> bool:
    return migration.program.flow.has_member(value.cls, name) or bool(migration.program.attribute(value, name))


_HEAD = """\
import torch
import torch.distributed as dist
import torch.nn as nn
"""
_NET = """
torch.cuda.set_device(local_rank)
net = nn.Linear(8, 8)
"""

RULE = Rule(
    id="FS805",
    title="Members that only the wrappers have",
    why="They belong to a wrapper that is gone: reading one raises, setting one does nothing.",
    symbols=(*(f"{owner}.{name}" for name in _PUBLIC for owner in (DDP, FSDP1)), f"{DDP}._*"),
    roles=("use", "call", "reference"),
    check=check,
    sources=("torch/nn/parallel/distributed.py",),
    examples=(
        Example(
            _HEAD + "from torch.nn.parallel import DistributedDataParallel as DDP\n" + _NET
            + "net = DDP(net)\nnet._set_static_graph()\nstep(net)\n",
            _HEAD + "from torch.distributed.fsdp import fully_shard\n" + _NET
            + "for tensor in [*net.parameters(), *net.buffers()]:\n    dist.broadcast(tensor.detach(), src=0)\n"
            "fully_shard(net)\nstep(net)\n",
            Level.REVIEW,
        ),
        Example(
            _HEAD + "from torch.nn.parallel import DistributedDataParallel as DDP\n" + _NET
            + "net = DDP(net)\ndist.all_reduce(seen, group=net.process_group)\n",
            _HEAD + "from torch.distributed.fsdp import fully_shard\n" + _NET
            + "for tensor in [*net.parameters(), *net.buffers()]:\n    dist.broadcast(tensor.detach(), src=0)\n"
            "fully_shard(net)\ndist.all_reduce(seen, group=dist.group.WORLD)\n",
            Level.REVIEW,
        ),
    ),
)  # fmt: skip
