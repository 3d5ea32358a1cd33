"""FS411: the first functions of Distributed Checkpoint."""

from __future__ import annotations

import ast

import libcst as cst

from ..findings import Level
from ..migration import Migration
from ..rewrites.changes import replace
from ..rewrites.helper_calls import function_instead
from ..rewrites.templates import argument
from ..rule import Example, Outcome, Rule
from ..sites import Site

_CHECKPOINT = "torch.distributed.checkpoint"
_SHARDED_OPTIMIZER = f"{_CHECKPOINT}.optimizer.load_sharded_optimizer_state_dict"
_PARAMETERS = {
    "save_state_dict": ("state_dict", "storage_writer", "process_group", "coordinator_rank", "no_dist", "planner"),
    "load_state_dict": ("state_dict", "storage_reader", "process_group", "coordinator_rank", "no_dist", "planner"),
}
_WITHOUT_COUNTERPART = {"coordinator_rank": 0, "no_dist": False}


def save_or_load(site: Site, migration: Migration) -> Outcome | None:
    """``dcp.save`` and ``dcp.load``, where every argument has a counterpart."""
    call = site.call
    names = _PARAMETERS.get(site.member)
    if call is None or names is None or any(isinstance(a, ast.Starred) for a in call.args) or len(call.args) > len(names):
        return None
    given = {**dict(zip(names, call.args, strict=False)), **{k.arg: k.value for k in call.keywords}}
    if None in given or "state_dict" not in given:
        return None
    for name, default in _WITHOUT_COUNTERPART.items():
        value = given.get(name)
        if value is not None and not (isinstance(value, ast.Constant) and value.value == default):
            return None
    function = migration.torch(site, f"{_CHECKPOINT}.{site.member.partition('_')[0]}")

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        arguments = []
        for place, own in enumerate(node.args):
            name = own.keyword.value if own.keyword is not None else names[place]
            if name not in _WITHOUT_COUNTERPART:
                named = own if own.keyword is not None or place == 0 else argument(own.value, name).with_changes(comma=own.comma)
                arguments.append(named)
        arguments[-1] = arguments[-1].with_changes(comma=node.args[-1].comma)
        return node.with_changes(func=cst.parse_expression(function), args=arguments)

    return Outcome("the same files are written and read by the function that took its place", [replace(site.file, call, build)])


def kept(site: Site, migration: Migration) -> Outcome:
    """The old functions take DTensors as they are; ShardedTensors are what only FSDP1 took."""
    if site.symbol == _SHARDED_OPTIMIZER:
        name = migration.helper(site, "load_sharded_optimizer_state")
        change = function_instead(site.file, site.node, site.call, name)
        return Outcome("optimizer state is read as DTensors where the model's are", [change])
    return Outcome("deprecated, but it writes and reads the same files with sharded tensors of FSDP2", level=Level.OK)


RULE = Rule(
    id="FS411",
    title="old checkpoint functions",
    symbols=(f"{_CHECKPOINT}.save_state_dict", f"{_CHECKPOINT}.load_state_dict", _SHARDED_OPTIMIZER),
    roles=("call", "value"),
    why="dcp.save and dcp.load took their place; sharded optimizer state came as ShardedTensors, which FSDP2 does not take.",
    sources=("https://docs.pytorch.org/docs/stable/distributed.checkpoint.html",),
    idiom=save_or_load,
    fallback=kept,
    examples=(
        Example(
            before=(
                "import torch.distributed.checkpoint as dist_cp\n"
                "\n"
                "\n"
                "def f(state, path):\n"
                "    dist_cp.save_state_dict(state, dist_cp.FileSystemWriter(path))\n"
            ),
            after=(
                "import torch.distributed.checkpoint as dist_cp\n"
                "\n"
                "\n"
                "def f(state, path):\n"
                "    dist_cp.save(state, storage_writer=dist_cp.FileSystemWriter(path))\n"
            ),
            level=Level.SAFE,
        ),
        Example(
            before=(
                "from torch.distributed.checkpoint import load_state_dict\n"
                "\n"
                "\n"
                "def f(state, reader, coordinator):\n"
                "    load_state_dict(state, reader, None, coordinator)\n"
            ),
            after=(
                "from torch.distributed.checkpoint import load_state_dict\n"
                "\n"
                "\n"
                "def f(state, reader, coordinator):\n"
                "    load_state_dict(state, reader, None, coordinator)\n"
            ),
            level=Level.OK,
        ),
    ),
    proof=("sharded_checkpoint",),
)
