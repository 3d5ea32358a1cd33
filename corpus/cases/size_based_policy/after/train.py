import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


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


def shard_large_modules(module, min_num_params, **kwargs):
    """Shards submodules of at least this many parameters, innermost first; returns how many are in units."""
    sharded = 0
    for child in module.children():
        num_params = sum(parameter.numel() for parameter in child.parameters())
        if num_params < min_num_params or isinstance(child, nn.MultiheadAttention):
            continue
        inner = shard_large_modules(child, min_num_params, **kwargs)
        if num_params - inner >= min_num_params and not isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            fully_shard(child, **kwargs)
            inner = num_params
        sharded += inner
    return sharded


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(6)
    model = Classifier().to(device)
    shard_large_modules(model, min_num_params=1000)
    fully_shard(model)
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

    states = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save(states, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
