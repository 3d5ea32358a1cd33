"""functools.partial(FSDP, …) and other mentions of the class as a value."""

from __future__ import annotations

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..rule import Example, Rule
from ..sharding.factory import check_reference

_HANDED_ON = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

WRAPPERS = {"fsdp": FSDP}
"""

RULE = Rule(
    id="FS113",
    title="Factories of wraps",
    why=(
        "A partial of FSDP is called with a model and gives the wrapped one back; a function that shards and "
        "returns its "
        "argument can stand in its place, and its callers stay as they are. A class that is handed on as a "
        "value may be "
        "called anywhere, with anything."
    ),
    symbols=(FSDP1,),
    roles=("reference",),
    check=check_reference,
    examples=(
        Example(
            before="""\
import functools

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    pass


def shard_all(models):
    wrap = functools.partial(FSDP, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True)
    return [wrap(model) for model in models]
""",
            after="""\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    pass


def shard_all(models):
    def wrap(model):
        for module in reversed(list(model.modules())):
            if module is not model and isinstance(module, Block):
                fully_shard(module)
        fully_shard(model)
        return model

    return [wrap(model) for model in models]
""",
            level=Level.REVIEW,
        ),
        Example(before=_HANDED_ON, after=_HANDED_ON, level=Level.MANUAL),
    ),
)
