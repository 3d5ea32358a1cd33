"""Policies by function: lambda_auto_wrap_policy, CustomPolicy, _or_policy and always_wrap_policy."""

from __future__ import annotations

from ..findings import Level
from ..rule import Example, Rule
from ..sharding.policy_definitions import WRAP
from ..sharding.policy_findings import check_definition

RULE = Rule(
    id="FS104",
    title="Policies by function become the function",
    why=(
        "Such a policy asks a function about every module; the loop at the wrap can ask it itself. Many exist only "
        "because FSDP1 wants all parameters of a unit to be trained or frozen alike (adapters): FSDP2 does "
        "not, and one "
        "unit a block is faster."
    ),
    symbols=(
        f"{WRAP}lambda_auto_wrap_policy",
        f"{WRAP}CustomPolicy",
        f"{WRAP}_or_policy",
        f"{WRAP}always_wrap_policy",
        f"{WRAP}_Policy",
        f"{WRAP}ParamExecOrderWrapPolicy",
    ),
    roles=("call", "reference", "base", "annotation", "isinstance"),
    check=check_definition,
    examples=(
        Example(
            before="""\
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import _or_policy, lambda_auto_wrap_policy, transformer_auto_wrap_policy


def adapter_policy(layers):
    def is_adapter(module):
        return not list(module.children()) and getattr(module, "trained", False)

    adapters = functools.partial(lambda_auto_wrap_policy, lambda_fn=is_adapter)
    blocks = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=set(layers))
    return functools.partial(_or_policy, policies=[adapters, blocks])


def shard(model, layers):
    return FSDP(model, auto_wrap_policy=adapter_policy(layers))
""",
            after="""\
from torch.distributed.fsdp import fully_shard


def adapter_policy(layers):
    def is_adapter(module):
        return not list(module.children()) and getattr(module, "trained", False)

    blocks = tuple(layers)
    return lambda module: is_adapter(module) or isinstance(module, blocks)


def shard(model, layers):
    policy = adapter_policy(layers)
    for module in reversed(list(model.modules())):
        if module is not model and policy(module):
            fully_shard(module)
    fully_shard(model)
    return model
""",
        ),
        Example(
            before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import CustomPolicy


def shard(model, names):
    return FSDP(model, auto_wrap_policy=CustomPolicy(lambda m: type(m).__name__ in names))
""",
            after="""\
from torch.distributed.fsdp import fully_shard


def shard(model, names):
    for module in reversed(list(model.modules())):
        if module is not model and type(module).__name__ in names:
            fully_shard(module)
    fully_shard(model)
    return model
""",
        ),
        Example(
            before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import CustomPolicy


def choose(module):
    return {"forward_prefetch": True} if hasattr(module, "experts") else False


def shard(model):
    policy = CustomPolicy(choose)
    return FSDP(model, auto_wrap_policy=policy)
""",
            after="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import CustomPolicy


def choose(module):
    return {"forward_prefetch": True} if hasattr(module, "experts") else False


def shard(model):
    policy = CustomPolicy(choose)
    return FSDP(model, auto_wrap_policy=policy)
""",
            level=Level.MANUAL,
            note="The function answers with arguments for single modules.",
        ),
        Example(
            before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import CustomPolicy


def shard(model, config):
    policy = CustomPolicy(config.choose)
    return FSDP(model, auto_wrap_policy=policy)
""",
            after="""\
from torch.distributed.fsdp import fully_shard


def shard(model, config):
    policy = config.choose
    answers = [(module, policy(module)) for module in model.modules()]
    for module, answer in reversed(answers):
        if answer and module is not model:
            fully_shard(module, **(answer if isinstance(answer, dict) else {}))
    fully_shard(model)
    return model
""",
            level=Level.REVIEW,
            note=(
                "The function is not seen: it may answer with arguments for single modules, and may do more than answer, so it "
                "is asked about every module, the model itself too, as FSDP1 did."
            ),
        ),
    ),
    proof=("callable_policies",),
)
