"""How long `to-fsdp2 scan` takes, and how much memory its processes take together.

    python benchmarks/scan.py [FOLDER…]

Without folders: the installed torch package, mosaicml's `composer` where it is installed, and a tree without FSDP
or DDP. Next to it, `grep -rlE` for the same names, which is about as fast as looking at all files can be.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TOKENS = "FSDP|FullyShardedDataParallel|DistributedDataParallel|DDP"


def main(folders: list[str]) -> None:
    """Print a line per folder."""
    print(f"{'tree':<28}{'files':>7}{'MB':>7}{'scan s':>9}{'peak MB':>9}{'grep s':>9}")
    with tempfile.TemporaryDirectory() as scratch:
        for name, folder in _named(folders) or _defaults(Path(scratch)):
            files = list(folder.rglob("*.py"))
            size = sum(file.stat().st_size for file in files) / 1e6
            seconds, memory = measure(
                [sys.executable, "-m", "to_fsdp2.migrate", "scan", str(folder), "-o", "/dev/null"]
            )
            grep, _ = measure(["grep", "-rlE", "--include=*.py", TOKENS, str(folder)])
            print(f"{name:<28}{len(files):>7}{size:>7.1f}{seconds:>9.2f}{memory:>9.0f}{grep:>9.2f}")


def measure(command: list[str]) -> tuple[float, float]:
    """(seconds of the fastest of three runs, peak memory in MB of the process and all its children at once)."""
    times: list[float] = []
    peak = 0.0
    for _ in range(3):
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        finished = threading.Event()
        peaks: list[float] = []
        watcher = threading.Thread(target=_watch, args=(process.pid, finished, peaks))
        watcher.start()
        process.wait()
        times.append(time.perf_counter() - start)
        finished.set()
        watcher.join()
        peak = max(peak, *peaks)
    return min(times), peak


def _watch(pid: int, finished: threading.Event, peaks: list[float]) -> None:
    peaks.append(0.0)
    while not finished.wait(0.02):
        peaks.append(sum(_proportional_memory(process) for process in _tree(pid)))


def _tree(pid: int) -> list[int]:
    processes = [pid]
    for parent in processes:
        try:
            threads = list(Path(f"/proc/{parent}/task").iterdir())
            processes += [int(child) for thread in threads for child in (thread / "children").read_text().split()]
        except OSError:  # it has ended meanwhile
            continue
    return processes


def _proportional_memory(pid: int) -> float:
    """MB; pages that forked processes share are divided among them, so that the sum counts each once."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


def _named(folders: list[str]) -> list[tuple[str, Path]]:
    return [(Path(folder).name, Path(folder).resolve()) for folder in folders]


def _defaults(scratch: Path) -> list[tuple[str, Path]]:
    trees = [
        (label, Path(spec.origin).parent)
        for label, module in (("torch", "torch"), ("mosaicml", "composer"))
        if (spec := importlib.util.find_spec(module)) and spec.origin
    ]
    return [*trees, ("2,000 files without FSDP", _plain_tree(scratch / "plain"))]


def _plain_tree(folder: Path) -> Path:
    """2,000 files of about 12 KB that import each other and hold none of the names."""
    body = "def compute(value):\n    return [value + number for number in range(10)]\n\n\n" * 150
    for number in range(2000):
        file = folder / f"package{number % 40}" / f"module{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"import os\nfrom package{(number + 1) % 40} import module{(number + 1) % 2000}\n\n\n{body}")
    return folder


if __name__ == "__main__":
    main(sys.argv[1:])
