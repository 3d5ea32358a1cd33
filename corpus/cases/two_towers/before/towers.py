import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Tower(nn.Module):
    def __init__(self, features, width=24, output=12):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, output))

    def forward(self, x):
        return F.normalize(self.layers(x), dim=-1)


class TwoTowers(nn.Module):
    """Images and texts are mapped to one space; the temperature of their similarity is learned."""

    def __init__(self, init_scale: float = math.log(1 / 0.07), init_bias: float = -1.0):
        super().__init__()
        self.image = Tower(16)
        self.text = Tower(10)
        self.logit_scale = nn.Parameter(torch.ones([]) * init_scale)
        self.logit_bias = nn.Parameter(torch.tensor(init_bias))

    def forward(self, images, texts):
        image_features, text_features = self.image(images), self.text(texts)
        logits = self.logit_scale.exp() * image_features @ text_features.T
        return logits + self.logit_bias, self.logit_scale.exp()
