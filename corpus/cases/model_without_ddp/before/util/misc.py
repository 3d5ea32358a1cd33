"""Distributed set-up, and saving and loading."""

import os
from pathlib import Path

import torch
import torch.distributed as dist


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
        "model": model_without_ddp.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": epoch,
    }
    save_on_master(as_plain, checkpoint_path)


def load_model(args, model_without_ddp, optimizer):
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        model_without_ddp.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        args.start_epoch = checkpoint["epoch"] + 1
        if is_main_process():
            print(f"Resume checkpoint {args.resume}")
