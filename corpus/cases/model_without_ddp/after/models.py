import torch
import torch.nn as nn


class PatchLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 3 * dim)
        self.fc2 = nn.Linear(3 * dim, dim)

    def forward(self, x):
        h = self.norm(x)
        return x + self.fc2(torch.tanh(self.fc1(h + h.mean(dim=1, keepdim=True))))


class MaskedAutoencoder(nn.Module):
    """Predicts the patches that it does not see."""

    def __init__(self, patch_dim=8, dim=24, depth=2):
        super().__init__()
        self.embed = nn.Linear(patch_dim, dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.layers = nn.ModuleList([PatchLayer(dim) for _ in range(depth)])
        self.predict = nn.Linear(dim, patch_dim)

    def forward(self, patches, mask):
        x = torch.where(mask[..., None], self.mask_token, self.embed(patches))
        for layer in self.layers:
            x = layer(x)
        error = (self.predict(x) - patches).square().mean(dim=-1)
        return (error * mask).sum() / mask.sum()
