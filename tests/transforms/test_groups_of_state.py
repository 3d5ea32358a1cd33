"""Groups that are kept for FSDP1's optimizer state go with it, unless something else reads them."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_PROGRAM = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp._init_utils import _init_intra_and_inter_node_groups


def main(args, model):
    if args.hybrid:
        within, across = _init_intra_and_inter_node_groups(dist.group.WORLD)
        args.state_group = within  # for the state
        process_group = (within, across)
    else:
        args.state_group = None  # for the state
        process_group = None
    model = FSDP(
        model,
        process_group=process_group,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD if args.hybrid else ShardingStrategy.FULL_SHARD,
        device_id=torch.cuda.current_device(),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    {use}
    return FSDP.optim_state_dict(model, optimizer, group=args.state_group)
"""


@pytest.mark.parametrize(
    ("use", "goes"),
    [("pass", True), ("print(args.state_group)", False), ("print(getattr(args, \"state_group\"))", False)],
)
def test_groups_kept_for_state(use: str, goes: bool) -> None:
    _, texts = analyse_texts({"train.py": _PROGRAM.format(use=use)})
    text = texts["train.py"]
    assert "model, optimizer, options=StateDictOptions(full_state_dict=True)" in text
    assert ("args.state_group" not in text) == goes
    assert ("within" not in text) == goes
    assert ("        mesh = init_device_mesh(\n" in text) == goes
