import contextlib

import torch
import util.misc as misc


def make_batch(epoch, iteration, args):
    generator = torch.Generator().manual_seed(997 * epoch + 13 * iteration + misc.get_rank())
    patches = torch.randn(args.batch_size, 10, 8, generator=generator).cumsum(dim=1)
    mask = torch.rand(args.batch_size, 10, generator=generator) < 0.5
    mask[:, 0] = True
    return patches.to(args.device), mask.to(args.device)


def train_one_epoch(model, optimizer, epoch, args):
    model.train()
    for data_iter_step in range(args.iterations):
        samples, mask = make_batch(epoch, data_iter_step, args)
        update_grad = (data_iter_step + 1) % args.accum_iter == 0
        # skip the gradient all-reduce while accumulating
        my_context = model.no_sync if args.distributed and not update_grad else contextlib.nullcontext
        with my_context():
            loss = model(samples, mask)
            loss_value = loss.item()
            (loss / args.accum_iter).backward()
        if update_grad:
            optimizer.step()
            optimizer.zero_grad()
        if misc.is_main_process():
            print(f"Epoch [{epoch}] iteration {data_iter_step} loss {loss_value!r}")
