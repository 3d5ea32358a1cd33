import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class RotaryBlock(nn.Module):
    def __init__(self, dim, length):
        super().__init__()
        frequencies = 100.0 ** (-torch.arange(0, dim, 2) / dim)
        angles = torch.arange(length)[:, None] * frequencies
        self.register_buffer("cos", angles.cos().repeat_interleave(2, dim=1), persistent=False)
        self.linear = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return x + self.linear(self.norm(x) * self.cos).tanh()


class RotaryNet(nn.Module):
    def __init__(self, vocab=40, dim=16, length=10, depth=2):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(RotaryBlock(dim, length) for _ in range(depth))
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(19)
    model = RotaryNet()
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.to(torch.bfloat16)
    mp_policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.float32,
        cast_forward_inputs=True,
    )
    for module in reversed(list(model.modules())):
        if isinstance(module, RotaryBlock):
            fully_shard(module, mp_policy=mp_policy)
    fully_shard(model, mp_policy=mp_policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    for step in range(6):
        generator = torch.Generator().manual_seed(4 * step + rank)
        tokens = torch.randint(40, (4, 11), generator=generator).to(device)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
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
