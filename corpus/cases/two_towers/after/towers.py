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


def add_dimension(module, state_dict, prefix, *_):
    """Gives scalars of older checkpoints the dimension that their parameters have now."""
    for name, parameter in module.named_parameters(recurse=False):
        value = state_dict.get(prefix + name)
        if torch.is_tensor(value) and value.ndim == 0 and parameter.ndim == 1:
            state_dict[prefix + name] = torch.full_like(parameter, value.item(), device=value.device)


class TwoTowers(nn.Module):
    """Images and texts are mapped to one space; the temperature of their similarity is learned."""

    def __init__(self, init_scale: float = math.log(1 / 0.07), init_bias: float = -1.0):
        super().__init__()
        self.image = Tower(16)
        self.text = Tower(10)
        self.logit_scale = nn.Parameter(torch.ones(1) * init_scale)
        self.logit_bias = nn.Parameter(torch.tensor([init_bias]))
        self.register_load_state_dict_pre_hook(add_dimension)

    def forward(self, images, texts):
        image_features, text_features = self.image(images), self.text(texts)
        logits = self.logit_scale.squeeze(0).exp() * image_features @ text_features.T
        return logits + self.logit_bias.squeeze(0), self.logit_scale.squeeze(0).exp()
