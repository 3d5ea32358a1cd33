"""What shard_like_ddp must do on two ranks, against DDP. Run by test_shard_programs.py."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from models import batch, close, error_of, gathered, gradients_of, parameters_of, wrapper_of
from shard_models import MODELS, Residual, build, differences, optimizer_of, rank, result, tied, train
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.gradients import no_gradient_sync
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP

WRAPS: tuple[Callable[..., Any], ...] = (DDP, shard_like_ddp)


def trained(name: str, wrap: Callable[..., Any], early: bool) -> dict[str, Any]:
    model = build(name, seed=rank())
    before = optimizer_of(model)
    run = wrap(model)
    return train(run, before if early else optimizer_of(run))


def models_that_differ(names: list[str]) -> dict[str, list[str]]:
    """Ranks start from other weights; the optimizer of every second model is older than the wrap."""
    found = {}
    for i, name in enumerate(names):
        tolerance = 5e-3 if name == "two types" else 0.0  # bfloat16 steps round differently in shards of another length
        found[name] = differences([trained(name, wrap, early=i % 2 == 0) for wrap in WRAPS], tolerance)
    return {name: differing for name, differing in found.items() if differing}


def check_models_train_as_under_ddp() -> None:
    assert not models_that_differ(list(MODELS)[::2])


def check_more_models_train_as_under_ddp() -> None:
    assert not models_that_differ(list(MODELS)[1::2])


def check_blocks_are_units() -> None:
    for name, count in {"tied": 2, "blocks in a Sequential": 3, "pairs in a ModuleList": 2, "one block twice": 0}.items():
        model = shard_like_ddp(build(name))
        assert sum(isinstance(m, FSDPModule) for m in model.modules()) == count + 1, name
        assert wrapper_of(model) == "ddp"


def check_accumulation_is_ddps() -> None:
    """no_sync as DDP reads it, also of plain parameters; and an aborted window."""
    for name in ("tied", "scalars", "buffers", "two types"):
        results = []
        for wrap in WRAPS:
            run = wrap(build(name))
            optimizer = optimizer_of(run)
            losses = []
            for step in range(9):
                last = step % 3 == 2
                with contextlib.nullcontext() if last else no_gradient_sync(run):
                    loss = run(*batch(step))
                    loss.backward()
                losses.append(loss.item())
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
            results.append(result(run, losses))
        found = differences(results, 5e-3 if name == "two types" else 1e-6)
        assert not found, (name, found)


class Routed(nn.Module):
    """Experts, of which a forward uses one or none, and one part that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.experts = tied(), nn.ModuleList(Residual() for _ in range(3))
        self.never, self.gain = nn.Linear(3, 3), nn.Parameter(torch.tensor(0.7))

    def forward(self, ids: torch.Tensor, targets: torch.Tensor, route: int | None) -> torch.Tensor:
        x = self.model.emb(ids)
        if route is not None:
            x = self.experts[route](x) * (self.gain if route else 1.0)
        return nn.functional.cross_entropy(self.model.head(self.model.body(x)), targets)


def routed(wrap: Callable[..., Any], optimizer_class: Any, accumulate: int, keep_zeros: bool) -> dict[str, Any]:
    torch.manual_seed(rank())
    run = wrap(Routed(), find_unused_parameters=True)
    optimizer = optimizer_class(run.parameters(), lr=0.05, weight_decay=0.3)
    losses, missing = [], []
    for step, route in enumerate([(0, 1), (1, 0), (None, None), (2, 1), (None, 0), (1, 1)]):
        last = step % accumulate == accumulate - 1
        with contextlib.nullcontext() if last else no_gradient_sync(run):
            loss = run(*batch(step), route[rank()])
            loss.backward()
        losses.append(loss.item())
        if last:
            missing.append([gradient is None for gradient in gradients_of(run).values()])
            optimizer.step()
            optimizer.zero_grad(set_to_none=not keep_zeros)
    return {**result(run, losses), "missing": missing, "states": len(optimizer.state)}


def check_ranks_use_different_parameters() -> None:
    """find_unused_parameters: gradients that are missing everywhere stay missing, decay and momentum leave them alone."""
    for optimizer_class in (torch.optim.AdamW, torch.optim.SGD):
        for accumulate, keep_zeros in ((1, False), (2, False), (1, True)):
            old, new = (routed(wrap, optimizer_class, accumulate, keep_zeros) for wrap in WRAPS)
            found = differences([old, new], 1e-6 if accumulate > 1 else 0.0)
            assert not found, (optimizer_class, accumulate, keep_zeros, found)
            assert old["missing"] == new["missing"]
            assert old["states"] == new["states"]


def check_ranks_use_different_parameters_before_torch_2_13() -> None:
    del FSDPModule.set_reduce_scatter_unused_params
    for accumulate in (1, 2):
        old, new = (routed(wrap, torch.optim.AdamW, accumulate, False) for wrap in WRAPS)
        assert not differences([old, new], 1e-6 if accumulate > 1 else 0.0)
        assert old["missing"] == new["missing"]
        assert old["states"] == new["states"]


def check_generator_and_discriminator() -> None:
    """Two models, two optimizers, each model in the other's backward."""
    results = []
    for wrap in WRAPS:
        torch.manual_seed(rank())
        generator, discriminator = wrap(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5))), wrap(nn.Linear(5, 1))
        of_generator = torch.optim.Adam(generator.parameters(), lr=1e-2)
        of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=1e-2)
        losses = []
        for step in range(4):
            noise, real = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(step + 10 * rank()))
            noise = noise[:, :4]
            of_discriminator.zero_grad()
            loss = (1 - discriminator(real)).relu().mean() + (1 + discriminator(generator(noise).detach())).relu().mean()
            loss.backward()
            of_discriminator.step()
            of_generator.zero_grad()
            fooled = -discriminator(generator(noise)).mean()
            fooled.backward()
            of_generator.step()
            losses += [loss.item(), fooled.item()]
        results.append((losses, parameters_of(generator), parameters_of(discriminator)))
    assert close(list(results[0][0]), list(results[1][0]), 1e-6)
    assert close(results[0][1], results[1][1], 1e-6)
    assert close(results[0][2], results[1][2], 1e-6)


def check_evaluation_first() -> None:
    """Before the first step: an evaluation, in inference mode too, or a forward of a part."""
    for mode in (torch.no_grad, torch.inference_mode):
        results = []
        for wrap in WRAPS:
            run = wrap(build("tied"))
            with mode():
                run(*batch(7))
            results.append(train(run, optimizer_of(run)))
        assert not differences(results), mode
    old, new = build("tied"), shard_like_ddp(build("tied"))
    x = torch.ones(2, 6)
    assert close(old.body.blocks[0](x), new.body.blocks[0](x))
    old = DDP(old)
    assert not differences([train(run, optimizer_of(run)) for run in (old, new)])


def check_copies_are_those_of_the_module() -> None:
    results = []
    for wrap in WRAPS:
        run = wrap(build("tied"))
        module = run.module if isinstance(run, DDP) else run
        train(run, optimizer_of(run))
        held: Any = nn.ModuleList([module])
        for copied in (copy.deepcopy(module), copy.deepcopy(held)[0], copy.deepcopy({"model": module})["model"]):
            assert not any(isinstance(part, FSDPModule) for part in copied.modules())
            assert not any(isinstance(p, DTensor) for p in copied.parameters())
            assert close(parameters_of(module), parameters_of(copied)) and type(copied) is type(build("tied"))
            copied(*batch(1)).sum().backward()
        results.append(train(run, optimizer_of(run)))
    assert not differences(results)


def check_evaluation_between_backward_and_step() -> None:
    results = []
    for wrap in WRAPS:
        run = wrap(build("tied"))
        optimizer = optimizer_of(run)
        losses = []
        for step in range(3):
            run(*batch(step)).backward()
            with torch.no_grad():
                losses.append(run(*batch(8)).item())
            optimizer.step()
            with torch.no_grad():
                losses.append(run(*batch(8)).item())
            run.zero_grad()
        results.append(result(run, losses))
    assert not differences(results)


def check_compiled() -> None:
    for after in (False, True):
        results = []
        for wrap in WRAPS:
            model = build("buffers", seed=rank())
            optimizer = optimizer_of(model)
            run = torch.compile(wrap(model), backend="eager") if after else wrap(torch.compile(model, backend="eager"))
            results.append(train(run, optimizer))
        assert not differences(results), after


def check_precisions() -> None:
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        results = []
        for wrap in WRAPS:
            run = wrap(build("tied").to(dtype))
            run(*batch(0)).backward()
            results.append(gradients_of(run))
        assert close(results[0], results[1], 0.0), dtype


def check_arguments() -> None:
    # what DDP refuses is refused
    frozen = build("tied").requires_grad_(False)
    assert isinstance(error_of(lambda: DDP(frozen)), RuntimeError)
    assert isinstance(error_of(lambda: shard_like_ddp(frozen)), RuntimeError)
    assert isinstance(error_of(lambda: WRAPS[1](build("tied"), nonsense=1)), TypeError)
    # no initial synchronization
    for arguments in ({"init_sync": False}, {"broadcast_buffers": False}, {"broadcast_buffers": False, "init_sync": False}):
        results = []
        for wrap in WRAPS:
            same = build("buffers", 0 if "init_sync" in arguments else rank())
            same.body.mean += rank()
            results.append(train(wrap(same, **arguments), optimizer_of(same)))
        assert not differences(results), arguments
    # names that DDP ignores
    results = []
    for wrap in WRAPS:
        model = build("buffers", rank())
        model._ddp_params_and_buffers_to_ignore = ["head.bias", "body.mean"]
        run = wrap(model)
        results.append(train(run, optimizer_of(run)))
    assert not differences(results)
    assert len({tuple(b.tolist()) for b in gathered(results[1]["buffers"]["body.mean"])}) == 2
    # positional, another group, a mesh
    group = dist.new_group([0, 1])
    runs = [wrap(build("tied", rank()), None, None, 0, True, True, group) for wrap in WRAPS]
    results = [train(run, optimizer_of(run)) for run in runs]
    assert not differences(results)
    again = shard_like_ddp(build("tied"))
    assert shard_like_ddp(again) is again


def check_model_without_a_forward() -> None:
    """The parts are sharded, each by itself; DDP let them run and reduced nothing."""

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.models = nn.ModuleDict({"one": tied(), "two": tied()})
            self.frozen = nn.Linear(2, 2).requires_grad_(False)

    torch.manual_seed(rank())
    run = shard_like_ddp(Parts())
    one: Any = run.models["one"]
    assert wrapper_of(one) == "ddp"
    assert not isinstance(run.frozen, FSDPModule)
    train(one, optimizer_of(one))
    assert len({tuple(p.flatten().tolist()) for p in gathered(run.frozen.weight)}) == 1
    blocks = nn.ModuleList(Residual() for _ in range(2))
    assert shard_like_ddp(blocks) is blocks
    assert all(isinstance(block, FSDPModule) for block in blocks)


def check_each_rank_its_own_group() -> None:
    """Groups of one rank: nothing is shared, and the first rank of a group is not rank 0."""
    alone = [dist.new_group([0]), dist.new_group([1])][rank()]
    results = []
    for wrap in WRAPS:
        run = wrap(build("scalars", rank()), process_group=alone)
        results.append(train(run, optimizer_of(run)))
    assert not differences(results)
    assert len({loss[0] for loss in gathered(results[1]["losses"])}) == 2


class _InLoops(nn.Module):
    """Runs its blocks as often as it is told, which ranks are told differently."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.again = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))
        self.once = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))

    def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
        for _ in range(times):
            for block in self.again:
                x = block(x)
        for i in range(len(self.once)):
            x = self.once[i](x)
        return x


def check_blocks_that_ranks_run_another_number_of_times() -> None:
    results = []
    for wrap in WRAPS:
        model: Any = wrap(_InLoops())
        if wrap is shard_like_ddp:
            inner = [isinstance(block, FSDPModule) for block in (*model.again, *model.once)]
            assert inner == [False, False, True, True]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            model(torch.full((2, 4), 0.1 + rank()), 1 + (step * (rank() + 1)) % 3).sum().backward()
            optimizer.step()
        results.append(parameters_of(model))
    assert close(*results)


def check_forward_by_its_name() -> None:
    """`model.forward(x)` was DDP's own: buffers came with it, and gradients were averaged."""
    for name in ("buffers", "scalars", "blocks in a Sequential"):
        results = []
        for wrap in WRAPS:
            run = wrap(build(name, seed=rank()))
            optimizer, losses = optimizer_of(run), []
            for step in range(4):
                optimizer.zero_grad()
                loss = run.forward(*batch(step))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            results.append(result(run, losses))
        found = differences(results)
        assert not found, (name, found)
