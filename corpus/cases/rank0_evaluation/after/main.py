import argparse
import logging
import os

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from data import get_data
from model import TwoTowers
from train import evaluate, is_master, train_one_epoch


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--check-every", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--output", default="output")
    return parser.parse_args()


def main():
    args = parse_args()
    args.rank = int(os.environ["RANK"])
    args.local_rank = int(os.environ["LOCAL_RANK"])
    on_cuda = torch.cuda.is_available()
    if on_cuda:
        torch.cuda.set_device(args.local_rank)
    dist.init_process_group("nccl" if on_cuda else "gloo")
    args.device = torch.device("cuda", args.local_rank) if on_cuda else torch.device("cpu")
    logging.basicConfig(level=logging.INFO)
    os.makedirs(args.output, exist_ok=True)
    args.save_logs = is_master(args)

    torch.manual_seed(args.rank)
    model = TwoTowers().to(args.device)
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    data = get_data()

    for epoch in range(args.epochs):
        train_one_epoch(model, optimizer, epoch, args)
        evaluate(model, data, epoch, args)
        dist.barrier()
        model_state_dict = get_model_state_dict(
            model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
        if args.save_logs:
            torch.save({"epoch": epoch, "model": model_state_dict}, os.path.join(args.output, "model.pt"))
        dist.barrier()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
