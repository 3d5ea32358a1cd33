"""What parts.py must do on two ranks: what code outside of forwards computes with FSDP1's own parts. Run by test_parts.py."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from models import batch, build, close, error_of, parameters_of
from to_fsdp2.transforms.helpers.parts import compute_with_parts
from torch.distributed.tensor import DTensor


def built(kind: str) -> Any:
    return build("fsdp1") if kind == "fsdp1" else compute_with_parts(build("fsdp2"))


def require_alike(edit: Callable[[Any], list[torch.Tensor]], make: Callable[[Any], Any] = torch.optim.SGD) -> None:
    """That training with `edit(model)` between backward and step gives the same numbers and parameters as under FSDP1."""
    found = []
    for kind in ("fsdp1", "fsdp2"):
        model = built(kind)
        optimizer = make(model.parameters())
        given = []
        for step in range(3):
            model(*batch(step)).backward()
            numbers = edit(model)
            assert not any(isinstance(number, DTensor) for number in numbers)
            given += numbers
            optimizer.step()
            optimizer.zero_grad()
        found.append((given, parameters_of(model)))
    (numbers, before), (others, after) = found
    assert close(numbers, others), (numbers, others)
    assert close(before, after)


def over_ranks(number: Any, operation: Any = dist.ReduceOp.SUM) -> torch.Tensor:
    number = torch.as_tensor(number, dtype=torch.float32).clone()
    dist.all_reduce(number, operation)
    return number


def parts_of(model: Any) -> list[torch.Tensor]:
    """Parameters and gradients of which this rank has something."""
    tensors = [t for p in model.parameters() for t in (p.detach(), p.grad) if t is not None]
    return [t for t in tensors if t.numel() > 0]


def check_sums_and_counts_add_up() -> None:
    def edit(model: Any) -> list[torch.Tensor]:
        parts = parts_of(model)
        total = torch.cat([x.sum().unsqueeze(0) for x in parts]).sum()
        square = torch.stack([torch.linalg.vector_norm(x, 2.0, dtype=torch.float32) for x in parts]).square().sum()
        count = sum(x.numel() for x in parts)
        return [over_ranks(total), over_ranks(square).sqrt(), over_ranks(count), over_ranks(total) / over_ranks(count)]

    require_alike(edit)


def check_extremes_are_of_all_ranks() -> None:
    def edit(model: Any) -> list[torch.Tensor]:
        parts = [x.abs() for x in parts_of(model)]
        least, most = torch.stack([x.min() for x in parts]).min(), torch.stack([x.max() for x in parts]).max()
        read = max(x.max().item() for x in parts)
        return [over_ranks(least, dist.ReduceOp.MIN), over_ranks(most, dist.ReduceOp.MAX), over_ranks(read, dist.ReduceOp.MAX)]

    require_alike(edit)


def check_own_clipping_of_each_gradient() -> None:
    def edit(model: Any) -> list[torch.Tensor]:
        norms = []
        for p in model.parameters():
            square = torch.zeros(()) if p.grad is None else p.grad.pow(2).sum()
            norms.append(over_ranks(square).sqrt())
            if p.grad is not None:
                p.grad.detach().mul_((0.1 / (norms[-1] + 1e-6)).clamp(max=1.0))
        return norms

    require_alike(edit)


def check_gradients_that_are_set_anew() -> None:
    def edit(model: Any) -> list[torch.Tensor]:
        for p in model.parameters():
            if p.grad is not None:
                p.grad = p.grad / 2 + 0.01 * p.detach()
        return []

    require_alike(edit)


class Lion(torch.optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            state = self.state[p]
            if not state:
                state["exp_avg"] = torch.zeros_like(p)
            update = state["exp_avg"] * 0.9 + p.grad * 0.1
            p.mul_(1 - 0.001).add_(update.sign(), alpha=-0.01)
            state["exp_avg"].mul_(0.99).add_(p.grad, alpha=0.01)
            assert isinstance(state["exp_avg"], DTensor) == isinstance(p, DTensor)


def check_an_optimizer_of_ones_own() -> None:
    require_alike(lambda model: [], Lion)


def check_lists_stay_lists_of_shards() -> None:
    model = built("fsdp2")
    model(*batch(0)).backward()
    grads = [p.grad for p in model.parameters()]
    scaled: Any = torch._foreach_mul(grads, 0.5)  # pyright: ignore[reportPrivateImportUsage]
    assert all(close((half * 2).full_tensor(), grad.full_tensor()) for half, grad in zip(scaled, grads, strict=True))


def check_lists_that_are_paired() -> None:
    """Averages of shards and of parameters that no unit holds, in one list."""
    found = []
    for kind in ("fsdp1", "fsdp2"):
        model, alone = built(kind), torch.nn.Parameter(torch.ones(3))
        averages = [p.detach().clone() for p in (*model.parameters(), alone)]
        foreach: Any = torch
        foreach._foreach_mul_([p.detach() for p in (*model.parameters(), alone)], 3.0)
        foreach._foreach_lerp_(averages, [p.detach() for p in (*model.parameters(), alone)], 0.5)
        found.append(over_ranks(sum(average.sum().item() for average in averages)))
        assert close(averages[-1], torch.full((3,), 2.0))
    assert close(found[0], found[1])


def check_what_torch_computes_stays_of_all() -> None:
    model = built("fsdp2")
    model(*batch(0)).backward()
    norm: Any = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    whole = torch.stack([p.grad.full_tensor().norm() for p in model.parameters()]).norm()
    assert close(norm.full_tensor(), whole)
    weight = model.emb.weight
    assert weight.shape == weight.full_tensor().shape and weight.dim() == 2
    file = io.BytesIO()
    torch.save(weight, file)
    file.seek(0)
    assert isinstance(torch.load(file, weights_only=False), DTensor)


def check_parts_that_are_set() -> None:
    def edit(model: Any) -> list[torch.Tensor]:
        for p in model.parameters():
            if p.grad is not None and p.numel() > 0:
                p.data = torch.from_numpy(p.detach().numpy() * 0.5)
                p.grad = torch.from_numpy(p.grad.numpy() * 0.5)
                p.grad.data = torch.from_numpy(p.grad.numpy() + 0.1)
        return []

    require_alike(edit)
    require_alike(edit, lambda parameters: torch.optim.SGD(parameters, momentum=0.9))


def check_vectors_of_all_parts() -> None:
    def edit(model: Any) -> list[torch.Tensor]:
        used = [p for p in model.parameters() if p.grad is not None and p.numel() > 0]
        vector = torch.nn.utils.parameters_to_vector(used).detach()
        torch.nn.utils.vector_to_parameters(vector * 0.9, used)
        return [over_ranks(torch.cat([p.grad.view(-1) for p in used]).abs().sum()), over_ranks(vector.sum())]

    require_alike(edit)


def check_what_is_made_like_the_whole_parameter_is_cut() -> None:
    """As noise of a gradient's shape is, and a mask; written into it is what the part has."""
    model = built("fsdp2")
    weight = model.emb.weight
    mask = torch.rand(weight.shape, generator=torch.Generator().manual_seed(3))
    before = weight.full_tensor().clone()
    assert torch.equal((weight.detach() * mask).full_tensor(), before * mask)
    assert torch.equal((mask == weight.detach()).full_tensor(), mask == before)
    weight.data.mul_(1 + mask).add_(mask, alpha=0.5)
    assert close(weight.full_tensor(), before * (1 + mask) + mask * 0.5)
    weight.data.copy_(mask)
    assert torch.equal(weight.full_tensor(), mask)
    assert "mixed torch.Tensor and DTensor" in str(error_of(lambda: mask.mul_(weight.detach())))


def check_shapes_that_fit_no_part_raise() -> None:
    model = built("fsdp2")
    weight, before = model.emb.weight, model.emb.weight.full_tensor().clone()
    for operate in (lambda: weight * torch.ones(6), lambda: weight.data.mul_(torch.ones(6)), lambda: weight @ torch.ones(6, 4)):
        assert "mixed torch.Tensor and DTensor" in str(error_of(operate))
    assert torch.equal(weight.full_tensor(), before)
    rows = torch.tensor([0, 2])
    assert not isinstance(weight[rows], DTensor) and weight[rows].shape == (2, 6)
    assert isinstance(weight.detach() * torch.tensor([2.0]), DTensor)


def check_what_is_asked_of_the_whole_parameter() -> None:
    model = built("fsdp2")
    weight, seen = model.emb.weight, []
    weight.register_post_accumulate_grad_hook(seen.append)
    weight.retain_grad()
    model(*batch(0)).backward()
    assert seen == [weight]
    leaf = model.layers[0].up.weight.detach().requires_grad_()
    (gradient,) = torch.autograd.grad((leaf * leaf).sum(), leaf)
    assert close((leaf.detach() * 2).full_tensor(), gradient.full_tensor())
    torch.autograd.backward((leaf * leaf).sum(), inputs=[leaf])
    assert close(leaf.grad.full_tensor(), gradient.full_tensor())
    del leaf.grad
    assert leaf.grad is None
