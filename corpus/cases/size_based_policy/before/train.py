import functools
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


class Pooler(nn.Module):
    """Attends from one learned query to all positions."""

    def __init__(self, dim, heads=2):
        super().__init__()
        self.query = nn.Parameter(torch.zeros(1, 1, dim))
        self.attention = nn.MultiheadAttention(dim, heads, bias=False, batch_first=True)

    def forward(self, x):
        return self.attention(self.query.expand(len(x), -1, -1), x, x, need_weights=False)[0].squeeze(1)


class Classifier(nn.Module):
    def __init__(self, vocab=50, dim=20, depth=3, classes=4):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim), nn.LayerNorm(dim))
            for _ in range(depth)
        )
        self.pooler = Pooler(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.pooler(x))


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(6)
    model = Classifier().to(device)
    my_auto_wrap_policy = functools.partial(size_based_auto_wrap_policy, min_num_params=1000)
    model = FSDP(model, auto_wrap_policy=my_auto_wrap_policy, device_id=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for step in range(6):
        generator = torch.Generator().manual_seed(2 * step + rank)
        tokens = torch.randint(50, (8, 9), generator=generator).to(device)
        loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item()!r}")

    states = model.state_dict()
    if rank == 0:
        torch.save(states, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
