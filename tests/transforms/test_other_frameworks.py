"""Code of other frameworks beside code of torch."""

from __future__ import annotations

from migrated_texts import HEAD, migrated

PADDLE = """{first}
import importlib


def save(trainer, path, epoch):
    if trainer.rank == 0:
        {save}({{"model": trainer.model.state_dict(), "epoch": epoch}}, path)
"""
WRAPS = HEAD + """def build(net, options, name):
    model = DDP(net, **options)
    __import__(name).save(model, "x.pt", 1)
    return model
"""


def test_code_of_other_frameworks_has_no_models_of_torch() -> None:
    paddle = PADDLE.format(first="import paddle  # https://pytorch.org/docs/stable/_modules/torch/nn", save="paddle.save")
    assert migrated(train=WRAPS, callbacks=paddle)["callbacks"] == paddle
    torch = PADDLE.format(first="import torch", save="torch.save")
    assert migrated(train=WRAPS, callbacks=torch)["callbacks"] != torch
