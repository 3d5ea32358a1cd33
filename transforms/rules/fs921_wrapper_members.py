"""FS921: members of DDP and FSDP1 on a model of FSDP2."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..flow.values import Instance, Opaque, Value
from ..queries.file import File
from ..rule import ContractRule, Example

_INSTEAD = {
    "module": "the model is no wrapper: drop .module",
    "_fsdp_wrapped_module": "the model is no wrapper: drop it",
    "no_sync": "use set_requires_gradient_sync",
    "clip_grad_norm_": "use torch.nn.utils.clip_grad_norm_ over its parameters",
    "process_group": "keep the DeviceMesh, and ask that",
    "require_backward_grad_sync": "use set_requires_gradient_sync: setting this does nothing, and every step reduces",
    "require_forward_param_sync": "there is nothing to switch: forward gathers parameters, and buffers are never synchronized",
    "summon_full_params": "read p.full_tensor(), write by set_model_state_dict",
    "set_state_dict_type": "use get_model_state_dict and set_model_state_dict",
    "register_comm_hook": "use set_all_reduce_hook, or reduce_dtype of MixedPrecisionPolicy",
    "join": "let all ranks have the same number of batches",
    "flatten_sharded_optim_state_dict": "use get_optimizer_state_dict",
}
_SILENT = frozenset({"require_backward_grad_sync", "require_forward_param_sync"})


def leftovers(contract: Contract) -> Iterator[Breach]:
    """Uses of members that a model of FSDP2 does not have."""
    for file in contract.files:
        for node in file.nodes(ast.Attribute):
            if node.attr not in _INSTEAD or (isinstance(node.ctx, ast.Store) and node.attr not in _SILENT):
                continue
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                continue
            if contract.sharded(file, node.value) and not _has_own(contract, file, node):
                text = ast.unparse(node.value)
                message = f"{text} is a model of FSDP2, which has no {node.attr}: {_INSTEAD[node.attr]}"
                yield Breach(file, node, message, f"torch.nn.parallel.DistributedDataParallel.{node.attr}", model=node.value)


def _has_own(contract: Contract, file: File, node: ast.Attribute) -> bool:
    """Whether a model has such a member itself, or may have."""
    return any(_may_have(contract, value, node.attr) for value in contract.values(file, node.value))


def _may_have(contract: Contract, value: Value, name: str) -> bool:
    flow = contract.program.flow
    number = flow.ids.get(value)
    if number is not None and (variable := flow.fields.get((number, name))) is not None and flow.values_of(variable):
        return True
    if isinstance(value, Instance):
        bases = flow.external_bases(value.cls)
        is_plain = all(base.startswith(("torch.nn.Module", "builtins.", "abc.", "typing.")) for base in bases)
        return flow.has_member(value.cls, name) or flow.has_member(value.cls, "__getattr__") or not is_plain
    return isinstance(value, Opaque) and name in ("join", "process_group") and not value.name.startswith("torch.")


RULE = ContractRule(
    id="FS921",
    title="members of the old wrappers",
    why="fully_shard wraps nothing: what DDP and FSDP1 added to a model raises there, or is silently without effect.",
    breaches=leftovers,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model, x, is_last):\n"
                "    fully_shard(model)\n"
                "    model.require_backward_grad_sync = is_last\n"
                "    model(x).sum().backward()\n"
            ),
            after=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model, x, is_last):\n"
                "    fully_shard(model)\n"
                "    model.set_requires_gradient_sync(is_last)\n"
                "    model(x).sum().backward()\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
