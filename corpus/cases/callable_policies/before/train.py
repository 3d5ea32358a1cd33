import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from policies import get_custom_policy, get_lambda_policy, get_or_policy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Expert(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.frozen = nn.Linear(dim, dim)
        self.adapter = nn.Linear(dim, dim)
        self.norm.requires_grad_(False)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        h = self.norm(x)
        return x + torch.tanh(self.frozen(h) + self.adapter(h))


class Experts(nn.Module):
    def __init__(self, dim=18, depth=3):
        super().__init__()
        self.experts = nn.ModuleList(Expert(dim) for _ in range(depth))
        self.head = nn.Linear(dim, 3)

    def forward(self, x):
        for expert in self.experts:
            x = expert(x)
        return self.head(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", choices=["lambda", "or", "custom"], default="or")
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    if args.policy == "lambda":
        policy = get_lambda_policy()
    elif args.policy == "or":
        policy = get_or_policy(Expert)
    else:
        policy = get_custom_policy()

    torch.manual_seed(4)
    model = FSDP(Experts(), auto_wrap_policy=policy, device_id=device, use_orig_params=True)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)

    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(args.steps):
        inputs = torch.randn(12, 18, generator=generator).to(device)
        targets = inputs[:, :3].argmax(dim=1)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item()!r}")

    state = model.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
