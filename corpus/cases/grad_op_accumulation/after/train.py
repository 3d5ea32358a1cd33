"""Byte-level language model with FSDP and gradient accumulation."""

import os
from argparse import ArgumentParser, Namespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

TEXT = b"the quick brown fox jumps over the lazy dog and runs away from the quick brown bear. " * 12


class GRULayer(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.gates = nn.Linear(dim, 2 * dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z, h = self.gates(self.norm(x)).chunk(2, dim=-1)
        z = torch.sigmoid(z)
        state, states = torch.zeros_like(h[:, 0]), []
        for t in range(x.shape[1]):
            state = (1 - z[:, t]) * state + z[:, t] * h[:, t]
            states.append(state)
        return x + torch.stack(states, dim=1)


class ByteModel(nn.Module):
    def __init__(self, dim: int = 24, depth: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, dim)
        self.layers = nn.Sequential(*(GRULayer(dim) for _ in range(depth)))
        self.head = nn.Linear(dim, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(x)))


def wrap(model: nn.Module, device: torch.device) -> nn.Module:
    for module in reversed(list(model.modules())):
        if isinstance(module, GRULayer):
            fully_shard(module, reshard_after_forward=False)
    fully_shard(model, reshard_after_forward=False)
    return model


def batches(args: Namespace, device: torch.device):
    data = torch.tensor(list(TEXT))
    generator = torch.Generator().manual_seed(dist.get_rank())
    while True:
        starts = torch.randint(len(data) - args.length - 1, (args.batch_size,), generator=generator).tolist()
        window = torch.stack([data[s : s + args.length + 1] for s in starts]).to(device)
        yield window[:, :-1], window[:, 1:]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, args: Namespace, device: torch.device) -> None:
    stream = batches(args, device)
    accumulated = 0.0
    for i in range(args.steps * args.accumulate):
        inputs, targets = next(stream)
        model.set_requires_gradient_sync((i + 1) % args.accumulate == 0)
        model.set_reshard_after_backward((i + 1) % args.accumulate == 0)
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) / args.accumulate
        loss.backward()
        accumulated += loss.item()
        if (i + 1) % args.accumulate == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0:
                print(f"update {(i + 1) // args.accumulate}: loss={accumulated!r}")
            accumulated = 0.0


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--accumulate", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--length", type=int, default=12)
    parser.add_argument("--clip", type=float, default=0.5)
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = torch.device("cuda", torch.cuda.current_device())
    else:
        device = torch.device("cpu")
    torch.manual_seed(21)
    model = wrap(ByteModel(), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train(model, optimizer, args, device)

    # without a context FSDP gives the full state dict
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if dist.get_rank() == 0:
        torch.save(state, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
