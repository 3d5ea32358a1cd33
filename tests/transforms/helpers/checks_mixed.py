"""What mixed.py must do on two ranks: what code outside of forwards computes under DDP. Run by test_mixed.py."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import batch, build, close, error_of, parameters_of
from to_fsdp2.transforms.helpers.collectives import on_whole
from to_fsdp2.transforms.helpers.mixed import compute_as_whole
from to_fsdp2.transforms.helpers.whole import whole
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

Edit = Callable[[Any], Any]


def sharded() -> Any:
    net = build("fsdp2")
    compute_as_whole(net)
    return net


def plain(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


def require_alike(edit: Edit) -> None:
    """That `edit(model)` gives the same with DDP's module as with a sharded model, and leaves it the same parameters."""
    found = []
    for net in (build("ddp").module, sharded()):
        for step in range(2):
            net(*batch(0, 0)).backward()  # the same on both ranks, so that DDP's module needs no average
            given = [plain(one) for one in edit(net)]
            torch.optim.SGD(net.parameters(), lr=0.1).step()
            net.zero_grad()
            found.append((given, parameters_of(net)))
            assert step < 2
    for (one, before), (other, after) in zip(found[:2], found[2:], strict=True):
        for a, b in zip(one, other, strict=True):
            assert close(torch.as_tensor(a), torch.as_tensor(b)), (a, b)
        for name, kept in before.items():
            assert close(after[name], kept), name


def require_trains_alike(loss_of: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
    """That training on `loss_of(module, loss)` of batches that differ by rank is the same as under DDP."""
    found = []
    for kind in ("ddp", "fsdp2"):
        model = build("ddp") if kind == "ddp" else sharded()
        module = model.module if kind == "ddp" else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        losses = []
        for step in range(3):
            total = loss_of(module, model(*batch(step)))
            assert not isinstance(total, DTensor)
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            losses.append(total.detach())
        found.append((losses, parameters_of(module)))
    (losses, before), (others, after) = found
    assert all(close(one, other) for one, other in zip(losses, others, strict=True)), (losses, others)
    for name, kept in before.items():
        assert close(after[name], kept), name


def check_penalties_towards_copies_made_before() -> None:
    start = [p.detach().clone() for p in build("plain").parameters()]
    weights = [torch.rand(p.shape, generator=torch.Generator().manual_seed(3)) for p in start]

    def loss_of(module: Any, loss: torch.Tensor) -> torch.Tensor:
        for p, first, weight in zip(module.parameters(), start, weights, strict=True):
            loss = loss + 0.1 * (weight * (p - first) ** 2).sum()
        return loss

    require_trains_alike(loss_of)


def check_penalties_of_parameters_alone() -> None:
    def loss_of(module: Any, loss: torch.Tensor) -> torch.Tensor:
        penalty = 0.0
        for part in module.modules():
            if isinstance(part, nn.Linear):
                gram = part.weight @ part.weight.t()
                penalty = penalty + ((gram - torch.eye(len(gram))) ** 2).sum()
        penalty += torch.stack([p.norm() for p in module.parameters()]).sum()
        loss += 0.01 * penalty
        return loss

    require_trains_alike(loss_of)


def check_sums_of_all_parameters_are_part_of_the_loss() -> None:
    require_trains_alike(lambda module, loss: loss + 0.1 * sum(p.sum() for p in module.parameters()))
    require_trains_alike(lambda module, loss: loss + (dist.get_rank() + 1) * sum(p.mean() for p in module.parameters()))


def check_what_a_rank_computes_with_its_own_data() -> None:
    def loss_of(module: Any, loss: torch.Tensor) -> torch.Tensor:
        own = torch.full((6,), 0.1 * (dist.get_rank() + 1))
        scores = own @ module.emb.weight.t()
        return loss + scores.logsumexp(0) + (own * module.scale).sum() + loss.detach() * module.scale.sum()

    require_trains_alike(loss_of)


def check_gradients_by_parameters_are_a_ranks_own() -> None:
    found = []
    for model in (build("ddp"), sharded()):
        module = model.module if hasattr(model, "module") else model
        parameters = list(module.parameters())
        loss = model(*batch(1))
        penalty: Any = sum((p**2).sum() for p in parameters)
        of_loss = torch.autograd.grad(loss, parameters, retain_graph=True)
        of_penalty = torch.autograd.grad(penalty, parameters, retain_graph=True)
        product: Any = sum((a * b).sum() for a, b in zip(of_loss, of_penalty, strict=True))
        single = torch.autograd.grad(loss, inputs=module.head.weight, retain_graph=True)[0]
        (loss * (1 + product.detach()) + penalty).backward()
        assert not any(isinstance(g, DTensor) for g in (*of_loss, single))
        found.append([*of_loss, *of_penalty, product, single, *(plain(p.grad) for p in parameters)])
        assert error_of(lambda p=parameters: torch.autograd.grad(torch.ones(2, requires_grad=True).sum(), p)) is not None
        unused = torch.autograd.grad(model(*batch(1)), [*parameters, torch.ones(2, requires_grad=True)], allow_unused=True)
        assert unused[-1] is None
    for one, other in zip(*found, strict=True):
        assert close(one, other)


def _reduce_each(gradients: list[Any]) -> None:
    for gradient in gradients:
        gradient /= dist.get_world_size()
        on_whole(dist.all_reduce)(gradient.data)


def _reduce_together(gradients: list[Any]) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, mean in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def check_gradients_that_each_rank_assigns_are_its_own_until_it_reduces_them() -> None:
    found = []
    for model in (build("ddp"), sharded()):
        module = model.module if hasattr(model, "module") else model
        for reduce in (_reduce_each, _reduce_together):
            parameters = list(module.parameters())
            own = torch.autograd.grad(model(*batch(1)), parameters)
            for p, gradient in zip(parameters, own, strict=True):
                p.grad = gradient
            norms = [p.grad.norm().item() for p in parameters]
            reduce([p.grad for p in parameters])
            torch.nn.utils.clip_grad_norm_(parameters, 0.1)
            found.append([*map(torch.as_tensor, norms), *(plain(p.grad) for p in parameters)])
            torch.optim.SGD(parameters, lr=0.1).step()
            found.append([p.detach() for p in parameters_of(module).values()])
            module.zero_grad()
    for one, other in zip(found[:4], found[4:], strict=True):
        for a, b in zip(one, other, strict=True):
            assert close(a, b), (a, b)


def check_numbers_and_arrays() -> None:
    def edit(net: Any) -> list[Any]:
        w = net.layers[0].up.weight.detach()
        big = w[w > 0.1]
        return [
            w.sum().item(), float(w.norm()), int(w.abs().sum() * 100), bool((w > 0.4).any()), w.tolist()[8], w.numpy().sum(),
            np.asarray(w.cpu()).max(), float(f"{w.norm():.4f}"), w.std().item(), w.unique().numel(), len(big), big.sum(),
            w.flatten().topk(3)[0].tolist(), torch.linalg.svdvals(w), torch.histc(w, 4), [float(row.norm()) for row in w],
            torch.stack([p.detach().norm() for p in net.parameters()]).sum().item(), torch.allclose(w, w.clone()),
            [len(part) for part in w.chunk(2)], next(p.grad.norm().item() for p in net.parameters()), max(w.norm(), w.sum()),
        ]  # fmt: skip

    require_alike(edit)


@torch.no_grad()
def write(net: Any) -> list[Any]:
    w, up = net.emb.weight, net.layers[1].up
    w.data[0] = 1.0
    w.data[1:3].fill_(2.0)
    w.data[4] *= 3
    w.data[5][2] = 9.0
    w.data[7:].mul_(2).add_(1)
    w[w > 1.5] = 0.25
    up.weight.data.view(-1)[3:7] = 5
    w.grad[0] = 0
    w.grad[:, 2].mul_(3)
    up.bias[3] = 7
    up.bias.copy_(torch.arange(9.0))
    torch.add(up.bias, torch.ones(9), out=up.bias)
    halves = [torch.full((9, 6), 0.5), torch.full((9,), 0.5)]
    torch._foreach_mul_([up.weight, up.bias], halves)  # pyright: ignore[reportPrivateImportUsage]
    up.weight.grad = torch.full((9, 6), 0.5)
    net.layers[0].up.weight.data = torch.full((9, 6), 0.3)
    net.scale.lerp_(torch.zeros(6), 0.5)
    return []


def check_what_is_written_in_place() -> None:
    require_alike(write)


@torch.no_grad()
def check_averages_of_plain_copies_follow() -> None:
    found = []
    for net in (build("plain"), sharded()):
        average, slow = copy.deepcopy(build("plain")), [plain(p).clone() for p in net.parameters()]
        for _ in range(2):
            for p in net.parameters():
                p.mul_(0.9)
            for kept, p in zip(average.parameters(), net.parameters(), strict=True):
                kept.data = kept.data * 0.5 + p.data * 0.5
            for kept, p in zip(slow, net.parameters(), strict=True):
                kept += 0.5 * (p.data - kept)
                p.data.copy_(kept)
        found.append([*average.parameters(), *slow, *parameters_of(net).values()])
    for one, other in zip(*found, strict=True):
        assert close(one, other)


def check_plain_tensors_of_one_element_are_written_once() -> None:
    found = []
    for shards in (False, True):
        torch.manual_seed(0)
        net: Any = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        if shards:
            fully_shard(net)
            compute_as_whole(net)
        average = [p.detach().clone() for p in net.parameters()]
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(3.0)
            for a, p in zip(average, net.parameters(), strict=True):
                a.lerp_(p.detach(), 0.5)
                a.add_(p, alpha=0.1)
            torch._foreach_add_(average, list(net.parameters()))  # pyright: ignore[reportPrivateImportUsage]
        total = torch.zeros(1)
        for p in net.parameters():
            total += p.detach().norm()
        found.append([*average, total])
    assert all(type(one) is torch.Tensor for one in found[1])
    assert all(close(a, b) for a, b in zip(*found, strict=True))


def check_numbers_of_a_rank_stay_its_own() -> None:
    net = sharded()
    own = float(dist.get_rank())
    with torch.no_grad():
        total = net.emb.weight.sum()
        before = plain(total).item()
        total += torch.tensor(own)
        assert close(plain(total), torch.tensor(before + own))
        assert close(net.emb.weight.norm() * torch.tensor(own), plain(net.emb.weight).norm() * own)


@torch.no_grad()
def check_random_numbers_are_those_of_the_whole() -> None:
    found = []
    for net in (build("plain"), sharded()):
        torch.manual_seed(5)
        noise = [torch.randn_like(p) for p in net.parameters()]
        net.emb.weight.normal_()
        nn.init.xavier_uniform_(net.layers[0].up.weight)
        nn.init.trunc_normal_(net.layers[1].up.weight, std=0.1)
        found.append([*noise, F.dropout(net.layers[0].down.weight), *parameters_of(net).values()])
    assert all(close(plain(one), plain(other)) for one, other in zip(*found, strict=True))


def check_ranks_that_write_different_values_are_told() -> None:
    net = sharded()
    net(*batch(0)).backward()
    own = torch.full((13, 6), float(dist.get_rank()))
    with torch.no_grad():
        for edit in (net.emb.weight.copy_, net.emb.weight.data.add_, net.emb.weight.grad.mul_, net.emb.weight.view(-1, 6).sub_):
            error = error_of(lambda edit=edit: edit(own))
            assert isinstance(error, ValueError), edit
            assert "ranks write different values" in str(error)


class Sum(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        for p in self.param_groups[0]["params"]:
            self.state[p]["sum"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for p in self.param_groups[0]["params"]:
            self.state[p]["sum"] += p.grad**2
            self.state[p]["last"] = p.grad.clone()
            p.sub_(p.grad / (1 + self.state[p]["sum"].sqrt()))


def check_steps_over_shards_and_parameters_that_are_a_ranks_own() -> None:
    """As experts are, which DDP leaves out: whichever way the optimizer steps."""
    for make in (torch.optim.SGD, torch.optim.AdamW):
        found = []
        for foreach in (False, True):
            torch.manual_seed(0)
            model = sharded()
            own = torch.nn.Parameter(torch.full((3,), float(dist.get_rank())))
            optimizer = make([own, *model.parameters()], lr=0.1, foreach=foreach)
            for step in range(2):
                (model(*batch(step)) + (own * own).sum()).backward()
                optimizer.step()
                optimizer.zero_grad()
            found.append({"own": own.detach(), **parameters_of(model)})
        assert close(*found)
        assert dist.get_rank() == 0 or not torch.equal(found[0]["own"], torch.ones(3))


def check_only_parameters_gradients_and_states_are_sharded() -> None:
    net = sharded()
    net(*batch(0)).backward()
    p = net.emb.weight
    optimizer = Sum(net.parameters())
    optimizer.step()
    assert all(isinstance(value, DTensor) for state in optimizer.state.values() for value in state.values())
    kept = [
        p.detach().clone(), torch.zeros_like(p), p.data * 2, p.norm(), torch.cat([p, p]), p.double(), p.new_zeros(p.shape),
        copy.deepcopy(p), F.normalize(p.detach()), nn.utils.parameters_to_vector(net.parameters()), p.grad.abs(),
        *torch.std_mean(p),
    ]  # fmt: skip
    assert not any(isinstance(tensor, DTensor) for tensor in kept)
    assert close(kept[0], plain(p)) and isinstance(kept[7], nn.Parameter) and kept[7].requires_grad
    if dist.get_rank() == 0:
        assert kept[3].item() == kept[0].norm().item() and kept[0].sum() != 0
    assert all(isinstance(tensor, DTensor) for tensor in (p.data, p.detach(), p.view(13, 6), p.grad, p[0], *p.unbind(1)))


@torch.no_grad()
def check_what_a_rank_adds_up_is_its_own() -> None:
    """As the Fisher information of a rank's examples, averaged at the end."""
    found = []
    for net in (build("plain"), sharded()):
        sums = [torch.zeros_like(p) for p in net.parameters()]
        for step in range(2):
            with torch.enable_grad():
                gradients = torch.autograd.grad(net(*batch(step)), list(net.parameters()))
            for kept, gradient in zip(sums, gradients, strict=True):
                kept += gradient**2
                kept[0] += dist.get_rank()
                kept.mul_(0.5).add_(gradient, alpha=0.1)
        found.append([plain(kept) for kept in sums])
        found[-1] += [(kept * p).sum() for kept, p in zip(found[-1], net.parameters(), strict=True)]
    assert all(close(plain(one), plain(other)) for one, other in zip(*found, strict=True))


def check_errors_are_those_of_whole_tensors() -> None:
    for net in (build("plain"), sharded()):
        error = error_of(lambda net=net: net.emb.weight + torch.ones(5, 5))
        assert isinstance(error, RuntimeError)
        assert "must match the size of tensor b" in str(error)
        assert isinstance(error_of(lambda net=net: net.emb.weight.missing), AttributeError)


def check_parameters_are_sharded_between_forward_and_backward() -> None:
    net = sharded()
    loss = net(*batch(0))
    assert all(isinstance(p, DTensor) for p in net.parameters())
    loss.backward()
    assert all(isinstance(p.grad, DTensor) for p in net.parameters())


def check_training_itself_is_not_changed() -> None:
    found = []
    for make in (lambda: build("fsdp2"), sharded):  # one after the other: the second changes what operators do
        net, norms = make(), []
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        for step in range(3):
            F.softplus(net(*batch(step))).backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            assert isinstance(norm, DTensor)
            norms.append(norm.full_tensor())
            optimizer.step()
            optimizer.zero_grad()
        found.append([*parameters_of(net).values(), *norms])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


class Tokens(nn.Module):
    """Of its parameters some ranks have no part."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.linspace(0, 1, 8).view(1, 1, 8))
        self.out = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x + self.token)


def check_another_dtype_where_some_ranks_have_empty_shards() -> None:
    torch.manual_seed(0)
    net: Any = Tokens()
    plain_net = copy.deepcopy(net).half()
    fully_shard(net)
    compute_as_whole(net)
    net.load_state_dict(net.state_dict())
    net.eval().half()
    x = torch.ones(2, 3, 8, dtype=torch.half)
    with torch.no_grad():
        assert torch.equal(net(x), plain_net(x))


def check_what_is_saved_has_no_padding() -> None:
    torch.manual_seed(0)
    net: Any = nn.Sequential(nn.Linear(8, 3), Tokens())
    fully_shard(net)
    for p in net.parameters():
        full = whole(p.detach())
        assert full.untyped_storage().nbytes() == full.nbytes
