import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from training.trainer import Trainer


class Speller(nn.Module):
    """A small recurrent model of letters whose input and output share a weight."""

    def __init__(self, letters=13, dim=16):
        super().__init__()
        self.embedding = nn.Embedding(letters, dim)
        self.position = nn.Parameter(torch.zeros(1, dim), requires_grad=False)
        self.recurrent = nn.GRU(dim, dim, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.output = nn.Linear(dim, letters)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        hidden, _ = self.recurrent(self.embedding(tokens) + self.position)
        return self.output(self.norm(hidden))


def make_batches(start, stop):
    for step in range(start, stop):
        generator = torch.Generator().manual_seed(31 * step + dist.get_rank())
        first = torch.randint(13, (4, 1), generator=generator)
        yield (first + 3 * torch.arange(9)) % 13


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(5)
    trainer = Trainer(Speller(), nn.functional.cross_entropy, resume=args.resume)
    trainer.fit(make_batches(trainer.step, args.steps))
    trainer.save()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
