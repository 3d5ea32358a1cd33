"""What rebind.py must do on two ranks: an optimizer that is older than the sharding trains. Run by test_shard_programs.py."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from checks_whole_steps import Factored
from models import batch, close, error_of
from shard_models import Residual, build, differences, rank, result, tied
from to_fsdp2.transforms.helpers import rebind
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.identities import id_before_sharding
from to_fsdp2.transforms.helpers.shard import shard_like_fsdp1
from to_fsdp2.transforms.helpers.whole import whole
from to_fsdp2.transforms.helpers.whole_steps import on_whole_parameters, step_on_whole
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP

CPU = torch.device("cpu")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-2),
}  # fmt: skip


def groups(model: nn.Module) -> list[dict[str, Any]]:
    trained = [p for p in model.parameters() if p.requires_grad]
    return [{"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.1}, {"params": [p for p in trained if p.dim() < 2]}]


def train(run: Any, optimizer: Any, scheduler: Any = None, scaler: Any = None) -> list[float]:
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        loss = run(*batch(step))
        (scaler.scale(loss) if scaler else loss).backward()
        scaler.step(optimizer) if scaler else optimizer.step()
        for after_step in (scaler and scaler.update, scheduler and scheduler.step):
            if after_step:
                after_step()
        losses.append(loss.item())
    return losses


def check_optimizers_train_on() -> None:
    """Built before the wrap, with and without state, under a scheduler and a scaler."""
    for name, make in OPTIMIZERS.items():
        for steps in (0, 2):
            results = []
            for wrap in (DDP, shard_like_ddp):
                model = build("scalars" if name != "fused" else "tied")
                optimizer = make(groups(model))
                scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=20, cycle_momentum=False)
                scaler = torch.amp.GradScaler("cpu")
                for step in range(steps):
                    model(*batch(100 + step, 0)).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                run = wrap(model)
                losses = train(run, optimizer, scheduler, scaler)
                rates = [group["lr"] for group in optimizer.param_groups]
                results.append(result(run, losses + rates + [scaler.get_scale()]))
            found = differences(results, 1e-6 if name == "fused" else 0.0)  # its vectors end elsewhere in shards
            assert not found, (name, steps, found)


def check_optimizer_before_fsdp1() -> None:
    policy = ModuleWrapPolicy({Residual})
    results = []
    for wrap in (FSDP, shard_like_fsdp1):
        model = build("tied")
        optimizer = torch.optim.AdamW(groups(model), lr=1e-2)
        run = wrap(model, auto_wrap_policy=policy, use_orig_params=True, device_id=CPU)
        losses = train(run, optimizer)
        results.append(losses)
    assert results[0] == results[1], results


def check_parts_one_after_the_other() -> None:
    """Nested wraps by hand after the optimizer: each wrap rebinds what it shards."""
    losses = []
    for by_hand in (False, True):
        model = build("blocks in a Sequential")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if by_hand:
            for i, block in enumerate(model.body):
                model.body[i] = shard_like_fsdp1(block)
            model.head = shard_like_fsdp1(model.head)
        losses.append(train(shard_like_fsdp1(model), optimizer))
        held = [p for group in optimizer.param_groups for p in group["params"]]
        assert all(isinstance(p, DTensor) for p in held)
        assert {id(p) for p in held} == {id(p) for p in model.parameters()}
    assert losses[0] == losses[1]


def check_everything_that_holds_parameters() -> None:
    model = tied()
    bias: Any = model.head.bias
    bias.no_decay = True
    del bias

    class Trainer:
        def __init__(self) -> None:
            self.model, self.weight = model, cast(Any, model.head.bias)
            self.params = [p for p in model.parameters() if p.dim() > 1]
            self.named = dict(model.named_parameters())
            self.name_of = {p: name for name, p in model.named_parameters()}
            self.pairs = list(zip(model.parameters(), model.parameters(), strict=True))
            self.fixed = (tuple(model.parameters()), frozenset(model.parameters()))
            self.set = set(model.parameters())
            first = model.emb.weight
            self.read = lambda: first
            self.optimizers = [torch.optim.SGD(self.params, lr=0.1), torch.optim.LBFGS(model.parameters())]

    trainer = Trainer()
    names = list(trainer.name_of.values())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shard_like_ddp(model)
    now = dict(model.named_parameters())
    assert all(trainer.named[name] is p for name, p in now.items())
    assert [trainer.name_of[p] for p in now.values()] == names
    assert trainer.params[0] is now["emb.weight"]
    assert trainer.weight is now["head.bias"]
    everything = set(now.values())
    assert {p for pair in trainer.pairs for p in pair} == set(trainer.fixed[0]) == trainer.fixed[1] == trainer.set == everything
    assert trainer.read() is now["emb.weight"]
    assert trainer.weight.no_decay
    for optimizer in trainer.optimizers:
        assert all(isinstance(p, DTensor) for group in optimizer.param_groups for p in group["params"])
    assert trainer.optimizers[1]._params[0] is now["emb.weight"]


class Kept(Factored):
    step = on_whole_parameters(Factored.step)


def check_state_of_any_shape_where_steps_see_whole_parameters() -> None:
    """As of a checkpoint that is loaded in front of the wrap."""
    results = []
    for kind, wrap in ((Factored, DDP), (Kept, shard_like_ddp), (lambda p: step_on_whole(Factored(p)), shard_like_ddp)):
        torch.manual_seed(0)
        model = build("tied")
        optimizer = kind([p for p in model.parameters() if p.dim() == 2])
        model(*batch(0, 0)).backward()
        optimizer.step()
        results.append([train(wrap(model), optimizer), [whole(p.detach()) for p in optimizer.param_groups[0]["params"]]])
    assert close(results[0], results[1], 1e-6) and close(results[0], results[2], 1e-6)


def check_what_cannot_be_rebound() -> None:
    model = tied()
    fixed = tuple(model.parameters())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        shard_like_ddp(model)
    assert any("still holds parameters from before sharding" in str(w.message) for w in said)
    del fixed

    model = tied()
    optimizer: torch.optim.Optimizer = torch.optim.Adafactor(model.parameters())
    model(*batch(0, 0)).backward()
    optimizer.step()
    assert "cannot be sharded like its parameter" in str(error_of(lambda: shard_like_ddp(model)))

    model = tied()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    assert "ZeroRedundancyOptimizer" in str(error_of(lambda: shard_like_ddp(model)))
    del optimizer


def check_an_optimizer_over_flat_memory_is_refused() -> None:
    """As fast-reid's ContiguousParams: the parameters are views of the one tensor that is stepped on."""
    model = nn.Linear(4, 3)
    flat = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    start = 0
    for p in model.parameters():
        p.data = flat.data[start : start + p.numel()].view_as(p)
        start += p.numel()
    optimizer = torch.optim.SGD([flat], 0.1)
    assert "parameters are views of" in str(error_of(lambda: shard_like_ddp(model)))
    del optimizer
    gc.collect()
    shard_like_ddp(model)


def check_nothing_to_rebind_is_cheap() -> None:
    """Without a holder of old parameters, no object of the process is looked at."""
    model = tied()
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    asked = []
    real, rebind.gc.get_objects = gc.get_objects, lambda: asked.append(1) or []  # pyright: ignore
    try:
        shard_like_ddp(model)
    finally:
        rebind.gc.get_objects = real
    assert not asked
    assert not isinstance(optimizer.param_groups[0]["params"][0], DTensor)


def check_two_models_in_one_optimizer() -> None:
    results = []
    for wrap in (DDP, shard_like_ddp):
        one, other = build("tied", rank()), build("scalars", rank())
        optimizer = torch.optim.AdamW([*one.parameters(), *other.parameters()], lr=1e-2)
        one, other = wrap(one), wrap(other)
        losses = train(lambda *x, one=one, other=other: one(*x) + other(*x), optimizer)
        results.append((result(one, losses), result(other, losses)))
    assert not differences([pair[0] for pair in results])
    assert not differences([pair[1] for pair in results])
    assert close(results[0][0]["losses"], results[1][0]["losses"])


def check_identities_from_before_are_known() -> None:
    for wrap in (shard_like_ddp, shard_like_fsdp1):
        plain = Residual()
        first = [id(p) for p in plain.parameters()]
        model = wrap(plain)
        assert all(isinstance(p, DTensor) and id(p) not in first for p in model.parameters())
        assert [id_before_sharding(p) for p in model.parameters()] == first
        other = torch.ones(2)
        assert id_before_sharding(other) == id(other)
