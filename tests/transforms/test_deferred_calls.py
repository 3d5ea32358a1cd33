"""Threads and handlers of signals: each rank comes to them at a time of its own, and nothing can be held for that."""

from __future__ import annotations

import textwrap

import pytest
from guarded_programs import HEAD, contexts
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

PROGRAM = """
    import atexit
    import multiprocessing
    import signal
    import threading
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

    class Trainer:
        def __init__(self, net, options):
            self.model = DDP(net, **options)
            self.losses = []

        def save(self):
            torch.save(self.model.module.state_dict(), "x.pt")

        def on_signal(self, number, frame):
            if is_main():
                self.save()

        def train(self, batches):
            START
            for x in batches:
                self.model(x).sum().backward()

    def write(state):
        torch.save(state, "x.pt")

    Trainer(torch.nn.Linear(2, 2), {}).train([])
"""


def told(start: str) -> list[str]:
    text = HEAD + textwrap.dedent(PROGRAM.replace("START", start))
    source = Source.decode("train.py", text.encode())
    findings = analyse([extract(source)], lambda path: source, Options()).findings
    return [finding.message for finding in findings if finding.rule == "FS421"]


@pytest.mark.parametrize(
    "start",
    [
        "signal.signal(signal.SIGUSR1, self.on_signal)",
        "signal.signal(signal.SIGUSR1, lambda number, frame: self.save())",
        "threading.Thread(target=self.save, daemon=True).start()",
        "threading.Timer(60.0, self.save).start()",
        "ThreadPoolExecutor(1).submit(self.save)",
    ],
)
def test_what_gathers_at_a_time_of_its_own_is_told(start: str) -> None:
    (message,) = told(start)
    assert message.startswith("train.py:")
    assert "torch.save(self.model" in (HEAD + textwrap.dedent(PROGRAM)).splitlines()[int(message.split(":")[1].split()[0]) - 1]


@pytest.mark.parametrize(
    "start",
    [
        "threading.Thread(target=write, args=(self.model.module.state_dict(),)).start()",
        "threading.Thread(target=self.train, args=(batches,)).start()",
        "multiprocessing.Process(target=self.save).start()",
        "ProcessPoolExecutor(1).submit(self.save)",
        "atexit.register(self.save)",
        "self.save()",
    ],
)
def test_what_needs_no_others_or_comes_to_all_is_not(start: str) -> None:
    assert told(start) == []


def test_nothing_is_held_in_a_handler() -> None:
    assert contexts(PROGRAM.replace("START", "signal.signal(signal.SIGUSR1, self.on_signal)")) == []
    assert contexts(PROGRAM.replace("START", "self.on_signal(None, None)"))
