"""Puts the parts together."""

import os

from mingpt import distributed
from mingpt.checkpoint import load_weights
from mingpt.model import build_model
from mingpt.trainer import Trainer


def run(config):
    net = build_model(config.model)
    if config.trainer.resume:
        load_weights(net, os.path.join(config.trainer.out_dir, "model.pt"))
    trainer = Trainer(config.trainer, distributed.wrap_model(net), distributed.get_device())
    trainer.run()
    trainer.save()
