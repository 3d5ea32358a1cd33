import argparse

import torch
import torch.distributed as dist
from runner import IterationRunner, Runner
from torch_utils import LOCAL_RANK, RANK


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--by-iterations", action="store_true")
    args = parser.parse_args()

    on_cuda = torch.cuda.is_available()
    if LOCAL_RANK != -1:
        if on_cuda:
            torch.cuda.set_device(LOCAL_RANK)
        dist.init_process_group("nccl" if on_cuda else "gloo")
    device = torch.device("cuda", max(LOCAL_RANK, 0)) if on_cuda else torch.device("cpu")
    torch.manual_seed(1 + RANK)

    runner = IterationRunner(args, device) if args.by_iterations else Runner(args, device)
    runner.train()

    if LOCAL_RANK != -1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
