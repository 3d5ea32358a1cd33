"""Predicts peak memory of a rank and communication of a step at any world size, on one CPU, in seconds.

Write a function that builds what the training script builds, and says what one step does:

    def build():
        model = Transformer(...)
        for block in model.blocks:
            fully_shard(block, mp_policy=...)
        fully_shard(model, mp_policy=...)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        tokens = torch.randint(0, 32000, (1, 2048))

        def step():
            model(tokens).backward()
            optimizer.step()
            optimizer.zero_grad()

        return model, optimizer, step

and run `python -m to_fsdp2.equivalence.plan sizes.py:build --world-size 8,64,1024`, or call `predict`. The function
runs as rank 0 of a process group that does not exist, with tensors that have shapes but no memory (FakeTensorMode);
`.item()` gives a made-up 1 (False for booleans). A model of billions of parameters takes seconds.

What is predicted: the peak of what PyTorch allocates for tensors, by torch's own FSDPMemTracker, and the collectives
that are issued. What is not: fragmentation, the CUDA context, NCCL's buffers, and workspaces of kernels.

To compare with DistributedDataParallel, let a second function return the model without wrapping it
(`--reference NAME`): memory is then that of the plain model plus DDP's buckets (as large as the gradients), and the
traffic one all-reduce of all gradients. For FSDP1 the collectives are simulated; its memory is not predicted, because
torch's tracker cannot follow flat parameters.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from .report_charts import in_bytes
from .simulation import Collectives, MadeUpValues, bytes_of, real_meshes, several_forwards
from .verdict import Traffic

Build = Callable[[], tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], Any]]]

_CATEGORIES = {
    "Parameter": "parameters", "Gradient": "gradients", "Activation": "activations", "Buffer": "buffers",
    "Optstate": "optimizer state", "OptState": "optimizer state", "Temp": "temporary", "Total": "total",
    "Sharded Param": "sharded parameters", "Unsharded Param": "unsharded parameters",
    "Sharded Grad": "sharded gradients", "Unsharded Grad": "unsharded gradients",
    "All Gather": "all-gather buffers", "Reduce Scatter": "reduce-scatter buffers",
}  # fmt: skip


@dataclass
class Prediction:
    """One world size. `memory`: bytes at the peak by category, with their sum as `total`; None for FSDP1.

    `layout` is fsdp2, fsdp1 or ddp; `parameters` counts elements over all ranks; `traffic` is that of one step on
    rank 0, bytes of the gathered output (all-gather), of the input (reduce-scatter), else of the tensor.
    """

    world_size: int
    layout: str
    parameters: int
    memory: dict[str, int] | None
    traffic: list[Traffic]
    seconds: float


def predict(build: Build, world_size: int) -> Prediction:
    """Simulates one training step, the second, as rank 0 of `world_size`.

    `build` returns the model, its optimizer and a function that does one whole step. Must be called in a process
    without a process group (RuntimeError otherwise).
    """
    if dist.is_initialized():
        raise RuntimeError("predict makes a process group of its own; call it in a process that has none")
    began = time.monotonic()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        with real_meshes(), FakeTensorMode(allow_non_fake_inputs=True), MadeUpValues():
            model, optimizer, step = build()
            layout = layout_of(model)
            # A first step brings the optimizer's state and the lazy set-up of sharding into being.
            step()
            collectives = Collectives()
            tracker = _tracker(layout, model, optimizer)
            with tracker or nullcontext(), several_forwards(tracker, model), collectives:
                step()
    finally:
        dist.destroy_process_group()
    traffic, memory = collectives.traffic(), None
    if tracker is not None:
        memory = _at_peak(tracker)
    if layout == "ddp":
        gradients = _gradient_bytes(model)
        if memory is not None:
            memory["buckets"] = sum(gradients.values())
            memory["total"] += memory["buckets"]
        traffic += [Traffic("all_reduce", dtype, 1, size) for dtype, size in gradients.items()]
    parameters = _global_parameters(model, layout)
    return Prediction(world_size, layout, parameters, memory, traffic, time.monotonic() - began)


def layout_of(model: torch.nn.Module) -> str:
    """fsdp2, fsdp1, or, for a model that is not sharded at all, ddp."""
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        return "fsdp2"
    return "fsdp1" if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()) else "ddp"


def _tracker(layout: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> MemTracker | None:
    if layout == "fsdp2":
        return FSDPMemTracker(model, optimizer)
    if layout == "fsdp1":
        return None
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    return tracker


def _at_peak(tracker: MemTracker) -> dict[str, int]:
    found: dict[str, int] = {}
    for snapshot in tracker.get_tracker_snapshot("peak").values():
        for category, size in snapshot.items():
            name = str(getattr(category, "value", category))
            name = _CATEGORIES.get(name, name.lower())
            if size:
                found[name] = found.get(name, 0) + size
    return found


def _gradient_bytes(model: torch.nn.Module) -> dict[str, int]:
    """Bytes of all gradients by dtype, as DDP reduces them."""
    sizes: dict[str, int] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            dtype = str(parameter.dtype).removeprefix("torch.")
            sizes[dtype] = sizes.get(dtype, 0) + bytes_of([parameter])
    return sizes


def _global_parameters(model: torch.nn.Module, layout: str) -> int:
    if layout != "fsdp1":
        return sum(parameter.numel() for parameter in model.parameters())
    units = [getattr(module, "_handle", None) for module in FullyShardedDataParallel.fsdp_modules(model)]
    return sum(shape.numel() for unit in units if unit is not None for shape in unit.flat_param._shapes)


def table(predictions: Sequence[Prediction]) -> str:
    """The predictions as text, one line for each."""
    lines = [f"{'':>6} {'ranks':>6} {'peak memory':>12}   of which; communication of a step"]
    for p in predictions:
        parts = sorted((p.memory or {}).items(), key=lambda item: -item[1])
        shown = ", ".join(f"{name} {in_bytes(size)}" for name, size in parts if name != "total")
        peak = in_bytes(p.memory["total"]) if p.memory else "unknown"
        lines.append(f"{p.layout:>6} {p.world_size:>6} {peak:>12}   {shown or 'not predicted for FSDP1'}")
        for t in p.traffic:
            lines.append(f"{'':>29}{t.calls} × {t.kind.replace('_', '-')} {t.dtype}, {in_bytes(t.bytes)}")
    return "\n".join(lines)


def load(target: str) -> Build:
    """The function that `FILE.py:NAME` names. The file's folder is importable meanwhile, as it is for a script."""
    path, _, name = target.rpartition(":")
    file = Path(path).resolve()
    if not name.isidentifier() or not file.is_file():
        raise ValueError(f"{target}: write FILE.py:FUNCTION, a file that exists and a function in it")
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ValueError(f"{target}: {file.name} has no {name}")
    return getattr(module, name)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m to_fsdp2.equivalence.plan`; returns 0, or 64 for a wrong request."""
    parser = argparse.ArgumentParser(
        prog="python -m to_fsdp2.equivalence.plan",
        description="Predicts peak memory of a rank and communication of a step at any world size.",
    )
    parser.add_argument("build", metavar="FILE.py:FUNCTION", help="returns model, optimizer and a step function")
    parser.add_argument("--world-size", default="8", help="numbers of ranks, separated by commas (default: 8)")
    parser.add_argument("--reference", metavar="FUNCTION", help="another function of the same file: the old model")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    targets = [options.build]
    if options.reference:
        targets.append(f"{options.build.rpartition(':')[0]}:{options.reference}")
    try:
        sizes = [int(size) for size in options.world_size.split(",")]
        builds = [load(target) for target in targets]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 64
    predictions = [predict(build, size) for build in builds for size in sizes]
    if options.format == "json":
        print(json.dumps([asdict(prediction) for prediction in predictions], indent=1))
    else:
        print(table(predictions))
    return 0


if __name__ == "__main__":
    sys.exit(main())
