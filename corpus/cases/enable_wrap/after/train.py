import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
    apply_activation_checkpointing,
)
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy

from model import Adapted


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", default="fp32")
    args = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(33)
    model = Adapted()
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if args.precision == "bf16" else None
    wrapper_kwargs = dict(
        mp_policy=precision or MixedPrecisionPolicy(),
    )
    model.shard(wrapper_kwargs, device)
    apply_activation_checkpointing(
        model,
        check_fn=lambda m: getattr(m, "save_memory", False)
        and not isinstance(m, CheckpointWrapper),
    )
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)

    data = torch.Generator().manual_seed(rank)
    for step in range(6):
        x = torch.randn(8, 8, generator=data).to(device)
        loss = (model(x).float() - x.cumsum(dim=1)).square().mean()
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item()!r}")

    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save(state, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
