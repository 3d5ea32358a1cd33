"""One process, no process group: two models with an optimizer each, a scaler that meets infinities, value clipping,
a file saved and loaded, a data loader with workers, and an exception at the end if asked for."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def unused(x):
    return x + 1


def main(target, fail):
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    critic = torch.compile(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), backend="eager")
    optimizers = [
        torch.optim.SGD(critic.parameters(), lr=torch.tensor(0.1), momentum=0.9),
        torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9)),
    ]
    nobody = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    loader = DataLoader(TensorDataset(torch.rand(12, 4)), batch_size=4, num_workers=1)
    for step, (batch,) in enumerate(loader):
        optimizers[0].zero_grad()
        loss = critic(batch).mean() - critic(generator(batch).detach()).mean()
        loss.backward()
        nn.utils.clip_grad_value_(critic.parameters(), 0.01)
        optimizers[0].step()
        optimizers[1].zero_grad()
        loss = -critic(generator(batch)).mean()
        if step == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizers[1])
        scaler.update()
    torch.save({"generator": generator.state_dict(), "optimizer": optimizers[1].state_dict()}, target)
    torch.load(target)
    assert not nobody.state
    if fail:
        raise RuntimeError("out of luck")


if __name__ == "__main__":
    main(sys.argv[1], "fail" in sys.argv)
