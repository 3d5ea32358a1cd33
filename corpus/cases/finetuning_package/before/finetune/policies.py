import functools

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from .model import DecoderLayer

# gradients are communicated in bfloat16, too
bfSixteen = MixedPrecision(
    param_dtype=torch.bfloat16,
    reduce_dtype=torch.bfloat16,
    buffer_dtype=torch.bfloat16,
)

non_reentrant_wrapper = functools.partial(
    checkpoint_wrapper,
    checkpoint_impl=CheckpointImpl.NO_REENTRANT,
)


def get_decoder_wrapper():
    """The decoder layer is what is gathered and released as one."""

    decoder_auto_wrap_policy = functools.partial(
        transformer_auto_wrap_policy,
        transformer_layer_cls={
            DecoderLayer,
        },
    )

    return decoder_auto_wrap_policy


def get_policies(cfg):
    """Returns the mixed precision and the wrapping policy for FSDP."""
    mixed_precision_policy = None
    if cfg.mixed_precision:
        mixed_precision_policy = bfSixteen
    wrapping_policy = get_decoder_wrapper()
    return mixed_precision_policy, wrapping_policy


def apply_fsdp_checkpointing(model):
    """Recomputes the activations of each decoder layer in the backward pass."""
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=non_reentrant_wrapper,
        check_fn=lambda submodule: isinstance(submodule, DecoderLayer),
    )
