"""Functions that a thread, a process, an executor or a handler of signals or of the exit calls with a model."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

PROGRAM = """\
import atexit
import multiprocessing
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def write(model, path):
    torch.save(model.module.state_dict(), path)


class Saver:
    def write(self, model, path):
        write(model, path)


def main(rank):
    model = DDP(Net())
    for batch in batches():
        model(batch).sum().backward()
    if rank == 0:
        {start}
"""


@pytest.mark.parametrize(
    "start",
    [
        'threading.Thread(target=write, args=(model, "a.pt")).start()',
        'threading.Thread(None, write, None, (model, "a.pt")).start()',
        'threading.Thread(target=Saver().write, args=(model, "a.pt")).start()',
        'threading.Timer(5, write, (model, "a.pt")).start()',
        'multiprocessing.Process(target=write, args=(model, "a.pt")).start()',
        'ThreadPoolExecutor(1).submit(write, model, "a.pt")',
        'multiprocessing.Pool(1).apply_async(write, (model, "a.pt"))',
        'atexit.register(write, model, "a.pt")',
        'atexit.register(lambda: write(model, "a.pt"))',
        'signal.signal(signal.SIGTERM, lambda *_: write(model, "a.pt"))',
    ],
)
def test_gathering_there_holds_the_model(start: str) -> None:
    text = PROGRAM.format(start=start)
    analysis, results = analyse_texts({"train.py": text})
    assert results["train.py"] == text
    (found,) = [f for f in analysis.findings if f.rule == "FS402"]
    assert found.level is Level.MANUAL
    assert "thread" in found.message


def test_a_state_that_is_gathered_before_is_handed_on() -> None:
    text = PROGRAM.format(start='threading.Thread(target=torch.save, args=(model.module.state_dict(), "a.pt")).start()')
    analysis, results = analyse_texts({"train.py": text.replace("torch.save(model.module.state_dict(), path)", "pass")})
    assert "fully_shard(model)" in results["train.py"]
    assert {f.level for f in analysis.findings if f.rule == "FS402"} <= {Level.SAFE, Level.REVIEW}
