"""FS901: ranks that all work on the first GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..queries.file import File
from ..rule import ContractRule, Example

_SETS = (
    r"set_device|set_device_index|device_id\s*=|CUDA_VISIBLE_DEVICES|init_device_mesh\(|DeviceMesh\(|accelerat|cuda\.device\(|lightning"
    r"|f[\"'](cuda|xpu|npu)[^\"'\n]*\{|[\"'](cuda|xpu|npu):[\"']\s*\+|device\([\"'](cuda|xpu|npu)[\"'],|\.cuda\((device=)?[^)\s]|deepspeed"
)
"""What gives each rank a device of its own, or may."""


def first_device(contract: Contract) -> Iterator[Breach]:
    """Models that are moved to ``cuda`` where nothing says which one."""
    if not contract.models.calls or contract.program.mentions(_SETS):
        return
    for file, call, function in contract.methods("cuda", "to"):
        if _is_current_device(file, call, function):
            calls = contract.models.of(file, function.value)
            if calls and contract.order.is_before(file, call, calls):
                message = "no rank sets its device: all of them move the model to the first GPU"
                yield Breach(file, call, message, f"torch.nn.Module.{function.attr}", model=function.value)


def _is_current_device(file: File, call: ast.Call, function: ast.Attribute) -> bool:
    """Whether a model is moved to ``cuda`` without a number."""
    given = [*call.args, *(k.value for k in call.keywords)]
    if function.attr == "cuda":
        return not given
    return len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value == "cuda"


RULE = ContractRule(
    id="FS901",
    title="no device per rank",
    why="torchrun starts a process per GPU and says which in LOCAL_RANK; without torch.cuda.set_device all use the first.",
    advice='torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything is put on the GPU',
    breaches=first_device,
    examples=(
        Example(
            before=(
                "import torch.distributed as dist\n"
                "from torch.distributed.fsdp import fully_shard\n\n"
                'dist.init_process_group("nccl")\n'
                "model = build().cuda()\n"
                "fully_shard(model)\n"
            ),
            after=(
                "import os\n\n"
                "import torch\n"
                "import torch.distributed as dist\n"
                "from torch.distributed.fsdp import fully_shard\n\n"
                'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n'
                'dist.init_process_group("nccl")\n'
                "model = build().cuda()\n"
                "fully_shard(model)\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
