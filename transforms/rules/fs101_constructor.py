"""The FSDP1 constructor: fully_shard on the units from the leaves up, and on the model itself last."""

from __future__ import annotations

from ..analysis.symbols import FSDP1
from ..rule import Example, Rule
from ..sharding.constructor import check_call

RULE = Rule(
    id="FS101",
    title="FSDP(model, …) becomes fully_shard calls",
    why=(
        "FSDP1 returns a wrapper around the model; fully_shard changes the model in place, one call for each unit, "
        "children before parents, the model itself last. The last call is not optional: parameters outside all units "
        "would never be synchronised, with no error (losses were off by 3.6e-2)."
    ),
    symbols=(FSDP1,),
    roles=("call",),
    check=check_call,
    sources=("https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",),
    examples=(
        Example(
            before="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    pass


class Net(nn.Module):
    pass


model = Net()
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True)
""",
            after="""\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    pass


class Net(nn.Module):
    pass


model = Net()
for module in reversed(list(model.modules())):
    if isinstance(module, Block):
        fully_shard(module)
fully_shard(model)
""",
        ),
        Example(
            before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, build):
        self.model = FSDP(build().cuda())
""",
            after="""\
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, build):
        self.model = build().cuda()
        fully_shard(self.model)
""",
        ),
    ),
    proof=("trainer_class", "trainer_files", "finetuning_package", "hf_llama", "lora"),
)
