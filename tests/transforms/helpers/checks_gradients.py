"""What gradients.py must do on two ranks. Run by test_gradients.py."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
import torch.distributed as dist
from models import batch, build, clean, close, error_of, gathered, gradients_of, parameters_of
from to_fsdp2.transforms.helpers.clipping import clip_grad_norm, clip_grad_value, clip_model_grad_norm
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.gradients import gradient_sync, no_gradient_sync, set_gradient_sync
from to_fsdp2.transforms.helpers.mixed import compute_as_whole
from to_fsdp2.transforms.helpers.parameters import resharded
from to_fsdp2.transforms.helpers.scaling import sharded_grad_scaler
from to_fsdp2.transforms.helpers.whole import whole
from to_fsdp2.transforms.helpers.zero_gradients import reset_shards_in_zero_grad
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

INF = float("inf")


def accumulate(model: Any, switch: str, evaluate: bool = True) -> dict[str, torch.Tensor]:
    """Three steps of three micro-steps; the last one of each is synchronized."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    for step in range(3):
        for micro in range(3):
            last = micro == 2
            if switch == "attribute":
                set_gradient_sync(model, last)
                assert gradient_sync(model) is last
            with contextlib.nullcontext() if last or switch == "attribute" else no_gradient_sync(model):
                model(*batch(3 * step + micro)).backward()
            if evaluate:
                with torch.no_grad():
                    model(*batch(0))
        resharded(model)
        optimizer.step()
        reset_shards_in_zero_grad()
        model.zero_grad()
    return parameters_of(model)


def check_accumulation_is_ddps_and_fsdp1s() -> None:
    ddp = accumulate(build("ddp"), "context")
    assert close(ddp, accumulate(build("ddp"), "attribute"))
    assert close(ddp, accumulate(build("fsdp1"), "context", evaluate=False))
    for like in ("ddp", "fsdp1", None):
        assert close(ddp, accumulate(build("fsdp2", like=like), "context"), 1e-5), like
        assert close(ddp, accumulate(build("fsdp2", like=like), "attribute"), 1e-5), like


def check_gradients_that_wait_are_each_ranks_own_as_in_ddp() -> None:
    """Read, clipped by norm and by value, inside of the window and behind it; the next backward adds to what is left."""
    ddp, sharded = build("ddp"), build("fsdp2", like="ddp")
    compute_as_whole(sharded)
    for clip in (clip_grad_norm, clip_grad_value, None):
        for window in (True, False):
            norms, read = [], []
            for model in (ddp, sharded):
                reset_shards_in_zero_grad()
                model.zero_grad()
                with no_gradient_sync(model):
                    model(*batch(0)).backward()
                    if clip and window:
                        norms.append(clip(model.parameters(), 0.01))
                if clip and not window:
                    norms.append(clip(model.parameters(), 0.01))
                read.append({name.removeprefix("module."): p.grad for name, p in model.named_parameters()})
                read[-1] = {name: None if grad is None else grad.clone() for name, grad in read[-1].items()}
                model(*batch(1)).backward()
            old, new = read
            assert not any(isinstance(grad, DTensor) for grad in new.values())
            assert [name for name in old if old[name] is None] == [name for name in new if new[name] is None]
            assert close({n: g for n, g in old.items() if g is not None}, {n: g for n, g in new.items() if g is not None})
            assert clip is not clip_grad_norm or torch.isclose(*norms)
            assert close(gradients_of(ddp), gradients_of(sharded))
    with no_gradient_sync(sharded):
        sharded(*batch(0)).backward()
    assert "outside of no_gradient_sync" in str(error_of(functools.partial(clip_grad_norm, sharded.parameters(), 1.0)))


def check_no_gradient_sync_does_not_communicate() -> None:
    for like in ("ddp", "fsdp1", None):
        model = build("fsdp2", like=like)
        model(*batch(0)).backward()
        model.zero_grad()
        for _ in range(2):
            with no_gradient_sync(model):
                model(*batch(1)).backward()
            assert set(gradients_of(model).values()) == {None}, like


def check_an_evaluation_before_the_first_step_is_no_synced_forward() -> None:
    model = shard_like_ddp(build("plain"))
    with torch.no_grad():
        model(*batch(0))
    for _ in range(2):
        with no_gradient_sync(model):
            model(*batch(1)).backward()
        assert not any(isinstance(p.grad, DTensor) for p in model.parameters())


def steps_of(model: Any, plan: str) -> dict[str, torch.Tensor | None]:
    """Gradients after `plan`: forwards F and backwards B, in lower case inside no_sync; J is one backward of all losses."""
    losses, contexts = [], {True: lambda: no_gradient_sync(model), False: contextlib.nullcontext}
    for number, letter in enumerate(plan):
        with contexts[letter.islower()]():
            if letter in "Ff":
                losses.append(model(*batch(number)))
            elif letter in "Bb":
                losses.pop(0).backward()
            else:
                torch.stack(losses).sum().backward()
                losses.clear()
    return gradients_of(model)


def check_ddp_is_asked_at_the_forward() -> None:
    for plan in ("FB", "Fb", "fbFB", "fBFb", "fBFB", "FfJ", "fFJ", "fFj", "FfffJ", "fbfBFb", "FBFb", "FBfbFfJ", "fbFfj"):
        ddp, sharded = steps_of(build("ddp"), plan), steps_of(build("fsdp2", like="ddp"), plan)
        assert close(ddp, sharded), plan
    for plan in ("fb", "fB", "fbfB", "FBfB", "FBfb"):  # DDP's gradients differ by rank here; sharded ones wait
        alone = steps_of(build("fsdp2", like="ddp"), plan)
        reduced = steps_of(build("fsdp2", like="ddp"), plan.replace("fB", "").replace("fb", "")) or {}
        assert close(alone, reduced if "F" in plan else dict.fromkeys(alone)), plan


def check_fsdp1_is_asked_at_the_backward() -> None:
    for like in ("fsdp1", None):
        for plan in ("FB", "fB", "FbFB", "fbfB"):
            both = steps_of(build("ddp"), plan.upper() if len(plan) == 2 else "fbFB")
            assert close(both, steps_of(build("fsdp2", like=like), plan)), (like, plan)
        assert set(steps_of(build("fsdp2", like=like), "Fb").values()) == {None}


def check_flags_come_back() -> None:
    for like in ("ddp", "fsdp1", None):
        one, other = build("fsdp2", like=like), build("fsdp2", like=like)
        later = no_gradient_sync(one)
        with contextlib.suppress(KeyError), contextlib.ExitStack() as stack:
            stack.enter_context(later)
            stack.enter_context(no_gradient_sync(other))
            with no_gradient_sync(one):
                pass
            one(*batch(0)).backward()
            assert set(gradients_of(one).values()) == {None}, "the inner context must not switch on"
            raise KeyError
        for model in (one, other):
            model(*batch(1)).backward()
        assert close(gradients_of(one), steps_of_two_batches(0, 1)), like
        assert close(gradients_of(other), steps_of_two_batches(1)), like


def steps_of_two_batches(*steps: int) -> dict[str, torch.Tensor | None]:
    ddp = build("ddp")
    torch.stack([ddp(*batch(step)) for step in steps]).sum().backward()
    return gradients_of(ddp)


def check_other_objects_get_their_own_call() -> None:
    ddp, fsdp1, plain = build("ddp"), build("fsdp1"), build("plain")
    assert type(no_gradient_sync(ddp)) is type(ddp.no_sync())
    with no_gradient_sync(ddp):
        assert ddp.require_backward_grad_sync is False is gradient_sync(ddp)
    assert ddp.require_backward_grad_sync is True is gradient_sync(ddp)
    set_gradient_sync(ddp, False)
    assert ddp.require_backward_grad_sync is False
    with no_gradient_sync(fsdp1):
        assert fsdp1._sync_gradients is False
    assert fsdp1._sync_gradients is True
    assert isinstance(error_of(lambda: no_gradient_sync(plain)), AttributeError)
    assert isinstance(error_of(lambda: gradient_sync(fsdp1)), AttributeError)
    set_gradient_sync(plain, False)
    assert plain.require_backward_grad_sync is False

    class Other:
        def no_sync(self) -> str:
            return "mine"

        def clip_grad_norm_(self, *arguments: float) -> tuple[float, ...]:
            return arguments

    assert no_gradient_sync(Other()) == "mine" and clip_model_grad_norm(Other(), 1, 2) == (1, 2)


def check_gradients_of_a_window_that_was_given_up() -> None:
    for switch_first in (False, True):
        results = []
        for kind, like in (("ddp", None), ("fsdp1", None), ("fsdp2", "ddp"), ("fsdp2", "fsdp1"), ("fsdp2", None)):
            model = build(kind, like=like)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.3, foreach=False)
            for step in range(3):
                reset_shards_in_zero_grad()
                with no_gradient_sync(model):
                    model(*batch(2 * step)).backward()
                if step == 1:
                    (optimizer if switch_first else model).zero_grad()
                    continue
                model(*batch(2 * step + 1)).backward()
                optimizer.step()
                optimizer.zero_grad()
            results.append(parameters_of(model))
        assert all(close(results[0], other, 1e-5) for other in results[1:])


def check_optimizers_drop_a_window_that_was_given_up() -> None:
    found = []
    kinds = [("fsdp2", like) for like in ("ddp", "fsdp1", None)]
    for model in (build("ddp"), shard_like_ddp(build("plain")), *(build(kind, like=like) for kind, like in kinds)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            with no_gradient_sync(model):
                model(*batch(step)).backward()
            if step:  # the first window goes on, the others are given up
                optimizer.zero_grad()
            model(*batch(step + 10)).backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(parameters_of(model))
    assert all(close(found[0], other) for other in found[1:])


def check_dropped_gradients_in_low_precision() -> None:
    """Unsynced gradients are kept apart in the type that they are reduced in."""
    results = []
    for given_up in (False, True):
        torch.manual_seed(0)
        model: Any = nn.Linear(4, 3)
        fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
        if given_up:
            with no_gradient_sync(model):
                model(torch.ones(2, 4)).sum().backward()
            torch.optim.SGD(model.parameters()).zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        results.append(gradients_of(model))
    assert close(results[0], results[1])


def check_compiled_models_are_the_model() -> None:
    for like in ("ddp", "fsdp1"):
        model = build("fsdp2", like=like)
        compiled = torch.compile(model, backend="eager")
        with no_gradient_sync(compiled):
            compiled(*batch(0)).backward()
        assert set(gradients_of(model).values()) == {None}
        compiled(*batch(1)).backward()
        expected = steps_of_two_batches(0, 1)
        assert close(gradients_of(model), expected), like
        norm = clip_model_grad_norm(compiled, 0.1)
        assert close(norm, torch.nn.utils.get_total_norm([g for g in expected.values() if g is not None]), 1e-5)


def scales(kind: str, where: str, ignored: bool, unscale: bool, fused: bool) -> list[Any]:
    """Scales, and how often parameters moved, over four steps; in the second, rank 0 has a gradient that is inf."""
    model = build(kind, ignored=ignored)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False, fused=fused)
    make = ShardedGradScaler if kind == "fsdp1" else sharded_grad_scaler
    scaler = make("cpu", init_scale=64.0, growth_interval=2)
    seen = []
    for step in range(4):
        before = parameters_of(model)
        scaler.scale(model(*batch(step))).backward()
        for name, p in model.named_parameters():
            if ignored and clean(name) in ("scale", "layers.0.norm.weight", "layers.0.norm.bias"):
                dist.all_reduce(p.grad)
                p.grad /= 2
        if step == 1 and dist.get_rank() == 0:
            name = "scale" if where == "plain" else "emb.weight"
            grad = next(p.grad for n, p in model.named_parameters() if clean(n) == name)
            (grad.to_local() if isinstance(grad, DTensor) else grad).view(-1)[0] = INF
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        moved = {name for name, p in parameters_of(model).items() if not torch.equal(p, before[name])}
        seen.append((scaler.get_scale(), len(moved)))
    return [seen, parameters_of(model)]


def check_scaler_is_fsdp1s() -> None:
    for where, ignored in (("shard", False), ("shard", True), ("plain", True)):
        expected = scales("fsdp1", where, ignored, True, False)
        assert expected[0][1] == (32.0, 0)
        for unscale, fused in ((True, False), (False, False), (True, not ignored), (False, not ignored)):
            seen = scales("fsdp2", where, ignored, unscale, fused)
            assert len({str(one) for one in gathered(seen[0])}) == 1
            assert seen[0] == expected[0], (where, ignored, unscale, fused, seen[0], expected[0])
            assert close(seen[1], expected[1], 1e-5), (where, ignored, unscale, fused)


def check_scaler_elsewhere() -> None:
    cases: Any = ({"enabled": False}, {"process_group": dist.new_group([0, 1])}, {})
    for arguments in cases:
        model = build("ddp")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = sharded_grad_scaler("cpu", 4.0, 0.25, 2.0, 100, **arguments)
        assert isinstance(scaler, torch.amp.GradScaler)
        assert scaler.state_dict() == ShardedGradScaler("cpu", 4.0, 0.25, 2.0, 100, **arguments).state_dict()
        loss = scaler.scale(model(*batch(0)))
        loss.backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (1.0 if "enabled" in arguments else 4.0)
    scaler = sharded_grad_scaler("cpu", 4.0)
    alone = nn.Linear(3, 3)  # has a gradient on one rank only
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    loss = scaler.scale(alone(torch.full((1, 3), INF)).sum())
    if dist.get_rank() == 0:
        loss.backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    half = nn.Linear(3, 3).half()
    fully_shard(half)
    scaler = sharded_grad_scaler("cpu", 4.0)
    optimizer = torch.optim.SGD(half.parameters(), lr=0.1)
    scaler.scale(half(torch.ones(2, 3).half()).sum()).backward()
    scaler.unscale_(optimizer)
    assert close(gradients_of(half)["bias"], torch.full((3,), 2.0).half())


def check_a_scaler_over_a_sharded_model_and_a_plain_one_of_each_rank() -> None:
    """As a head that is spread over ranks by hand, beside a backbone: one optimizer steps on both."""
    results = []
    for kind in ("plain", "sharded"):
        torch.manual_seed(0)
        backbone: Any = nn.Linear(4, 4)
        backbone = DistributedDataParallel(backbone) if kind == "plain" else shard_like_ddp(backbone)
        torch.manual_seed(1 + dist.get_rank())
        head = nn.Linear(4, 3)
        optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(head(backbone(torch.ones(2, 4))).sum()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        results.append([whole(p.detach()) for p in [*backbone.parameters(), *head.parameters()]])
    assert all(torch.allclose(*pair) for pair in zip(*results, strict=True))
