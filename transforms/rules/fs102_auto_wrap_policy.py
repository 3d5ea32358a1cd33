"""auto_wrap_policy: the units are picked by a plain loop."""

from __future__ import annotations

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..rule import Example, Rule
from ..sharding.constructor import check_keyword

RULE = Rule(
    id="FS102",
    title="auto_wrap_policy becomes a loop over the modules",
    why=(
        "FSDP2 has no policies: the caller decides which modules are units and calls fully_shard on each, children "
        "before parents. Numbers do not depend on the choice (one unit and one a block are bitwise equal on two "
        "ranks), memory and traffic do, so the loop picks the same modules as the policy."
    ),
    symbols=(f"{FSDP1}(auto_wrap_policy=)",),
    check=check_keyword,
    examples=(
        Example(
            before="""\
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer


def shard(path):
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
    model = LlamaForCausalLM.from_pretrained(path)
    return FSDP(model, auto_wrap_policy=policy)
""",
            after="""\
from torch.distributed.fsdp import fully_shard
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer


def shard(path):
    policy = (LlamaDecoderLayer,)
    model = LlamaForCausalLM.from_pretrained(path)
    for module in reversed(list(model.modules())):
        if isinstance(module, policy):
            fully_shard(module)
    fully_shard(model)
    return model
""",
        ),
        Example(
            before="""\
from somewhere import choose_policy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    return FSDP(model, auto_wrap_policy=choose_policy(model))
""",
            after="""\
from somewhere import choose_policy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    return FSDP(model, auto_wrap_policy=choose_policy(model))
""",
            level=Level.MANUAL,
            note="Nothing is known of a policy from outside.",
        ),
    ),
    proof=(
        "trainer_class",
        "trainer_files",
        "finetuning_package",
        "hf_llama",
        "callable_policies",
        "size_based_policy",
    ),
)
