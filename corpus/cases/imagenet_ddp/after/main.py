import argparse
import os
import shutil

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.parallel
import torch.optim
import torch.utils.data
import torch.utils.data.distributed
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import StepLR

parser = argparse.ArgumentParser(description="PyTorch image training")
parser.add_argument("--epochs", default=2, type=int, metavar="N", help="number of total epochs to run")
parser.add_argument("-b", "--batch-size", default=8, type=int, help="batch size of each process")
parser.add_argument("--lr", default=0.05, type=float, help="initial learning rate")
parser.add_argument("--momentum", default=0.9, type=float)
parser.add_argument("--wd", default=1e-4, type=float, help="weight decay")
parser.add_argument("--resume", default="", type=str, metavar="PATH", help="path to latest checkpoint")
parser.add_argument("--seed", default=17, type=int)

best_acc1 = 0


class ConvNet(nn.Module):
    def __init__(self, num_classes=4):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
        )
        self.fc = nn.Linear(16, num_classes)

    def forward(self, x):
        return self.fc(torch.flatten(self.features(x), 1))


class Blobs(torch.utils.data.Dataset):
    """Images with one bright quadrant, which is the class."""

    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.targets = torch.randint(4, (size,), generator=generator)
        self.images = torch.randn(size, 3, 8, 8, generator=generator)
        for image, target in zip(self.images, self.targets.tolist()):
            row, column = 4 * (target // 2), 4 * (target % 2)
            image[target % 3, row : row + 4, column : column + 4] += 1.0

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.images[index], self.targets[index]


class AverageMeter:
    """Sums up values and their number over all processes."""

    def __init__(self, device):
        self.total = torch.zeros(2, dtype=torch.float64, device=device)

    def update(self, value, n):
        self.total += torch.tensor([value * n, n], dtype=torch.float64, device=self.total.device)

    def all_reduce(self):
        dist.all_reduce(self.total)

    @property
    def avg(self):
        return (self.total[0] / self.total[1]).item()


def main():
    global best_acc1
    args = parser.parse_args()
    dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    args.rank = dist.get_rank()
    args.gpu = int(os.environ["LOCAL_RANK"]) if torch.cuda.is_available() else None
    if args.gpu is not None:
        torch.cuda.set_device(args.gpu)
        device = torch.device("cuda", args.gpu)
    else:
        device = torch.device("cpu")

    # the weights of rank 0 count: DDP broadcasts them
    torch.manual_seed(args.seed + args.rank)
    model = ConvNet().to(device)
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)

    def broadcast_buffers(module, inputs):
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0)

    model.register_forward_pre_hook(broadcast_buffers)

    # define loss function (criterion), optimizer, and learning rate scheduler
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.wd)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)

    start_epoch = 0
    if args.resume:
        # Map model to be loaded to specified single gpu.
        checkpoint = torch.load(args.resume, map_location=device)
        start_epoch = checkpoint["epoch"]
        best_acc1 = checkpoint["best_acc1"]
        set_model_state_dict(
            model,
            checkpoint["state_dict"],
            options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
        )
        set_optimizer_state_dict(
            model, optimizer, checkpoint["optimizer"], options=StateDictOptions(full_state_dict=True)
        )
        scheduler.load_state_dict(checkpoint["scheduler"])

    train_dataset, val_dataset = Blobs(64, seed=1), Blobs(24, seed=2)
    train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset)
    val_sampler = torch.utils.data.distributed.DistributedSampler(val_dataset, shuffle=False)
    train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=args.batch_size, sampler=train_sampler)
    val_loader = torch.utils.data.DataLoader(val_dataset, batch_size=args.batch_size, sampler=val_sampler)

    for epoch in range(start_epoch, args.epochs):
        train_sampler.set_epoch(epoch)
        train(train_loader, model, criterion, optimizer, epoch, device, args)
        acc1 = validate(val_loader, model, criterion, device, args)
        scheduler.step()

        # remember best acc@1 and save checkpoint
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)

        model_state_dict = get_model_state_dict(
            model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
        optimizer_state_dict = get_optimizer_state_dict(
            model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
        if args.rank == 0:
            save_checkpoint({
                "epoch": epoch + 1,
                "state_dict": model_state_dict,
                "best_acc1": best_acc1,
                "optimizer": optimizer_state_dict,
                "scheduler": scheduler.state_dict(),
            }, is_best)
    dist.destroy_process_group()


def train(train_loader, model, criterion, optimizer, epoch, device, args):
    # switch to train mode
    model.train()
    for i, (images, target) in enumerate(train_loader):
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        # compute output
        output = model(images)
        loss = criterion(output, target)
        # compute gradient and do SGD step
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.rank == 0:
            print(f"Epoch: [{epoch}][{i}/{len(train_loader)}] Loss {loss.item()!r}")


def validate(val_loader, model, criterion, device, args):
    losses, top1 = AverageMeter(device), AverageMeter(device)
    # switch to evaluate mode
    model.eval()
    with torch.no_grad():
        for images, target in val_loader:
            images, target = images.to(device), target.to(device)
            output = model(images)
            losses.update(criterion(output, target).item(), images.size(0))
            top1.update((output.argmax(dim=1) == target).float().mean().item() * 100, images.size(0))
    losses.all_reduce()
    top1.all_reduce()
    if args.rank == 0:
        print(f" * val loss {losses.avg!r} Acc@1 {top1.avg!r}")
    return top1.avg


def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, "model_best.pth.tar")


if __name__ == "__main__":
    main()
