"""Classification with FSDP2: gradient norms and an average of the weights, both by hand, as many repositories keep them."""

import argparse
import copy
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class Net(nn.Module):
    def __init__(self, width=12, classes=5):
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, 1)
        self.head = nn.Linear(width, classes)
        self._scale_residuals()

    def _scale_residuals(self):
        for depth, layer in enumerate(self.layers):
            layer.weight.data.div_(math.sqrt(2.0 * (depth + 1)))

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return self.head(self.norm(x) * torch.sigmoid(self.gate(x)))


@torch.no_grad()
def update_average(average, model, decay):
    weights = dict(model.named_parameters())
    for name, weight in average.named_parameters():
        weight.mul_(decay).add_(full(weights[name].data), alpha=1 - decay)


def get_grad_norm(parameters, norm_type=2.0):
    parameters = [p for p in parameters if p.grad is not None]
    if norm_type == math.inf:
        return max(full(p.grad.detach()).abs().max() for p in parameters)
    return torch.norm(torch.stack([full(torch.norm(p.grad.detach(), norm_type)) for p in parameters]), norm_type)


def clip_gradients(model, clip):
    norms = []
    for name, p in model.named_parameters():
        if p.grad is not None:
            param_norm = full(p.grad.data.norm(2))
            norms.append(param_norm.item())
            clip_coef = clip / (param_norm + 1e-6)
            if clip_coef < 1:
                p.grad.data.mul_(clip_coef)
    return norms


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)

    torch.manual_seed(0)
    model = Net().to(device)
    average = copy.deepcopy(model)
    for p in average.parameters():
        p.requires_grad_(False)
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    data = torch.Generator().manual_seed(1 + rank)
    for step in range(args.steps):
        x = torch.randn(16, 8, generator=data).to(device)
        y = torch.randint(0, 5, (16,), generator=data).to(device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        total, largest = get_grad_norm(model.parameters()), get_grad_norm(model.parameters(), math.inf)
        norms = clip_gradients(model, clip=0.5)
        optimizer.step()
        update_average(average, model, decay=0.8)
        if rank == 0:
            print(f"step {step} loss {loss.item()!r} norm {total.item()!r} largest {largest.item()!r} first {norms[0]!r}")

    state = {"model": get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)), "average": average.state_dict()}
    if rank == 0:
        torch.save({**state["model"], **{f"average.{key}": value for key, value in state["average"].items()}}, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
