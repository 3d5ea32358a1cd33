"""A small GAN on points of a ring, trained with DistributedDataParallel."""

import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--iterations", type=int, default=6)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--nz", type=int, default=6, help="size of the latent vector")
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--manual-seed", type=int, default=99)


class Generator(nn.Module):
    def __init__(self, nz, width=32):
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(nz, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, 2)
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(2, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.main(x)).squeeze(1)


def ring(size, generator):
    angle = 2 * math.pi * torch.rand(size, generator=generator)
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def main():
    opt = parser.parse_args()
    dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    local_rank = int(os.environ["LOCAL_RANK"])
    use_cuda = torch.cuda.is_available()
    if use_cuda:
        torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank) if use_cuda else torch.device("cpu")

    # different noise and different initial weights on every rank; DDP starts all from those of rank 0
    torch.manual_seed(opt.manual_seed + rank)
    data = torch.Generator().manual_seed(opt.manual_seed + rank)

    netG = Generator(opt.nz).to(device)
    netD = Discriminator().to(device)
    for tensor in [*netG.parameters(), *netG.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(netG)
    for tensor in [*netD.parameters(), *netD.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(netD)

    criterion = nn.BCEWithLogitsLoss()
    optimizerD = optim.Adam(netD.parameters(), lr=opt.lr, betas=(0.5, 0.999))
    optimizerG = optim.Adam(netG.parameters(), lr=opt.lr, betas=(0.5, 0.999))
    real_label = torch.ones(opt.batch_size, device=device)
    fake_label = torch.zeros(opt.batch_size, device=device)

    for i in range(opt.iterations):
        # (1) discriminator: real and fake batches one after the other
        optimizerD.zero_grad()
        errD_real = criterion(netD(ring(opt.batch_size, data).to(device)), real_label)
        errD_real.backward()
        noise = torch.randn(opt.batch_size, opt.nz, device=device)
        fake = netG(noise)
        errD_fake = criterion(netD(fake.detach()), fake_label)
        errD_fake.backward()
        optimizerD.step()

        # (2) generator
        optimizerG.zero_grad()
        errG = criterion(netD(fake), real_label)
        errG.backward()
        optimizerG.step()

        if rank == 0:
            print(f"[{i}/{opt.iterations}] loss_D {errD_real.item() + errD_fake.item()!r} loss_G {errG.item()!r}")

    netG_state_dict = get_model_state_dict(
        netG, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    netD_state_dict = get_model_state_dict(
        netD, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if rank == 0:
        torch.save({"netG": netG_state_dict, "netD": netD_state_dict}, "gan.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
