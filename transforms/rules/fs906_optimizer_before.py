"""FS906: an optimizer that is built before `fully_shard`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..flow.values import Container, Optimizer
from ..queries.file import File
from ..rule import ContractRule, Example

_REBINDS = "rebound_parameters"
"""The helper that gives all that keeps parameters the sharded ones."""


def built_too_early(contract: Contract) -> Iterator[Breach]:
    """Optimizers over parameters that are replaced later, and that nobody gives the new ones."""
    if not contract.models.calls:
        return
    for value in list(contract.program.flow.values):
        if not isinstance(value, Optimizer) or value.site < 0:
            continue
        calls = contract.models.of_optimizer(value)
        file, node = contract.program.call_node(value.site)
        # Helpers of the tool give optimizers the new parameters.
        calls = tuple(call for call in calls if not contract.is_of_helpers(call.file, call.node))
        if calls and contract.order.is_before(file, node, calls) and contract.modes.agree(file, node, calls):
            if not any(_gives_new_ones(contract, other, value) for other in contract.files):
                place = f"{calls[0].file.path}:{calls[0].line}" if calls[0].file is not file else f"line {calls[0].line}"
                yield Breach(file, node, f"the optimizer keeps the parameters from before fully_shard at {place}", value.name)


def _gives_new_ones(contract: Contract, file: File, optimizer: Optimizer) -> bool:
    """Whether something in a file puts other parameters into what may be the groups of an optimizer."""
    text = file.source.text
    if ("rebind" in text or _REBINDS in text) and any(_rebinds(call) for call in file.nodes(ast.Call)):
        return True
    written = (n for n in file.nodes(ast.Subscript) if isinstance(n.ctx, ast.Store)) if "params" in text else ()
    return any(_is_group(contract, file, node, optimizer) for node in written)


def _rebinds(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    of_optimizer = any("opt" in ast.unparse(given) or "param" in ast.unparse(given) for given in call.args)
    return name == _REBINDS or ("rebind" in name and of_optimizer)


def _is_group(contract: Contract, file: File, node: ast.Subscript, optimizer: Optimizer) -> bool:
    """Whether ``x["params"] = …``, or an entry of that, is written of what may be a group of an optimizer."""
    while isinstance(node.value, ast.Subscript) and not _is_params(node):
        node = node.value
    if not _is_params(node):
        return False
    flow = contract.program.flow
    group = flow.fields.get((flow.ids[optimizer], "[group]"))
    held = contract.values(file, node.value)
    return not held or any(not isinstance(v, Container) or v.variable == group for v in held)


def _is_params(node: ast.Subscript) -> bool:
    return isinstance(node.slice, ast.Constant) and node.slice.value == "params"


RULE = ContractRule(
    id="FS906",
    title="optimizers built before sharding",
    why="fully_shard replaces parameters: an optimizer that was built before it steps over the old ones, and trains nothing.",
    advice="build the optimizer behind the last call of fully_shard",
    breaches=built_too_early,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model):\n"
                "    optimizer = torch.optim.AdamW(model.parameters())\n"
                "    fully_shard(model)\n"
                "    return model, optimizer\n"
            ),
            after=(
                "import torch\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model):\n"
                "    fully_shard(model)\n"
                "    optimizer = torch.optim.AdamW(model.parameters())\n"
                "    return model, optimizer\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
