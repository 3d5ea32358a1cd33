"""FS912: work that all ranks have to take part in, behind a test that one rank passes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..queries.file import File
from ..queries.guards import guard_of
from ..queries.one_rank import one_rank_guard
from ..rule import ContractRule, Example

_STATE = "torch.distributed.checkpoint.state_dict"
_STATES = tuple(f"{_STATE}.{verb}_{what}" for verb in ("get", "set") for what in
                ("model_state_dict", "optimizer_state_dict", "state_dict"))  # fmt: skip
_CHECKPOINTS = tuple(f"torch.distributed.checkpoint.{name}" for name in ("save", "load", "async_save"))
_CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.get_total_norm", "torch.nn.utils.clip_grad.clip_grad_norm_")


def guarded(contract: Contract) -> Iterator[Breach]:
    """Collective work that the other ranks never come to."""
    for file, call, symbol, what in _collective(contract):
        guard = one_rank_guard(contract.guards, file, call)
        if guard is None:
            continue
        where = f"line {guard.statement.lineno}" if guard.file is file else f"{guard.file.path}:{guard.statement.lineno}"
        yield Breach(file, call, f"{what}, and only the ranks that pass the test at {where} come to it", symbol)


def _collective(contract: Contract) -> Iterator[tuple[File, ast.Call, str, str]]:
    for file, call, symbol in contract.calls(*_STATES):
        if call.args and contract.sharded(file, call.args[0]):
            yield file, call, symbol, f"{symbol.rpartition('.')[2]} is a collective"
    for file, call, symbol in contract.calls(*_CHECKPOINTS):
        is_of_all = not {k.arg for k in call.keywords} & {"no_dist", "process_group", None}
        if is_of_all and not contract.modes.of(file, call):
            yield file, call, symbol, f"{symbol.rpartition('.')[2]} of a checkpoint is a collective"
    for file, call, symbol in contract.calls(*_CLIPS):
        if call.args and contract.sharded_parts(file, call.args[0], "parameters"):
            yield file, call, symbol, "the norm of sharded gradients is reduced over all ranks"
    for file, call, function in contract.methods("full_tensor"):
        if not call.args and _is_sharded_here(contract, file, call, function.value):
            yield file, call, f"torch.distributed.tensor.DTensor.{function.attr}", "full_tensor gathers from all ranks"
    for file in contract.files:
        for call in file.nodes(ast.Call):
            if _is_in_forward(file, call):
                continue  # whoever calls the model around this is asked
            calls = contract.models.called(file, call) if isinstance(call.func, (ast.Name, ast.Attribute, ast.Subscript)) else ()
            if calls and contract.is_certain(file, call, calls):
                text = ast.unparse(call.func)
                yield file, call, "torch.nn.Module.forward", f"{text} gathers its parameters from all ranks when it is called"
    for file, call, function in contract.methods("generate"):
        if contract.sharded(file, function.value):
            yield file, call, "torch.nn.Module.(method)", "generate runs the sharded model, which gathers from all ranks"


def _is_in_forward(file: File, call: ast.Call) -> bool:
    functions = (a for a in file.ancestors(call) if isinstance(a, ast.FunctionDef))
    return any(function.name == "forward" and file.enclosing_class(function) is not None for function in functions)


def _is_sharded_here(contract: Contract, file: File, call: ast.Call, tensor: ast.expr) -> bool:
    """Whether a tensor is a shard: its model's, or by what is written beside a test of the rank in the same function."""
    if contract.sharded_parts(file, tensor, "parameters", "gradients", "statistic", "state_dict"):
        return True
    return guard_of(file, call) is not None and not contract.modes.of(file, call)


RULE = ContractRule(
    id="FS912",
    title="collectives behind a test of the rank",
    why="Gathering needs every rank: the one that comes to it alone waits for ever, or meets the others' next collective.",
    advice="do it on all ranks, and keep behind the test what prints or writes",
    breaches=guarded,
    examples=(
        Example(
            before=(
                "import torch\n"
                "import torch.distributed as dist\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model, x):\n"
                "    fully_shard(model)\n"
                "    if dist.get_rank() == 0:\n"
                "        print(model(x).mean())\n"
            ),
            after=(
                "import torch\n"
                "import torch.distributed as dist\n"
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model, x):\n"
                "    fully_shard(model)\n"
                "    mean = model(x).mean()\n"
                "    if dist.get_rank() == 0:\n"
                "        print(mean)\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
