"""Distributed set-up, and saving and loading."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)


def is_dist_avail_and_initialized():
    return dist.is_available() and dist.is_initialized()


def get_rank():
    return dist.get_rank() if is_dist_avail_and_initialized() else 0


def is_main_process():
    return get_rank() == 0


def save_on_master(*args, **kwargs):
    if is_main_process():
        torch.save(*args, **kwargs)


def init_distributed_mode(args):
    args.distributed = "RANK" in os.environ
    args.gpu = int(os.environ.get("LOCAL_RANK", 0))
    args.device = torch.device("cuda", args.gpu) if torch.cuda.is_available() else torch.device("cpu")
    if torch.cuda.is_available():
        torch.cuda.set_device(args.gpu)
    if args.distributed:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def save_model(args, epoch, model_without_ddp, optimizer):
    checkpoint_path = Path(args.output_dir) / f"checkpoint-{epoch}.pth"
    as_plain = {
        "model": get_model_state_dict(
            model_without_ddp, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        ),
        "optimizer": get_optimizer_state_dict(
            model_without_ddp, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        ),
        "epoch": epoch,
    }
    save_on_master(as_plain, checkpoint_path)


def load_model(args, model_without_ddp, optimizer):
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        set_model_state_dict(
            model_without_ddp, checkpoint["model"], options=StateDictOptions(full_state_dict=True)
        )
        set_optimizer_state_dict(
            model_without_ddp,
            optimizer,
            checkpoint["optimizer"],
            options=StateDictOptions(full_state_dict=True),
        )
        args.start_epoch = checkpoint["epoch"] + 1
        if is_main_process():
            print(f"Resume checkpoint {args.resume}")
