import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Average:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n):
        self.total += value * n
        self.count += n


def batches(rank, epoch):
    """Rank 0 reads the longer file."""
    for index in range(5 - 2 * rank):
        generator = torch.Generator().manual_seed(1000 * epoch + 10 * index + rank)
        inputs = torch.randn(4, 12, generator=generator)
        yield inputs, inputs[:, :3].argmax(1)


def train_epoch(model, optimizer, scheduler, epoch, rank, device):
    losses = Average()
    correct = 0
    with model.join():
        for index, (inputs, targets) in enumerate(batches(rank, epoch)):
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            loss = nn.functional.cross_entropy(outputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.update(loss.item(), len(inputs))
            correct += (outputs.argmax(1) == targets).sum().item()
            if rank == 0:
                print(f"epoch {epoch} batch {index} loss {loss.item()!r}")
    scheduler.step()
    print(f"rank {rank} saw {losses.count} examples, {correct} correct")
    return losses.total / losses.count


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)

    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 3)).to(device)
    model = DDP(net, device_ids=[local_rank] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for epoch in range(2):
        average = train_epoch(model, optimizer, scheduler, epoch, rank, device)
        if rank == 0:
            print(f"epoch {epoch} average loss {average!r}")
            torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
