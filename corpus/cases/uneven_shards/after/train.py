import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


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


def until_all_finish(batches, device):
    """The batches of this rank, then None while other ranks have batches left."""
    batches = iter(batches)
    while True:
        batch = next(batches, None)
        active = torch.tensor([batch is not None], dtype=torch.int, device=device)
        dist.all_reduce(active)
        if not active.item():
            return
        yield batch


def train_epoch(model, optimizer, scheduler, epoch, rank, device):
    losses = Average()
    correct = 0
    for index, batch in enumerate(until_all_finish(batches(rank, epoch), device)):
        if batch is None:
            loss = 0.0 * model(torch.zeros(1, 12, device=device)).sum()
        else:
            inputs, targets = batch[0].to(device), batch[1].to(device)
            outputs = model(inputs)
            loss = nn.functional.cross_entropy(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if batch is None:
            continue
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
    model = fully_shard(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for epoch in range(2):
        average = train_epoch(model, optimizer, scheduler, epoch, rank, device)
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        if rank == 0:
            print(f"epoch {epoch} average loss {average!r}")
            torch.save(state, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
