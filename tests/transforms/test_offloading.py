"""Where parameters are offloaded, the process group gets a CPU backend, or the finding says that it needs one."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

_TRAIN = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP


def shard(model, args):
    torch.cuda.set_device(0)
    return FSDP(model, cpu_offload={offload})
"""
_SETUP = "import torch.distributed as dist\n\n\ndef setup(args):\n    dist.init_process_group({arguments})\n"


def _migrate(arguments: str, offload: str = "CPUOffload(offload_params=True)") -> tuple[str, list[tuple[str, Level]]]:
    texts = {"train.py": _TRAIN.format(offload=offload), "setup.py": _SETUP.format(arguments=arguments)}
    analysis, results = analyse_texts(texts)
    found = [(f.rule, f.level) for f in analysis.findings if f.rule in ("FS210", "FS212")]
    return results["setup.py"].partition("init_process_group(")[2].removesuffix(")\n"), found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"nccl"', '"cpu:gloo,cuda:nccl"'),
        ("backend='nccl', rank=0", "backend='cpu:gloo,cuda:nccl', rank=0"),
        ('"nccl" if args.gpu else "gloo"', '"cpu:gloo,cuda:nccl" if args.gpu else "gloo"'),
    ],
)
def test_gloo_comes_beside_nccl(before: str, after: str) -> None:
    text, found = _migrate(before)
    assert text == after
    assert found == [("FS212", Level.REVIEW), ("FS210", Level.SAFE)]


@pytest.mark.parametrize("arguments", ["", '"gloo"', "backend=None", '"cpu:gloo,cuda:nccl"'])
def test_group_that_has_a_cpu_backend_stays(arguments: str) -> None:
    assert _migrate(arguments) == (arguments, [("FS210", Level.SAFE)])


@pytest.mark.parametrize("arguments", ["args.backend", "**args.group", '"ucc"'])
def test_unknown_backend_is_named(arguments: str) -> None:
    assert _migrate(arguments) == (arguments, [("FS210", Level.REVIEW)])


@pytest.mark.parametrize("offload", ["None", "CPUOffload(offload_params=False)"])
def test_nothing_changes_without_offloading(offload: str) -> None:
    text, found = _migrate('"nccl"', offload)
    assert text == '"nccl"'
    assert found == [("FS210", Level.SAFE)]


def test_no_process_group_in_sight_is_named() -> None:
    analysis, _ = analyse_texts({"train.py": _TRAIN.format(offload="CPUOffload(offload_params=args.offload)")})
    finding = next(f for f in analysis.findings if f.rule == "FS210")
    assert finding.level is Level.REVIEW
    assert 'init_process_group("cpu:gloo,cuda:nccl")' in finding.message
