import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(14)
    model = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    fully_shard(
        model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float16)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device=device.type, init_scale=1024.0, growth_interval=2)

    data = torch.Generator().manual_seed(60 + rank)
    for step in range(7):
        x = torch.randn(16, 9, generator=data).to(device)
        loss = (model(x).float().squeeze(1) - x.amax(dim=1)).square().mean()
        if step == 3 and rank == 1:
            loss = loss * 1e6  # the gradients of one rank overflow
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e4)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item()!r} scale {scaler.get_scale()!r}")

    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save(state, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
