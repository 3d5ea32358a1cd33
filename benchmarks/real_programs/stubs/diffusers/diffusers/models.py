"""A variational autoencoder that takes means: the real one is downloaded."""

from types import SimpleNamespace

import torch
from torch import nn


class Latent:
    def __init__(self, mean):
        self.mean = mean

    def sample(self):
        return self.mean.clone()


class AutoencoderKL(nn.Module):
    @classmethod
    def from_pretrained(cls, *_, **__):
        return cls()

    def encode(self, x):
        small = nn.functional.avg_pool2d(x, 8)
        return SimpleNamespace(latent_dist=Latent(torch.cat([small, small.mean(1, keepdim=True)], 1)))
