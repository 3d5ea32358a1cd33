"""Comments among the arguments of a wrap."""

from __future__ import annotations

from state_programs import FSDP, migrated

WRAP = """
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def main(net, block, device, rank, init):
    # the whole model
    net = FSDP(
        net,
        # a unit a block
        auto_wrap_policy=ModuleWrapPolicy({block}),
        # the same weights everywhere
        sync_module_states=True,
        device_id=device,  # of this rank
        limit_all_gathers=True,  # saves memory
        # bound later
        # on all but rank 0
        param_init_fn=init,
        mixed_precision=None,  # not supported  yet
        use_orig_params=True,  # noqa: FBT003
    )
    return net
"""


def test_comments_go_with_what_they_are_about() -> None:
    after = migrated(FSDP, WRAP)
    assert "    # the whole model\n    torch.cuda.set_device(device)\n" in after
    assert "    # bound later\n    # on all but rank 0\n    if init" in after
    assert "    # the same weights everywhere\n    net.to(device)\n" in after
    units = "    # a unit a block\n    # not supported  yet\n"
    assert units in after
    assert after.index("broadcast(") < after.index(units) < after.index("fully_shard(")


def test_comments_on_what_leaves_no_trace_go() -> None:
    after = migrated(FSDP, WRAP)
    assert "saves memory" not in after
    assert "noqa" not in after
    assert "of this rank" not in after
