"""What comm_hooks.py, methods.py and wrapped.py must do on two ranks. Run by test_shard_programs.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from checks_shard_uses import compare, loop, ones
from models import batch, close, error_of, parameters_of, wrapper_of
from shard_models import build, differences, optimizer_of, result, tied, train
from to_fsdp2.transforms.helpers.comm_hooks import register_comm_hook, register_comm_hook_type
from to_fsdp2.transforms.helpers.copies import laid_out_like
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.gradients import no_gradient_sync
from to_fsdp2.transforms.helpers.methods import forward_method
from to_fsdp2.transforms.helpers.shard import shard_like_fsdp1
from to_fsdp2.transforms.helpers.units import is_root, units
from torch import nn
from torch.distributed.algorithms._comm_hooks import default_hooks as fsdp1_hooks
from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, default_hooks, powerSGD_hook
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


def check_compressing_hooks() -> None:
    """As under DDP bitwise, with accumulation too, which stays in the parameters' type; parameters that stay plain as well."""
    for hook, name in (
        (default_hooks.fp16_compress_hook, "tied"),
        (default_hooks.allreduce_hook, "tied"),
        (default_hooks.fp16_compress_hook, "scalars"),
    ):
        for accumulate in (1, 2):
            results = []
            for wrap in (DDP, shard_like_ddp):
                run = wrap(build(name))
                register_comm_hook(run, None, hook)
                optimizer, losses = optimizer_of(run), []
                for step in range(4):
                    last = step % accumulate == accumulate - 1
                    with contextlib.nullcontext() if last else no_gradient_sync(run):
                        loss = run(*batch(step))
                        loss.backward()
                    losses.append(loss.item())
                    if last:
                        optimizer.step()
                        optimizer.zero_grad()
                results.append(result(run, losses))
            assert not differences(results, 1e-6 if accumulate > 1 else 0.0), (hook, accumulate)
    plain = shard_like_ddp(build("tied"))
    plain(*batch(0)).backward()
    compressed = shard_like_ddp(build("tied"))
    register_comm_hook(compressed, None, default_hooks.fp16_compress_hook)
    by_type = shard_like_ddp(build("tied"))
    register_comm_hook_type(DDPCommHookType.FP16_COMPRESS, by_type)
    for run in (compressed, by_type):
        run(*batch(0)).backward()
    assert torch.equal(by_type.head.bias.grad.full_tensor(), compressed.head.bias.grad.full_tensor())
    register_comm_hook_type(DDPCommHookType.POWER_SGD, DDP(build("tied")))
    assert not torch.equal(plain.head.bias.grad.full_tensor(), compressed.head.bias.grad.full_tensor())


def check_hooks_of_fsdp1() -> None:
    """As DDP's hook of the same name; FSDP1 itself cannot run them without CUDA."""
    results = []
    for wrap, hook in ((DDP, default_hooks.fp16_compress_hook), (shard_like_fsdp1, fsdp1_hooks.fp16_compress_hook)):
        run = wrap(build("tied"))
        register_comm_hook(run, None, hook)
        results.append(train(run, optimizer_of(run)))
    assert not differences(results)


def check_hooks_before_torch_2_9() -> None:
    """Without set_custom_reduce_scatter, also after the first forward."""
    new = FSDPModule.set_custom_reduce_scatter
    results = []
    for wrap, warm in ((DDP, False), (shard_like_ddp, False), (shard_like_ddp, True)):
        run = wrap(build("tied"))
        if warm:
            run(*batch(5)).backward()
            run.zero_grad()
        del FSDPModule.set_custom_reduce_scatter
        try:
            register_comm_hook(run, None, default_hooks.fp16_compress_hook)
        finally:
            FSDPModule.set_custom_reduce_scatter = new
        results.append(train(run, optimizer_of(run)))
    assert not differences(results[:2])
    assert not differences(results[1:])


def check_other_hooks_are_refused() -> None:
    model = shard_like_ddp(tied())
    for hook in (powerSGD_hook.powerSGD_hook, lambda state, bucket: bucket):
        error = error_of(lambda hook=hook: register_comm_hook(model, None, hook))
        assert isinstance(error, NotImplementedError), error


class Text(nn.Module):
    """forward scores, `encode` and `generate` are methods of their own; `generate` goes through forward."""

    name = "text"

    def __init__(self) -> None:
        super().__init__()
        self.inner = tied()

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.inner(ids, targets)

    def encode(self, ids: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.inner.body(self.inner.emb(ids)) * scale

    @torch.no_grad()
    def generate(self, ids: torch.Tensor) -> torch.Tensor:
        return self.inner.head(self.encode(ids)).argmax(-1)

    def make_optimizer(self) -> torch.optim.Optimizer:
        decayed = [p for p in self.parameters() if p.dim() > 1]
        others = [p for p in self.parameters() if p.dim() <= 1]
        self.optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=0.1)
        return self.optimizer

    def groups(self) -> list[dict[str, Any]]:
        return [{"params": p, "lr": 0.1} for p in self.parameters()]


def check_methods() -> None:
    torch.manual_seed(0)
    plain = Text()
    torch.manual_seed(0)
    sharded = shard_like_ddp(Text())
    compiled = torch.compile(sharded, backend="eager")
    ids, _ = batch(0)
    for model in (sharded, compiled, sharded):
        assert torch.equal(forward_method(model, "encode")(ids, scale=2.0), plain.encode(ids, scale=2.0))
        assert torch.equal(forward_method(model, "generate")(ids), plain.generate(ids))
    assert torch.equal(forward_method(plain, "encode")(ids), plain.encode(ids))
    assert forward_method(sharded, "encode") == forward_method(sharded, "encode")
    assert forward_method(sharded, "name") == "text"
    assert isinstance(error_of(lambda: forward_method(sharded, "absent")), AttributeError)
    # training through a method
    results: list[Any] = []
    ddp = DDP(plain)
    for model in (ddp, sharded):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            optimizer.zero_grad()
            model(*batch(step)).backward()
            optimizer.step()
        results.append(parameters_of(model))
    assert close(results[0], results[1], 0.0)


def check_a_method_that_a_forward_calls() -> None:
    """It writes parameters that the same forward goes on with; before a call from outside and after it, as under DDP."""

    class Normalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.out = nn.Linear(6, 6), nn.Linear(6, 6)

        @torch.no_grad()
        def normalize(self) -> torch.Tensor:
            self.out.weight.div_(self.out.weight.norm())
            return self.out.weight.norm()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            forward_method(self, "normalize")()
            return self.out(self.inner(x).relu()).square().mean()

    results: list[Any] = []
    for wrap in (DDP, shard_like_ddp):
        torch.manual_seed(0)
        model = Normalized()
        run, losses = wrap(model), []
        optimizer = torch.optim.SGD(run.parameters(), lr=0.5)
        for step in range(4):
            loss = run(torch.full((2, 6), 1.0 + step))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if step == 1:
                losses.append(forward_method(model, "normalize")().item())
        results.append(result(run, losses))
    assert not differences(results, 0.0)


def check_a_method_of_a_part_that_writes() -> None:
    """What it writes stays, be it called on its own or behind a forward without gradients."""

    class Headed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x).relu()).square().mean()

    results: list[Any] = []
    for wrap in (DDP, shard_like_ddp):
        torch.manual_seed(0)
        model = Headed()
        run, losses = wrap(model), []
        optimizer = torch.optim.SGD(run.parameters(), lr=0.5)
        for step in range(4):
            loss = run(torch.full((2, 6), 1.0 + step))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 2:
                with torch.no_grad():
                    losses.append(run(torch.ones(2, 6)).item())
            torch.manual_seed(step)
            forward_method(model.head, "reset_parameters")()
            losses.append(loss.item())
        results.append(result(run, losses))
    assert not differences(results, 0.0)


def check_methods_that_hand_out_parameters() -> None:
    """Optimizers and groups hold the sharded parameters, also where the root stays gathered after the method."""
    results: list[Any] = []
    wraps: list[Any] = [DDP, shard_like_ddp]
    for wrap in wraps:
        torch.manual_seed(0)
        model = wrap(Text())
        text = model.module if wrap is DDP else model
        kept = forward_method(text, "make_optimizer")()
        returned = torch.optim.SGD(forward_method(text, "groups")())
        if wrap is shard_like_ddp:
            held = {id(p) for p in model.parameters()}
            for optimizer in (kept, returned):
                assert {id(p) for group in optimizer.param_groups for p in group["params"]} == held
        for step in range(3):
            kept.zero_grad()
            model(*batch(step)).backward()
            kept.step()
            returned.step()
        results.append(parameters_of(model))
    assert close(results[0], results[1], 0.0)


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).tanh())

    def places(self) -> dict[nn.Parameter, int]:
        return {p: place for place, p in enumerate(self.parameters())}

    @torch.no_grad()
    def grow(self, outputs: int) -> dict[Any, Any]:
        old, self.head = self.head, nn.Linear(6, outputs)
        self.head.weight[: old.out_features].copy_(old.weight)
        return {old.weight: self.head.weight, old.bias: self.head.bias}


def check_parameters_of_layers_that_a_method_replaces() -> None:
    """The optimizer holds the sharded ones, also of the layer that has left: by them it finds what is new."""
    results: list[Any] = []
    wraps: list[Any] = [DDP, shard_like_ddp]
    for wrap in wraps:
        torch.manual_seed(0)
        model = wrap(Growing())
        net = model.module if wrap is DDP else model
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for outputs in (2, 3):
            if outputs == 3:
                swap = forward_method(net, "grow")(outputs)
                assert all(p in swap for p in optimizer.param_groups[0]["params"][2:])
                optimizer.param_groups[0]["params"][2:] = swap.values()
                model = wrap(net)
            for step in range(3):
                optimizer.zero_grad()
                model(torch.full((2, 6), 0.1 * (step + dist.get_rank()))).square().sum().backward()
                optimizer.step()
        results.append(parameters_of(net))
    assert close(results[0], results[1], 1e-6)


def check_hooks_find_parameters_whole_where_a_method_has_handed_them_out() -> None:
    results: list[Any] = []
    wraps: list[Any] = [DDP, shard_like_ddp]
    for wrap in wraps:
        torch.manual_seed(0)
        model = wrap(Growing())
        weight = (model.module if wrap is DDP else model).body.weight
        seen: list[float] = []
        if dist.get_rank() == 0:
            weight.register_hook(lambda _, kept=weight, seen=seen: seen.append(kept.detach().norm().item()))
        for step in range(3):
            model(torch.full((2, 6), 0.1 * step)).sum().backward()
            assert len(forward_method(model.module if wrap is DDP else model, "places")()) == 4
        results.append(seen)
    assert close(results[0], results[1], 1e-6) and len(results[0]) == (3 if dist.get_rank() == 0 else 0)


def check_averages_of_parameters() -> None:
    """A plain average that is made of sharded parameters, and sharded parameters that are set to it."""
    results: list[Any] = []
    for wrap in (DDP, shard_like_ddp):
        torch.manual_seed(0)
        averages = {name: p.detach().clone() for name, p in Text().named_parameters()}
        model = wrap(Text())
        for name, p in (model.module if isinstance(model, DDP) else model).named_parameters():
            averages[name].mul_(0.5).add_(laid_out_like(p.data, averages[name]), alpha=0.25)
            p.data.lerp_(laid_out_like(averages[name], p.data), 0.5)
        results.append(parameters_of(model))
        assert type(laid_out_like(averages["inner.head.bias"], averages["inner.head.bias"])) is torch.Tensor
        assert laid_out_like(0.5, averages["inner.head.bias"]) == 0.5
    assert close(results[0], results[1], 0.0)


def check_wrapped_like() -> None:
    assert wrapper_of(shard_like_ddp(tied())) == "ddp"
    assert wrapper_of(shard_like_fsdp1(tied())) == "fsdp1"
    assert wrapper_of(torch.compile(shard_like_ddp(tied()), backend="eager")) == "ddp"
    assert wrapper_of(tied()) is None
    assert wrapper_of(DDP(tied())) is None


def check_roots() -> None:
    """The outermost unit is the root, before and after a forward."""
    text: Any = shard_like_ddp(Text())
    for _ in range(2):
        assert [is_root(unit) for unit in units(text)] == [True] + [False] * (len(units(text)) - 1)
        text(*batch(0)).backward()


def check_a_method_that_leaves_blocks_gathered() -> None:
    """With reshard_after_forward=False; optimizers keep the shards."""

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks, self.out = nn.ModuleList(nn.Linear(6, 6) for _ in range(2)), nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x).relu()
            return self.out(x)

        def loss(self, x: torch.Tensor) -> torch.Tensor:
            return self(x).square().mean()

    def losses(wrap: Any) -> list[float]:
        torch.manual_seed(0)
        model = WithLoss()
        run = wrap(model)
        optimizer, found = torch.optim.AdamW(run.parameters(), lr=0.01), []
        for step in range(4):
            loss = forward_method(run, "loss")(torch.full((2, 6), 1.0 + step))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    def sharded(model: Any) -> Any:
        for block in model.blocks:
            fully_shard(block, reshard_after_forward=False)
        return fully_shard(model, reshard_after_forward=False)

    assert close(losses(sharded), losses(lambda model: model), 1e-6)


def check_methods_that_write_parameters() -> None:
    """What a method writes into parameters stays, also by `p.data`; what it leaves alone keeps all of its digits."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(5, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x)).sum()

        @torch.no_grad()
        def enforce(self, keep: float) -> torch.Tensor:
            self.first.weight.data.mul_(self.first.weight.abs() > keep)
            self.second.bias.fill_(0.5)
            return self.first.weight.norm()

    results, norms = [], []
    for wrap in (DDP, shard_like_ddp):
        run = wrap(Masked())
        module: Any = getattr(run, "module", run)
        optimizer = torch.optim.SGD(run.parameters(), lr=0.1)
        for _ in range(3):
            run(torch.ones(2, 5)).backward()
            optimizer.step()
            norms.append(forward_method(module, "enforce")(0.2))
        results.append(parameters_of(run))
    assert close(results[0], results[1], 0.0) and all(close(a, b) for a, b in zip(norms[:3], norms[3:], strict=True))


class Scored(nn.Module):
    """A block that also runs by another method, as blocks do that show their attention."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x) * self.scale

    def scored(self, x: torch.Tensor, power: int) -> tuple[torch.Tensor, torch.Tensor]:
        inner = self.inner(x)
        return x + inner * self.scale, (inner * self.scale) ** power


class Shown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Scored() for _ in range(3))

    def forward(self, x: torch.Tensor, shows: bool = False) -> torch.Tensor:
        total = torch.zeros(())
        layers: Any = self.layers
        for layer in layers:
            x, score = layer.scored(x, 2) if shows else (layer(x), torch.zeros(()))
            total = total + score.sum()
        return x.tanh().sum() + total

    def scores(self, x: torch.Tensor) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        layers: Any = self.layers
        for layer in layers:
            x, score = layer.scored(x, 1)
            found.append(score)
        return found


def check_blocks_that_run_by_other_methods() -> None:
    """Some forwards after the first, and a method of the model, run the blocks by another method than forward."""

    def use(wrap: Callable[..., Any]) -> dict[str, Any]:
        model, seen = Shown(), []
        run = wrap(model)

        def loss_of(step: int) -> torch.Tensor:
            with torch.no_grad():
                seen.append(sum(score.sum().item() for score in forward_method(model, "scores")(ones(9))))
            return run(ones(step), shows=step % 2 == 1)

        found = loop(run, loss_of)
        return {**found, "losses": found["losses"] + seen}

    compare(use, 1e-5)
