"""An autocast that lasts over several steps of an FSDP1 model loses its cache; others stay as they are."""

from __future__ import annotations

import textwrap

import pytest
from migrating import analyse_texts

_HEAD = """\
import contextlib

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

torch.cuda.set_device(local_rank)
model = {wrap}
optimizer = torch.optim.AdamW(model.parameters())


def update(batch):
    model(batch).mean().backward()
    optimizer.step()


def epoch():
    for batch in batches():
        update(batch)


"""


def _result(text: str, wrap: str = "FSDP(build())") -> str:
    return analyse_texts({"train.py": _HEAD.format(wrap=wrap) + textwrap.dedent(text)})[1]["train.py"]


@pytest.mark.parametrize(
    "text",
    [
        """
        with torch.autocast("cuda"):
            for batch in batches():
                update(batch)
        """,
        """
        context = torch.autocast("cuda") if half else contextlib.nullcontext()
        with context:
            epoch()
        """,
        """
        @torch.autocast("cuda")
        def main():
            while True:
                epoch()
        """,
    ],
)
def test_the_cache_is_turned_off(text: str) -> None:
    assert 'torch.autocast("cuda", cache_enabled=False)' in _result(text)
    assert "cache_enabled" not in _result(text, "DDP(build(), device_ids=[local_rank], broadcast_buffers=False)")


@pytest.mark.parametrize(
    "text",
    [
        """
        for batch in batches():
            with torch.autocast("cuda"):
                loss = model(batch).mean()
            loss.backward()
            optimizer.step()
        """,
        """
        with torch.autocast("cuda"):
            for batch in batches():
                model(batch)
        """,
    ],
)
def test_others_keep_it(text: str) -> None:
    assert "cache_enabled" not in _result(text)
