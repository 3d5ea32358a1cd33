"""What recording costs: step time of a 20-million-parameter transformer on two gloo ranks, by record level.

    python benchmarks/recorder_overhead.py [--steps 64] [--wraps ddp fsdp1 fsdp2] [--levels none loss tripwires auto full]

`cpu` is the processor time of a step, its mean over all steps but the first, and `more` the increase over no recorder:
on a busy machine processor time is steadier than wall time. `recorder` is the recorder's own share of the wall time,
by its own account. The level `tripwires` is `loss` with the tripwires on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

INJECT = Path(__file__).parents[1] / "equivalence" / "inject"
LAYERS, WIDTH, VOCABULARY, LENGTH, BATCH = 6, 512, 1000, 128, 4


def train(wrap: str, steps: int) -> None:
    """One rank; prints the processor time of each step in seconds."""
    import time

    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    blocks = [
        nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        for _ in range(LAYERS)
    ]
    model: nn.Module = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *blocks, nn.Linear(WIDTH, VOCABULARY))
    if dist.get_rank() == 0:
        print(json.dumps({"parameters": sum(p.numel() for p in model.parameters())}), flush=True)
    if wrap == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif wrap == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        policy = ModuleWrapPolicy({nn.TransformerEncoderLayer})
        model = FullyShardedDataParallel(
            model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu")
        )
    else:
        from torch.distributed.fsdp import fully_shard

        for block in blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    for _ in range(steps):
        begun = time.process_time()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(json.dumps({"seconds": time.process_time() - begun}), flush=True)
    dist.destroy_process_group()


def measure(wrap: str, level: str, steps: int) -> tuple[int, float, float]:
    """Parameters, processor seconds of a step, and the recorder's share of wall time."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if level != "none":
            environment |= {"PYTHONPATH": str(INJECT), "TO_FSDP2_RECORD": folder, "TO_FSDP2_RECORD_LEVEL": level}
            environment |= {"TO_FSDP2_ROOT": str(Path(__file__).parent)}
        if level == "tripwires":
            environment |= {"TO_FSDP2_RECORD_LEVEL": "loss", "TO_FSDP2_TRIPWIRES": "1"}
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [*launcher, __file__, "--train", wrap, "--steps", str(steps)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        printed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        seconds = [line["seconds"] for line in printed if "seconds" in line][1:]
        share = 0.0
        if level != "none":
            lines = (Path(folder) / "rank0.jsonl").read_text().splitlines()
            recorded = [event for event in map(json.loads, lines) if event["event"] == "step"][1:]
            recording = sum(event["recording_seconds"] for event in recorded)
            share = recording / (recording + sum(event["seconds"] for event in recorded))
        return printed[0]["parameters"], sum(seconds) / len(seconds), share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--wraps", nargs="+", default=["ddp", "fsdp1", "fsdp2"])
    parser.add_argument("--levels", nargs="+", default=["none", "loss", "tripwires", "auto", "full"])
    parser.add_argument("--train", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.steps)
        return
    print(f"{'wrap':6} {'level':6} {'cpu':>8} {'more':>7} {'recorder':>9}")
    parameters = 0
    for wrap in options.wraps:
        plain = None
        for level in options.levels:
            parameters, seconds, share = measure(wrap, level, options.steps)
            plain = plain or seconds
            print(f"{wrap:6} {level:6} {seconds:7.3f}s {seconds / plain - 1:7.1%} {share:9.1%}", flush=True)
    print(f"{parameters:,} parameters, steps 1 to {options.steps - 1}")


if __name__ == "__main__":
    main()
