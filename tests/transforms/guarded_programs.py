"""Programs with guards of ranks, given as texts, and what is held whole at the guards."""

from __future__ import annotations

import re
import textwrap

from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

HEAD = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def is_main():
    return dist.get_rank() == 0


def unwrap(model):
    return model.module if hasattr(model, "module") else model


def get_dist_info():
    rank, world_size = 0, 1
    if dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
    return rank, world_size


"""
"""What all programs begin with."""


def contexts(program: str) -> list[str]:
    """The lines of the migrated program that hold something whole; those that only enter are given as the block would begin."""
    text = HEAD + textwrap.dedent(program)
    source = Source.decode("train.py", text.encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert not analysis.errors
    lines = (line.strip() for line in analysis.texts["train.py"].splitlines())
    blocks = (re.sub(r"^held(?:_\d)? = entered\((.*)\)$", r"with \1:", line) for line in lines)
    return [line for line in blocks if "whole_on_each_rank(" in line and line.startswith(("with", "@"))]
