import os

import torch
import torch.distributed as dist

from .checkpoint_handler import (
    save_model_and_optimizer_sharded,
    save_model_checkpoint,
    save_optimizer_checkpoint,
)


def setup():
    """Starts the process group."""
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def get_batch(step, rank, cfg, device):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    tokens = torch.randint(61, (cfg.batch_size, 13), generator=generator).to(device)
    return tokens[:, :-1], tokens[:, 1:]


def train(model, optimizer, lr_scheduler, train_config, fsdp_config, device, rank):
    """Trains for a number of steps and saves the model and the optimizer."""
    model.train()
    for step in range(train_config.num_steps):
        input_ids, labels = get_batch(step, rank, train_config, device)
        loss = model(input_ids, labels)
        loss.backward()
        if train_config.gradient_clipping and train_config.gradient_clipping_threshold > 0.0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), train_config.gradient_clipping_threshold)
        optimizer.step()
        optimizer.zero_grad()
        lr_scheduler.step()

        loss = loss.detach()
        if train_config.enable_fsdp:
            dist.all_reduce(loss, op=dist.ReduceOp.SUM)
            loss /= dist.get_world_size()
        if rank == 0:
            print(f"step {step} is completed and loss is {loss.item()!r}")

    if train_config.enable_fsdp:
        dist.barrier()
        if fsdp_config.checkpoint_type == "FULL_STATE_DICT":
            save_optimizer_checkpoint(model, optimizer, rank, train_config)
        elif fsdp_config.checkpoint_type == "SHARDED_STATE_DICT":
            save_model_and_optimizer_sharded(model, rank, train_config, optim=optimizer)
        save_model_checkpoint(model, rank, train_config)
        dist.barrier()
