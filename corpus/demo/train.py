"""Trains a small language model on all processes that torchrun starts.

    torchrun --nproc-per-node 2 train.py
"""

import argparse

import torch
import torch.distributed as dist
from tinylm import checkpoint, parallel
from tinylm.loop import fit
from tinylm.model import TinyLM


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--output", default="weights.pt")
    args = parser.parse_args()

    parallel.start()
    torch.manual_seed(0)
    model = parallel.shard(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    fit(model, optimizer, args.steps, args.accumulate, args.max_norm)
    checkpoint.save(model, args.output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
