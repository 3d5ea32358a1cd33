"""What join.py must do on two ranks. Run by test_join.py."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from models import batch, build, clean, close, error_of, gathered, parameters_of
from to_fsdp2.transforms.helpers.clipping import clip_grad_norm
from to_fsdp2.transforms.helpers.ddp_buffers import broadcast_buffers_before_forward
from to_fsdp2.transforms.helpers.gradients import no_gradient_sync
from to_fsdp2.transforms.helpers.join import join, repeats_batch, until_all_ranks_finish
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer


def trained(kind: str, counts: list[int], clip: float | None = None, accumulate: int = 1, **options: Any) -> list[Any]:
    """Losses, parameters and buffers after two loops, each in a context of its own, over `counts[rank]` batches.

    With SGD: in DDP's second loop, another optimizer's state would lag behind on ranks that finished the first early.
    """
    leave = options.pop("leave", None)
    torch.manual_seed(0)
    model = build(kind, like="ddp", batch_norm=options.pop("batch_norm", False), dropout=options.pop("dropout", 0.0))
    if kind == "fsdp2":
        broadcast_buffers_before_forward(model, dist.group.WORLD, set())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, foreach=False)
    losses = []
    for epoch in range(2):
        with join([model], **options):
            batches = [batch(10 * epoch + step) for step in range(counts[dist.get_rank()])]
            for number, (ids, targets) in enumerate(until_all_ranks_finish(batches, model)):
                if (number + 1) % accumulate:
                    with no_gradient_sync(model):
                        loss = model(ids, targets)
                        loss.backward()
                else:
                    loss = model(ids, targets)
                    loss.backward()
                    if clip:
                        clip_grad_norm(model.parameters(), clip)
                    optimizer.step()
                    optimizer.zero_grad()
                if not repeats_batch(model):
                    losses.append(loss.item())
                if number == leave:
                    break
        assert not repeats_batch(model)
    buffers = {clean(name): b.clone() for name, b in model.named_buffers()}
    return [losses, parameters_of(model), buffers]


def check_training_is_ddps() -> None:
    for counts in ([2, 5], [4, 1], [3, 3], [0, 2]):
        for divide in (True, False):
            for options in ({}, {"batch_norm": True}, {"dropout": 0.3}, {"clip": 0.2}):
                arguments = {**options, "divide_by_initial_world_size": divide}
                ddp, ours = trained("ddp", counts, **arguments), trained("fsdp2", counts, **arguments)
                for name, one, other in zip(("losses", "parameters", "buffers"), ddp, ours, strict=True):
                    assert close(one, other, 1e-5), (counts, arguments, name)


def check_a_loop_that_is_left_early_is_ddps() -> None:
    for counts, leave in (([3, 3], 1), ([2, 2], 1), ([4, 3], 0)):
        ddp, ours = (trained(kind, counts, batch_norm=True, leave=leave) for kind in ("ddp", "fsdp2"))
        assert close(ddp, ours, 1e-5), (counts, leave)


def check_accumulation_is_ddps() -> None:
    for counts in ([4, 6], [2, 6]):
        assert close(trained("ddp", counts, accumulate=2), trained("fsdp2", counts, accumulate=2), 1e-5), counts


def check_disabled_and_throwing() -> None:
    same = [3, 3]
    assert close(trained("ddp", same, enable=False), trained("fsdp2", same, enable=False), 1e-5)
    for kind in ("ddp", "fsdp2"):
        error = error_of(lambda kind=kind: trained(kind, [1, 3], throw_on_early_termination=True))
        assert isinstance(error, RuntimeError) and all(gathered("exhausted" in str(error))), kind


def check_other_models_get_torchs_own() -> None:
    model = build("ddp")

    optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    batches = [batch(step) for step in range(1 + dist.get_rank())]
    assert isinstance(join([model, optimizer]), Join) and until_all_ranks_finish(batches, model) is batches
    with join([model, optimizer]):
        for ids, targets in until_all_ranks_finish(batches, model):
            model(ids, targets).backward()
            optimizer.step()
            assert not repeats_batch(model)
    plain = build("plain")
    assert until_all_ranks_finish(batches, plain) is batches
    assert type(error_of(lambda: join([plain]))) is type(error_of(lambda: Join([plain])))
    sharded = build("fsdp2", like="ddp")
    assert until_all_ranks_finish(batches, sharded) is batches, "outside of join"


def check_two_models_and_a_gradient_that_is_not_finite() -> None:
    results = []
    for kind in ("ddp", "fsdp2"):
        first, second = build(kind, like="ddp"), build(kind, like="ddp")
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1, foreach=False)
        batches = [batch(step) for step in range(2 + 2 * dist.get_rank())]
        with join([first, second]):
            for ids, targets in until_all_ranks_finish(batches, first, second):
                for model in (first, second):
                    loss = model(ids, targets)
                    (loss * (float("inf") if repeats_batch(first) else 1.0)).backward()
                optimizer.step()
                optimizer.zero_grad()
        results.append([parameters_of(first), parameters_of(second)])
    assert close(results[0], results[1], 1e-5)
