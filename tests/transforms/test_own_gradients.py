"""no_sync around passes whose gradients each rank uses for itself: FSDP2 would keep them out of reach."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

HEAD = """\
from contextlib import nullcontext

from torch.nn.parallel import DistributedDataParallel as DDP


def main(net, batches, optimizer, loss_of, stage):
    model = DDP(net, broadcast_buffers=False)
"""

OWN = {
    "a first step between two passes": """\
    for batch in batches:
        with model.no_sync():
            loss_of(model(batch)).backward()
        optimizer.first_step(zero_grad=True)
        loss_of(model(batch)).backward()
        optimizer.second_step(zero_grad=True)
""",
    "gradients zeroed in the block": """\
    for number, batch in enumerate(batches):
        with nullcontext() if number % 2 else model.no_sync():
            optimizer.zero_grad()
            loss_of(model(batch)).backward()
        optimizer.step()
""",
    "a closure that is told whether to sync": """\
    for batch in batches:
        def closure(sync=True):
            optimizer.zero_grad()
            context = nullcontext if sync else model.no_sync
            with context():
                loss = loss_of(model(batch))
                loss.backward()
            return loss
        optimizer.step(closure)
""",
    "zeroed unless a setting says no": """\
    with model.no_sync():
        if not stage.deepspeed:
            for one in stage.optimizers:
                one.zero_grad()
        loss_of(model(batches[0])).backward()
    optimizer.step()
""",
}

SHARED = {
    "an accumulating loop": """\
    for number, batch in enumerate(batches):
        last = (number + 1) % 4 == 0
        with nullcontext() if last else model.no_sync():
            loss_of(model(batch)).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
""",
    "zeroed where a window begins": """\
    for number, batch in enumerate(batches):
        with model.no_sync():
            if number % 4 == 0:
                optimizer.zero_grad()
            loss_of(model(batch)).backward()
        loss_of(model(batch)).backward()
        optimizer.step()
""",
    "a window in a closure": """\
    def closure():
        optimizer.zero_grad()
        for batch in batches[:-1]:
            with model.no_sync():
                loss_of(model(batch)).backward()
        loss = loss_of(model(batches[-1]))
        loss.backward()
        return loss
    optimizer.step(closure)
""",
    "two losses, the second with sync": """\
    for batch in batches:
        optimizer.zero_grad()
        with model.no_sync():
            loss_of(model(batch)).backward()
        loss_of(model(batch)).backward()
        optimizer.step()
""",
}


@pytest.mark.parametrize("body", OWN.values(), ids=OWN)
def test_gradients_of_one_rank_are_out_of_reach(body: str) -> None:
    analysis, results = analyse_texts({"train.py": HEAD + body})
    found = [f for f in analysis.findings if f.rule == "FS301"]
    assert [f.level for f in found] == [Level.MANUAL] and "--ddp keep" in found[0].advice
    assert "model.no_sync" in results["train.py"]


@pytest.mark.parametrize("body", SHARED.values(), ids=SHARED)
def test_windows_that_a_pass_with_sync_ends_are_migrated(body: str) -> None:
    analysis, results = analyse_texts({"train.py": HEAD + body})
    assert all(f.level is not Level.MANUAL for f in analysis.findings if f.rule == "FS301")
    assert "no_sync" not in results["train.py"].replace("no_gradient_sync", "")
