"""Trains low-rank adapters of a frozen model, sharded with FSDP."""

import argparse
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn import functional as F


class LoRALinear(nn.Module):
    """A frozen linear layer plus a trainable product of two small matrices."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float):
        super().__init__()
        self.base = base
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scaling = alpha / rank
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.lora_a), self.lora_b) * self.scaling


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.value = nn.Linear(dim, dim)
        self.gate = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        h = self.norm(x)
        # running mean of the values, gated
        steps = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=h.dtype)
        mixed = self.value(h).cumsum(dim=1) / steps[:, None]
        return x + self.out(mixed * torch.sigmoid(self.gate(h)))


class LanguageModel(nn.Module):
    def __init__(self, vocab=48, dim=32, depth=2):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def add_adapters(model, rank, alpha):
    for parameter in model.parameters():
        parameter.requires_grad = False
    for layer in model.layers:
        layer.value = LoRALinear(layer.value, rank, alpha)
        layer.out = LoRALinear(layer.out, rank, alpha)


def save_adapters(model, path):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        state = model.state_dict()
    if dist.get_rank() == 0:
        torch.save({name: tensor for name, tensor in state.items() if "lora_" in name}, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--lora-rank", type=int, default=4)
    parser.add_argument("--output", default="adapters.pt")
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)

    torch.manual_seed(11)
    model = LanguageModel()
    add_adapters(model, args.lora_rank, alpha=8.0)

    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Layer}),
        mixed_precision=precision,
        device_id=device,
        use_orig_params=True,
    )

    # only the adapters are trained
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=args.lr)

    for step in range(args.steps):
        generator = torch.Generator().manual_seed(50 * step + rank)
        ids = torch.randint(48, (4, 11), generator=generator).to(device)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step}: loss {loss.item()!r}")

    save_adapters(model, args.output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
