import torch
import torch.nn as nn


class Detector(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(10, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.backbone(x)))


def make_batch(seed, device):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(8, 10, generator=generator)
    return inputs.to(device), inputs[:, :3].cumsum(dim=1).to(device)


def attempt_load(path, device):
    """A model that is ready to run, from a file."""
    model = Detector()
    model.load_state_dict(torch.load(path, map_location="cpu"))
    return model.to(device)
