"""Programs about state dicts, as the tests hand them to the tool: a header, and a body that follows it."""

from __future__ import annotations

import textwrap

from migrating import analyse_texts
from to_fsdp2.transforms.findings import Finding

DDP = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

"""


FSDP = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType,
)

"""


def migrated(header: str, body: str) -> str:
    """The migrated body of a program."""
    _, results = analyse_texts({"train.py": header + textwrap.dedent(body)})
    return results["train.py"]


def findings(header: str, body: str, rule: str) -> list[Finding]:
    """What a rule says about a program."""
    analysis, _ = analyse_texts({"train.py": header + textwrap.dedent(body)})
    return [finding for finding in analysis.findings if finding.rule == rule]
