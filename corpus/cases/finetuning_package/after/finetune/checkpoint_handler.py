from pathlib import Path

import torch
import torch.distributed.checkpoint as dist_cp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

# create singleton saving policies to avoid making over and over
fullstate_save_policy = StateDictOptions(full_state_dict=True, cpu_offload=True)


def save_model_checkpoint(model, rank, cfg):
    """saves the whole model in one file, from rank 0"""
    cpu_state = get_model_state_dict(model, options=fullstate_save_policy)

    if rank == 0:
        save_dir = Path(cfg.output_dir)
        save_dir.mkdir(parents=True, exist_ok=True)
        torch.save(cpu_state, save_dir / "model-final.pt")
        print(f"model checkpoint saved at {save_dir}")


def load_model_checkpoint(model, rank, cfg):
    """loads the whole model, before it is sharded"""
    model.load_state_dict(torch.load(Path(cfg.output_dir) / "model-final.pt", map_location="cpu"))


def save_optimizer_checkpoint(model, optimizer, rank, cfg):
    """saves the state of the optimizer in one file, from rank 0"""
    # pull all sharded optimizer states to rank0 cpu...
    optim_state = get_optimizer_state_dict(
        model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )

    if rank == 0:
        save_dir = Path(cfg.output_dir)
        save_dir.mkdir(parents=True, exist_ok=True)
        torch.save(optim_state, save_dir / "optimizer.pt")


def save_model_and_optimizer_sharded(model, rank, cfg, optim=None):
    """saves model and optimizer, one file per rank"""
    save_dir = Path(cfg.output_dir) / "sharded"
    distributed_writer = FileSystemWriter(save_dir)

    state_dict = {"model": get_model_state_dict(model)}
    if optim is not None:
        state_dict["optim"] = get_optimizer_state_dict(model, optim)

    dist_cp.save(
        state_dict=state_dict,
        storage_writer=distributed_writer,
        planner=DefaultSavePlanner(),
    )

    if rank == 0:
        print(f"sharded checkpoint saved at {save_dir}")


def load_model_and_optimizer_sharded(model, optim, rank, cfg):
    """loads model and optimizer from one file per rank"""
    reader = FileSystemReader(Path(cfg.output_dir) / "sharded")

    checkpoint = {"model": get_model_state_dict(model)}
    dist_cp.load(
        state_dict=checkpoint,
        storage_reader=reader,
    )
    set_model_state_dict(model, checkpoint["model"])

    optim_state = {"optim": get_optimizer_state_dict(model, optim)}
    dist_cp.load(optim_state, storage_reader=reader)
    set_optimizer_state_dict(model, optim, optim_state["optim"])

    if rank == 0:
        print("sharded state loaded")
