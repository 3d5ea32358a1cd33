from pathlib import Path

import torch
import torch.distributed.checkpoint as dist_cp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import (
    FullStateDictConfig,  # general model non-sharded, non-flattened params
    FullyShardedDataParallel as FSDP,
    StateDictType,
)

# create singleton saving policies to avoid making over and over
fullstate_save_policy = FullStateDictConfig(offload_to_cpu=torch.cuda.is_available(), rank0_only=True)


def save_model_checkpoint(model, rank, cfg):
    """saves the whole model in one file, from rank 0"""
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, fullstate_save_policy):
        cpu_state = model.state_dict()

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
    optim_state = FSDP.full_optim_state_dict(model, optimizer)

    if rank == 0:
        save_dir = Path(cfg.output_dir)
        save_dir.mkdir(parents=True, exist_ok=True)
        torch.save(optim_state, save_dir / "optimizer.pt")


def save_model_and_optimizer_sharded(model, rank, cfg, optim=None):
    """saves model and optimizer, one file per rank"""
    save_dir = Path(cfg.output_dir) / "sharded"
    distributed_writer = FileSystemWriter(save_dir)

    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state_dict = {"model": model.state_dict()}
        if optim is not None:
            state_dict["optim"] = FSDP.optim_state_dict(model, optim)

        dist_cp.save_state_dict(
            state_dict=state_dict,
            storage_writer=distributed_writer,
            planner=DefaultSavePlanner(),
        )

    if rank == 0:
        print(f"sharded checkpoint saved at {save_dir}")


def load_model_and_optimizer_sharded(model, optim, rank, cfg):
    """loads model and optimizer from one file per rank"""
    reader = FileSystemReader(Path(cfg.output_dir) / "sharded")

    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        checkpoint = {"model": model.state_dict()}
        dist_cp.load_state_dict(
            state_dict=checkpoint,
            storage_reader=reader,
        )
        model.load_state_dict(checkpoint["model"])

        optim_state = load_sharded_optimizer_state_dict(
            model_state_dict=checkpoint["model"],
            optimizer_key="optim",
            storage_reader=reader,
        )
        flattened_osd = FSDP.optim_state_dict_to_load(model, optim, optim_state["optim"])
        optim.load_state_dict(flattened_osd)

    if rank == 0:
        print("sharded state loaded")
