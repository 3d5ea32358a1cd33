"""Policies by class: ModuleWrapPolicy and transformer_auto_wrap_policy become the tuple of their classes."""

from __future__ import annotations

from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.policy_findings import check_definition
from ..sites import Site

WRAP = "torch.distributed.fsdp.wrap."


def check(site: Site, migration: Migration) -> Outcome:
    """A definition of its own is rewritten where it stands; one inside a wrap goes with the wrap."""
    return check_definition(site, migration)


RULE = Rule(
    id="FS103",
    title="Policies by class become tuples of classes",
    why=(
        "What is left of such a policy is which classes are units: the loop at the wrap asks isinstance(module, "
        "policy), and a tuple is what isinstance takes."
    ),
    symbols=(f"{WRAP}ModuleWrapPolicy", f"{WRAP}transformer_auto_wrap_policy", f"{WRAP}_module_wrap_policy"),
    roles=("call", "reference", "annotation", "isinstance", "base"),
    check=check,
    examples=(
        Example(
            before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torchvision.models import vit_b_16
from torchvision.models.vision_transformer import EncoderBlock


def policies():
    return ModuleWrapPolicy({EncoderBlock})


model = vit_b_16()
model = FSDP(model, auto_wrap_policy=policies())
""",
            after="""\
from torch.distributed.fsdp import fully_shard
from torchvision.models import vit_b_16
from torchvision.models.vision_transformer import EncoderBlock


def policies():
    return (EncoderBlock,)


model = vit_b_16()
policy = policies()
for module in reversed(list(model.modules())):
    if isinstance(module, policy):
        fully_shard(module)
fully_shard(model)
""",
        ),
    ),
    proof=("finetuning_package", "trainer_files", "hf_llama"),
)
