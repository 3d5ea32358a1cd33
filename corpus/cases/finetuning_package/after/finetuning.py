import argparse
import os

import torch
import torch.distributed as dist
import torch.optim as optim
from finetune.checkpoint_handler import load_model_and_optimizer_sharded, load_model_checkpoint
from finetune.configs import fsdp_config as FSDP_CONFIG
from finetune.configs import train_config as TRAIN_CONFIG
from finetune.model import CausalLM
from finetune.policies import apply_fsdp_checkpointing, get_policies
from finetune.train_utils import setup, train
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.optim.lr_scheduler import StepLR


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--enable_fsdp", action="store_true")
    parser.add_argument("--num_steps", type=int, default=6)
    parser.add_argument("--checkpoint_type", default="FULL_STATE_DICT")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


def main():
    args = parse_args()
    train_config, fsdp_config = TRAIN_CONFIG(), FSDP_CONFIG()
    train_config.enable_fsdp = args.enable_fsdp
    train_config.num_steps = args.num_steps
    fsdp_config.checkpoint_type = args.checkpoint_type
    os.makedirs(train_config.output_dir, exist_ok=True)

    rank = 0
    if train_config.enable_fsdp:
        setup()
        rank = dist.get_rank()
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    # Set the seed for reproducibility
    torch.manual_seed(train_config.seed)
    model = CausalLM()
    if args.resume and fsdp_config.checkpoint_type == "FULL_STATE_DICT":
        load_model_checkpoint(model, rank, train_config)

    # setting up FSDP if enable_fsdp is enabled
    if train_config.enable_fsdp:
        mixed_precision_policy, wrapping_policy = get_policies(train_config)

        if fsdp_config.fsdp_activation_checkpointing:
            apply_fsdp_checkpointing(model)
        reshard_after_forward = {"FULL_SHARD": True, "SHARD_GRAD_OP": False}[fsdp_config.sharding_strategy]
        mp_policy = (mixed_precision_policy if not fsdp_config.pure_bf16 else None) or MixedPrecisionPolicy()
        offload_policy = CPUOffloadPolicy() if fsdp_config.fsdp_cpu_offload else OffloadPolicy()
        for module in reversed(list(model.modules())):
            if isinstance(module, wrapping_policy):
                fully_shard(
                    module,
                    reshard_after_forward=reshard_after_forward,
                    mp_policy=mp_policy,
                    offload_policy=offload_policy,
                )
        fully_shard(model, mp_policy=mp_policy, offload_policy=offload_policy)
    else:
        model.to(device)

    # Initialize the optimizer and learning rate scheduler
    optimizer = optim.AdamW(
        model.parameters(),
        lr=train_config.lr,
        weight_decay=train_config.weight_decay,
    )
    scheduler = StepLR(optimizer, step_size=1, gamma=train_config.gamma)
    if args.resume and fsdp_config.checkpoint_type == "SHARDED_STATE_DICT":
        load_model_and_optimizer_sharded(model, optimizer, rank, train_config)

    train(model, optimizer, scheduler, train_config, fsdp_config, device, rank)

    if train_config.enable_fsdp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
