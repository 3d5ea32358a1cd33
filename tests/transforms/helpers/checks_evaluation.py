"""What evaluation.py must do on two ranks: evaluation under DDP needs no other rank. Run by test_evaluation.py."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from models import batch, build, close, parameters_of
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.ddp_buffers import sync_buffers
from to_fsdp2.transforms.helpers.each_rank import whole_on_each_rank
from to_fsdp2.transforms.helpers.evaluation import gather_once_in_evaluation
from to_fsdp2.transforms.helpers.gathered import reshard_after_forward
from to_fsdp2.transforms.helpers.methods import forward_method
from to_fsdp2.transforms.helpers.mixed import compute_as_whole
from to_fsdp2.transforms.helpers.whole_states import keep_state_dicts_whole
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def sharded(**options: Any) -> Any:
    net = build("fsdp2", **options)
    reshard_after_forward(net)
    keep_state_dicts_whole(net)
    compute_as_whole(net)
    gather_once_in_evaluation(net)
    return net


def storage_bytes(net: Any) -> int:
    """Memory of gathered parameters."""
    groups = [m._get_fsdp_state()._fsdp_param_group for m in net.modules() if hasattr(m, "_get_fsdp_state")]
    held = [t for group in groups if group for p in group.fsdp_params for t in p.all_gather_outputs]
    return sum(t.untyped_storage().size() for t in held)


def evaluated(net: Any, count: int) -> list[torch.Tensor]:
    with torch.no_grad():
        return [net(*batch(step, 0)) for step in range(count)]


def check_ranks_evaluate_different_numbers_of_batches() -> None:
    found = []
    for kind in ("ddp", "fsdp2"):
        model = build("ddp") if kind == "ddp" else sharded()
        module = model.module if kind == "ddp" else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses = []
        for step in range(3):
            model.train()
            loss = model(*batch(step))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.eval()
            losses += evaluated(module, 1 + 3 * dist.get_rank())
            with torch.inference_mode():
                losses += [module(*batch(7, 0)) for _ in range(4 - 2 * dist.get_rank())]
        found.append((losses, parameters_of(module)))
    (losses, before), (others, after) = found
    assert all(close(one, other) for one, other in zip(losses, others, strict=True))
    for name, full in before.items():
        assert close(after[name], full), name


def check_one_rank_goes_on_alone() -> None:
    plain, net = build("plain"), sharded()
    evaluated(net, 1)
    if dist.get_rank() == 0:
        assert all(close(one, other) for one, other in zip(evaluated(net, 5), evaluated(plain, 5), strict=True))
        with torch.no_grad():
            assert close(net.layers[0](torch.ones(2, 6)), plain.layers[0](torch.ones(2, 6)))


def check_what_is_written_in_between_is_seen() -> None:
    plain, net = build("plain"), sharded()
    edits = [
        lambda model: [value.mul_(1.5) for value in model.state_dict().values()],
        lambda model: [p.data.mul_(0.5) for p in model.parameters()],
        lambda model: [p.add_(0.1) for p in model.parameters()],
        lambda model: [p.copy_(torch.full(p.shape, 0.05)) for p in model.parameters()],
        lambda model: torch._foreach_add_(list(model.parameters()), 0.02),  # pyright: ignore[reportPrivateImportUsage]
        lambda model: setattr(model.emb.weight, "data", model.emb.weight.data * 2),
        lambda model: model.load_state_dict({key: value * 0.7 for key, value in model.state_dict().items()}),
        lambda model: [value.mul_(1.5) for value in model.state_dict().values()],
        lambda model: model.layers[0].load_state_dict({key: value * 3 for key, value in model.layers[0].state_dict().items()}),
    ]
    for edit in edits:
        with torch.no_grad():
            assert all(close(one, other) for one, other in zip(evaluated(plain, 2), evaluated(net, 2), strict=True))
            for model in (plain, net):
                edit(model)
            assert all(isinstance(p, DTensor) for p in net.parameters())
            assert all(close(one, other) for one, other in zip(evaluated(plain, 2), evaluated(net, 2), strict=True))


def check_it_is_given_up_for_training() -> None:
    net = sharded()
    net(*batch(0)).backward()
    assert storage_bytes(net) == 0
    evaluated(net, 2)
    held = storage_bytes(net)
    assert held >= sum(4 * p.numel() for p in net.parameters())
    net(*batch(0)).backward()
    assert storage_bytes(net) == 0
    assert all(isinstance(p, DTensor) and isinstance(p.grad, DTensor) for p in net.parameters())


def check_an_evaluation_between_forward_and_backward_changes_nothing() -> None:
    found = []
    for between in (0, 2):
        net = sharded()
        for step in range(2):
            loss = net(*batch(step))
            evaluated(net, between * (1 + dist.get_rank()))
            loss.backward()
            torch.optim.SGD(net.parameters(), lr=0.1).step()
            net.zero_grad()
        found.append(parameters_of(net))
    assert all(torch.equal(full, found[1][name]) for name, full in found[0].items())


def check_parameters_are_sharded_after_an_evaluation() -> None:
    net = build("fsdp2")
    gather_once_in_evaluation(net)
    evaluated(net, 2)
    assert all(isinstance(p, DTensor) for p in net.parameters())


def check_methods_and_parts_too() -> None:
    plain, net = build("plain"), sharded()
    for model in (plain, net):
        type(model).scores = lambda self, ids: self.emb(ids) @ self.emb.weight.t() * self.scale.sum()
    ids = batch(0, 0)[0]
    with torch.no_grad():
        assert close(forward_method(net, "scores")(ids), plain.scores(ids))
        evaluated(net, 1)
        if dist.get_rank() == 1:
            assert close(forward_method(net, "scores")(ids), plain.scores(ids))
            assert close(net(ids), plain(ids))
    assert all(isinstance(p, DTensor) for p in net.parameters())


class Policy(nn.Module):
    """Its methods run without gradients by themselves; ranks call them as often as their episodes take."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Sequential(nn.ReLU(), nn.Linear(6, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))

    @torch.no_grad()
    def act(self, x: torch.Tensor) -> torch.Tensor:
        """An action."""
        return self.body.weight[:2, :2] @ self(x).T

    def value(self, x: torch.Tensor) -> torch.Tensor:
        """A value."""
        with torch.inference_mode():
            return (x @ self.body.weight.T).sum()

    def both(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        """A value, and what no gradient is of."""
        count = len(x)
        with torch.no_grad():
            out = self(x)
        return out, count

    def partly(self, x: torch.Tensor) -> torch.Tensor:
        """What is trained behind what is not."""
        with torch.no_grad():
            target = self(x)
        return (self(x + 1) - target).square().mean()

    def score(self, x: torch.Tensor) -> torch.Tensor:
        """What is trained."""
        return (x @ self.body.weight.T).square().mean() + self(x).mean()


def check_methods_that_take_no_gradients_by_themselves() -> None:
    found = []
    for kind in ("ddp", "fsdp2"):
        torch.manual_seed(0)
        policy = Policy()
        run: Any = DistributedDataParallel(policy) if kind == "ddp" else shard_like_ddp(policy)
        optimizer = torch.optim.SGD(run.parameters(), lr=0.1)
        seen = []
        for step in range(3):
            x = torch.full((2, 4), 0.1 * (step + 1))
            act, value = (getattr(policy, n) if kind == "ddp" else forward_method(run, n) for n in ("act", "value"))
            seen += [act(x + n) for n in range(1 + 2 * dist.get_rank())] + [value(x) for _ in range(3 - 2 * dist.get_rank())]
            both = policy.both if kind == "ddp" else forward_method(run, "both")
            seen += [both(x)[0] for _ in range(1 + dist.get_rank())]
            optimizer.zero_grad()
            run(x).square().sum().backward()
            optimizer.step()
        with torch.enable_grad():
            score = (policy.score if kind == "ddp" else forward_method(run, "score"))(torch.ones(2, 4))
            partly = (policy.partly if kind == "ddp" else forward_method(run, "partly"))(torch.ones(2, 4))
        assert score.requires_grad and partly.requires_grad
        found.append([[one.clone() for one in seen], score.detach().clone()])
    assert close(found[0], found[1], 1e-6)


def check_a_loop_of_unequal_length_begins_with_the_first_ranks_buffers() -> None:
    """Each rank has statistics of its own after a training step; DDP's next forward gives all of them those of the first."""
    found = []
    for kind in ("ddp", "fsdp2"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        model: Any = DistributedDataParallel(net) if kind == "ddp" else shard_like_ddp(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = []
        for step in range(3):
            optimizer.zero_grad()
            model.train()(torch.randn(4, 4) + dist.get_rank()).square().mean().backward()
            optimizer.step()
            model.eval()
            if kind == "fsdp2":
                sync_buffers(SimpleNamespace(net=model) if step == 1 else model)
            with torch.no_grad(), nullcontext() if kind == "ddp" else whole_on_each_rank(model):
                seen += [model(torch.full((2, 4), 0.1 * (n + step))) for n in range(1 + 2 * dist.get_rank())]
        found.append([seen, [buffer.clone() for buffer in net.buffers()]])
    assert close(found[0], found[1], 1e-5)
