import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard
from towers import TwoTowers


def contrast(logits):
    labels = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--load", default=None)
    parser.add_argument("--bfloat16", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)

    torch.manual_seed(41)
    model = TwoTowers().to(device)
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
    if args.load:
        set_model_state_dict(
            model,
            torch.load(args.load, map_location=device),
            options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
        )

    kept = [p for p in model.parameters() if p.ndim < 2]
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    groups = [{"params": kept, "weight_decay": 0.0}, {"params": decayed, "weight_decay": 0.2}]
    optimizer = torch.optim.AdamW(groups, lr=0.02)

    data = torch.Generator().manual_seed(70 + rank)
    for step in range(args.steps):
        images = torch.randn(16, 16, generator=data).to(device)
        texts = torch.randn(16, 10, generator=data).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bfloat16):
            logits, scale = model(images, texts)
            loss = contrast(logits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(15))
        if rank == 0:
            print(f"step {step} loss {loss.item()!r} scale {scale.item()!r}")

    model_state_dict = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if rank == 0:
        torch.save(model_state_dict, "model.pth")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
