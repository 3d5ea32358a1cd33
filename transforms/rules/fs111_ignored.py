"""ignored_modules, ignored_states, ignored_parameters: a set of parameters for every fully_shard call."""

from __future__ import annotations

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..rule import Example, Rule
from ..sharding.constructor import check_keyword

_BEFORE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    return FSDP(model, ignored_modules=[model.frozen])
"""

_MAYBE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, config):
    model = FSDP(model, ignored_modules=config["ignored_modules"])
    return model
"""
_RAISING = """\
from torch.distributed.fsdp import fully_shard


def shard(model, config):
    ignored_params = {
        parameter for ignored in config["ignored_modules"] or () for parameter in ignored.parameters()
    }
    ignoring = {"ignored_params": ignored_params} if ignored_params else {}
    fully_shard(model, **ignoring)
    return model
"""

RULE = Rule(
    id="FS111",
    title="Ignored modules and parameters",
    why=(
        "fully_shard takes the parameters themselves, as a set, in every call, from torch 2.7. Ignored parameters stay "
        "plain tensors: clip_grad_norm_ over plain and sharded ones together raises, and fused optimizers want a group "
        "for each kind. Their gradients are not averaged, in FSDP1 and in FSDP2."
    ),
    symbols=(f"{FSDP1}(ignored_modules=)", f"{FSDP1}(ignored_states=)", f"{FSDP1}(ignored_parameters=)"),
    check=check_keyword,
    examples=(
        Example(before=_BEFORE, after=_BEFORE, level=Level.MANUAL, note="With torch 2.6 as target."),
        Example(
            before=_MAYBE,
            after=_RAISING,
            level=Level.REVIEW,
            note="Where nothing may be ignored: torch 2.6 raises only where something is.",
        ),
    ),
)
