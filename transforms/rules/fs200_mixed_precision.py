"""mixed_precision: every fully_shard call takes the policy."""

from __future__ import annotations

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..rule import Example, Rule
from ..sharding.constructor import check_keyword

RULE = Rule(
    id="FS200",
    title="mixed_precision becomes mp_policy of every call",
    why=(
        "FSDP1 hands its precision down to all units; fully_shard takes it in each call, and a call without it trains "
        "that unit in float32. By default FSDP1 casts the inputs of the model alone, FSDP2 those of every "
        "unit: where a "
        "unit is given more than its activation, or autocast makes activations float32, units get "
        "cast_forward_inputs=False (with True, float32 inputs are rounded: losses off by 8.5e-4)."
    ),
    symbols=(f"{FSDP1}(mixed_precision=)",),
    check=check_keyword,
    examples=(
        Example(
            before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def forward(self, x):
        return x


class Net(nn.Module):
    pass


model = Net()
model = FSDP(
    model,
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
)
""",
            after="""\
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Block(nn.Module):
    def forward(self, x):
        return x


class Net(nn.Module):
    pass


model = Net()
mp_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for module in reversed(list(model.modules())):
    if isinstance(module, Block):
        fully_shard(module, mp_policy=mp_policy)
fully_shard(model, mp_policy=mp_policy)
""",
        ),
        Example(
            before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def forward(self, x, mask):
        return x


class Net(nn.Module):
    pass


model = Net()
model = FSDP(
    model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=MixedPrecision(param_dtype=torch.bfloat16)
)
""",
            after="""\
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Block(nn.Module):
    def forward(self, x, mask):
        return x


class Net(nn.Module):
    pass


model = Net()
unit_mp_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)
for module in reversed(list(model.modules())):
    if isinstance(module, Block):
        fully_shard(module, mp_policy=unit_mp_policy)
fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
""",
        ),
        Example(
            before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, precision=None):
    return FSDP(model, mixed_precision=precision)
""",
            after="""\
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def shard(model, precision=None):
    mp_policy = precision or MixedPrecisionPolicy()
    fully_shard(model, mp_policy=mp_policy)
    return model
""",
            level=Level.REVIEW,
        ),
    ),
    proof=("finetuning_package", "lora", "hybrid_shard"),
)
