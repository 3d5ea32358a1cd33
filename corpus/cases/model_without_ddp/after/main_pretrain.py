import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
import util.misc as misc
from engine_pretrain import train_one_epoch
from models import MaskedAutoencoder


def get_args_parser():
    parser = argparse.ArgumentParser("pre-training", add_help=False)
    parser.add_argument("--batch_size", default=4, type=int)
    parser.add_argument("--epochs", default=2, type=int)
    parser.add_argument("--iterations", default=4, type=int)
    parser.add_argument("--accum_iter", default=2, type=int)
    parser.add_argument("--lr", default=5e-3, type=float)
    parser.add_argument("--output_dir", default="output")
    parser.add_argument("--resume", default="")
    parser.add_argument("--start_epoch", default=0, type=int)
    parser.add_argument("--seed", default=0, type=int)
    return parser


def main(args):
    misc.init_distributed_mode(args)

    # fix the seed for reproducibility
    torch.manual_seed(args.seed + misc.get_rank())

    model = MaskedAutoencoder()
    model.to(args.device)
    model_without_ddp = model
    if args.distributed:
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        fully_shard(model)
        model_without_ddp = model

    optimizer = torch.optim.AdamW(model_without_ddp.parameters(), lr=args.lr, betas=(0.9, 0.95))
    misc.load_model(args=args, model_without_ddp=model_without_ddp, optimizer=optimizer)

    for epoch in range(args.start_epoch, args.epochs):
        train_one_epoch(model, optimizer, epoch, args)
        misc.save_model(args=args, epoch=epoch, model_without_ddp=model_without_ddp, optimizer=optimizer)

    if args.distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    args = get_args_parser().parse_args()
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    main(args)
