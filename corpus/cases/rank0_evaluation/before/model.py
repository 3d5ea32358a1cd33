import torch
import torch.nn as nn


class Tower(nn.Module):
    def __init__(self, features, width=24):
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.drop = nn.Dropout(0.2)
        self.project = nn.Linear(width, 8)

    def forward(self, x):
        return nn.functional.normalize(self.project(self.drop(torch.tanh(self.embed(x)))), dim=-1)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = Tower(12)
        self.text = Tower(6)

    def forward(self, images, texts):
        return self.image(images), self.text(texts)
