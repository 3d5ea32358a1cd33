"""What clipping.py must do on two ranks. Run by test_gradients.py."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
import torch.distributed as dist
from models import batch, build, clean, close, error_of, gathered, gradients_of, parameters_of
from to_fsdp2.transforms.helpers.clipping import clip_grad_norm, clip_grad_value, clip_model_grad_norm, total_norm_of
from to_fsdp2.transforms.helpers.parameters import resharded
from to_fsdp2.transforms.helpers.zero_gradients import reset_shards_in_zero_grad
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

INF = float("inf")


def trained(kind: str, norm_type: float, limit: float, ignored: bool, foreach: bool | None, evaluate: bool) -> list[Any]:
    model = build(kind, ignored=ignored)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, foreach=False)
    norms = []
    for step in range(3):
        model(*batch(step)).backward()
        for name, p in model.named_parameters():
            if ignored and kind != "ddp" and clean(name) in ("scale", "layers.0.norm.weight", "layers.0.norm.bias"):
                dist.all_reduce(p.grad)
                p.grad /= 2
        if evaluate:
            with torch.no_grad():
                model(*batch(9))
        if kind == "ddp":
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit, norm_type, foreach=foreach)
        elif foreach is None:
            norm = clip_model_grad_norm(model, limit, norm_type)
        else:
            norm = clip_grad_norm(resharded(model).parameters(), limit, norm_type, foreach=foreach)
        assert not isinstance(norm, DTensor) and len(set(gathered(norm.item()))) == 1
        norms.append(norm.item())
        optimizer.step()
        reset_shards_in_zero_grad()
        model.zero_grad()
    return [norms, parameters_of(model)]


def check_clipping_is_ddps_and_fsdp1s() -> None:
    for norm_type in (2.0, 1.0, INF):
        for limit, evaluate in ((0.3, False), (0.3, True), (1e9, False)):
            ddp = trained("ddp", norm_type, limit, False, None, evaluate)
            for kind, ignored, foreach in (
                ("fsdp1", False, None),
                ("fsdp1", True, None),
                ("fsdp2", False, None),
                ("fsdp2", True, None),
                ("fsdp2", True, True),
                ("fsdp2", False, False),
            ):
                if kind == "fsdp1" and evaluate:
                    continue  # its root is stale then
                other = trained(kind, norm_type, limit, ignored, foreach, evaluate)
                assert close(ddp, other, 1e-5), (norm_type, limit, evaluate, kind, ignored, foreach)


def clipped_by(clip: Any, norm_type: float, limit: float, foreach: bool | None) -> list[torch.Tensor]:
    """The gradients of a model that is sharded alike, once they are clipped, and their norm as a plain tensor."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3), nn.Linear(3, 2))
    for unit in (model[0], model):
        fully_shard(unit)
    model(torch.randn(4, 7) * (dist.get_rank() + 1)).sum().backward()
    norm = clip(model.parameters(), limit, norm_type, foreach=foreach)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return [norm, *(p.grad.full_tensor() for p in model.parameters())]


def check_torchs_own_function_is_the_helper_where_all_is_sharded_alike() -> None:
    for norm_type in (2.0, 1.0, INF):
        for limit in (0.1, 1e6):
            for foreach in (None, False):
                own = clipped_by(torch.nn.utils.clip_grad_norm_, norm_type, limit, foreach)
                ours = clipped_by(clip_grad_norm, norm_type, limit, foreach)
                assert all(torch.equal(a, b) for a, b in zip(own, ours, strict=True)), (norm_type, limit, foreach)


def check_largest_gradients_where_a_rank_has_no_element() -> None:
    for width in (1, 3):
        torch.manual_seed(0)
        plain: Any = nn.Sequential(nn.Linear(2, width), nn.Linear(width, 1))
        sharded: Any = fully_shard(copy.deepcopy(plain))
        for model in (plain, sharded):
            model(torch.full((4, 2), 2.0)).square().sum().backward()
        for names in (["1.bias"], [name for name, _ in plain.named_parameters()]):
            ours, its = (clip_grad_norm(map(model.get_parameter, names), 0.1, INF) for model in (plain, sharded))
            assert close(ours, its)
        assert close(gradients_of(plain), gradients_of(sharded))


def check_clipping_takes_what_torchs_own_takes() -> None:
    for kind in ("plain", "ddp", "fsdp2"):
        model = build(kind, ignored=True)
        model(*batch(0, rank=0)).backward()
        norms = [
            clip_grad_norm(iter(model.parameters()), 1e9),
            clip_grad_norm((p for p in model.parameters()), 1e9, norm_type=2),
            clip_grad_norm(dict.fromkeys(model.parameters()).keys(), max_norm=1e9),
            clip_grad_norm(tuple(model.parameters()), 1e9, 2.0, True, False),
            total_norm_of([p.grad for p in model.parameters()]),
        ]
        expected = torch.stack([g.norm() for g in gradients_of(model).values() if g is not None]).norm()
        assert all(close(norm, expected, 1e-6) and type(norm) is torch.Tensor for norm in norms), kind
        clip_grad_norm(model.emb.weight if kind != "ddp" else model.module.emb.weight, 1e-3)
        total = total_norm_of([p.grad for n, p in model.named_parameters() if "emb" in n])
        assert close(total, 1e-3, 1e-3), kind
        clip_grad_value(model.parameters(), 1e-5)
        assert max(g.abs().max().item() for g in gradients_of(model).values() if g is not None) <= 1e-5
        assert type(clip_grad_norm([], 1.0)) is torch.Tensor
        model.zero_grad()
        assert clip_grad_norm(model.parameters(), 1.0).item() == 0.0
        if kind == "fsdp2":
            assert clip_grad_value(model.parameters(), 1.0) is None
        else:
            assert isinstance(error_of(lambda model=model: clip_grad_value(model.parameters(), 1.0)), RuntimeError), "torch's"


def check_clipping_over_several_meshes() -> None:
    first, second = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    models = [build("plain") for _ in range(3)]
    for model, mesh in zip(models, (first, second), strict=False):
        fully_shard(model, mesh=mesh)
    references = [build("ddp"), build("ddp"), build("plain")]
    for number, (model, reference) in enumerate(zip(models, references, strict=True)):
        for one in (model, reference):
            one(*batch(number, rank=0 if number == 2 else None)).backward()
    ours = clip_grad_norm([p for m in models for p in m.parameters()], 0.2)
    torchs = torch.nn.utils.clip_grad_norm_([p for m in references for p in m.parameters()], 0.2)
    assert close(ours, torchs)
    for model, reference in zip(models, references, strict=True):
        assert close(gradients_of(model), gradients_of(reference), 1e-6)
    assert close(clip_grad_value([p for m in models for p in m.parameters()], 0.001) or 0, 0)
    assert all(g.abs().max() <= 0.001 for m in models for g in gradients_of(m).values() if g is not None)


def check_a_gradient_that_is_not_finite_on_one_rank() -> None:
    for value in (INF, float("nan")):
        model = build("fsdp2")
        model(*batch(0)).backward()
        if dist.get_rank() == 0:
            model.layers[0].up.weight.grad.to_local().view(-1)[0] = value
        assert isinstance(error_of(functools.partial(clip_grad_norm, model.parameters(), 1.0, 2.0, True)), RuntimeError)
        assert not torch.isfinite(clip_grad_norm(model.parameters(), 1.0))


def check_low_precision_norms_are_fsdp1s() -> None:
    norms = []
    for kind in ("fsdp1", "fsdp2"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 7)).to(torch.bfloat16)
        if kind == "fsdp1":
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

            net = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
        else:
            fully_shard(net)
        torch.manual_seed(dist.get_rank())
        net(torch.randn(4, 40, dtype=torch.bfloat16)).sum().backward()
        norms.append(clip_model_grad_norm(net, 0.1))
    assert norms[0].dtype == norms[1].dtype and norms[0].item() == norms[1].item(), norms
