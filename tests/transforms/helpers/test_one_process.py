"""The helpers where nothing is distributed, and on one rank alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from to_fsdp2.transforms.helpers.clipping import clip_grad_norm, clip_grad_value, clip_model_grad_norm, total_norm_of
from to_fsdp2.transforms.helpers.full_parameters import apply_to_full, full_parameters
from to_fsdp2.transforms.helpers.gradients import gradient_sync, no_gradient_sync, set_gradient_sync
from to_fsdp2.transforms.helpers.join import join, repeats_batch, until_all_ranks_finish
from to_fsdp2.transforms.helpers.parameters import assign_data, handle_parameters, resharded
from to_fsdp2.transforms.helpers.ranks import on_all_ranks
from to_fsdp2.transforms.helpers.scaling import sharded_grad_scaler
from to_fsdp2.transforms.helpers.stops import stop_if_sharded
from to_fsdp2.transforms.helpers.units import units, unwrap
from to_fsdp2.transforms.helpers.wrapped import stands_for
from to_fsdp2.transforms.helpers.zero_gradients import reset_shards_in_zero_grad
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard


def small() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


@pytest.fixture
def one_rank(tmp_path: Any) -> Any:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(model: Any, helpers: bool) -> Any:
    """Two steps with every helper that acts on any model, or with what it stands for."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    scaler = sharded_grad_scaler("cpu", init_scale=2.0) if helpers else torch.amp.GradScaler("cpu", init_scale=2.0)
    for _ in range(2):
        scaler.scale(model(torch.ones(5, 3)).pow(2).sum()).backward()
        scaler.unscale_(optimizer)
        norm = (clip_grad_norm if helpers else torch.nn.utils.clip_grad_norm_)(model.parameters(), 0.5, foreach=False)
        (clip_grad_value if helpers else torch.nn.utils.clip_grad_value_)(model.parameters(), 0.3)
        assert type(norm) is torch.Tensor
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            model(torch.ones(5, 3))
            for p in resharded(model).parameters() if helpers else model.parameters():
                p.mul_(0.9)
        init = lambda m: nn.init.ones_(m.bias) if isinstance(m, nn.Linear) else None  # noqa: E731
        assert (apply_to_full(model, init) if helpers else model.apply(init)) is model
        if helpers:
            reset_shards_in_zero_grad()
        model.zero_grad()
        if helpers:
            with full_parameters(model):
                assert all(type(p) is nn.Parameter for p in model.parameters())
                for p in model.parameters():
                    assign_data(p, p.data * 0.5)
        else:
            for p in model.parameters():
                p.data = p.data * 0.5
    return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in resharded(model).parameters()]


def test_plain_models_train_as_before() -> None:
    assert not dist.is_initialized()
    assert all(torch.equal(p, q) for p, q in zip(train(small(), True), train(small(), False), strict=True))


def test_plain_models_answer_as_before() -> None:
    model = small()
    for call in (no_gradient_sync, gradient_sync, unwrap, lambda m: clip_model_grad_norm(m, 1.0), lambda m: join([m])):
        with pytest.raises(AttributeError):
            call(model)
    set_gradient_sync(model, False)
    assert gradient_sync(model) is False
    assert stop_if_sharded(model, "no") is model is on_all_ranks(model, "here")
    assert units(model) == [] == handle_parameters(model)
    batches = iter([1])
    assert until_all_ranks_finish(batches, model) is batches and not repeats_batch(model)
    assert total_norm_of([]).item() == 0.0


class OtherWrapper(nn.Linear):
    """What another library shards in its own way, and shows whole in its own way."""

    @contextmanager
    def summon_full_params(self, recurse: bool = True, writeback: bool = True) -> Iterator[None]:
        self.shown = (recurse, writeback)
        yield


def test_wrappers_of_other_libraries_show_their_parameters_themselves() -> None:
    other = OtherWrapper(2, 2)
    with full_parameters(other, recurse=False):
        assert other.shown == (False, True)


def test_models_that_a_library_wrapped_stand_for_that_wrapper(one_rank: None) -> None:
    assert stands_for(nn.parallel.DistributedDataParallel(small())) == "ddp"
    assert stands_for(small()) is None


def test_one_rank_trains_as_none(one_rank: None) -> None:
    model = small()
    for module in (model[0], model):
        fully_shard(module)
    assert all(torch.equal(p, q) for p, q in zip(train(model, True), train(small(), False), strict=True))
    assert isinstance(on_all_ranks(model, "here"), FSDPModule)
    assert stop_if_sharded(list(model.parameters()), "one rank has all of it")
    before = [p.full_tensor().clone() for p in model.parameters()]
    with full_parameters(model, writeback=False), torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert all(torch.equal(p, q.full_tensor()) for p, q in zip(before, model.parameters(), strict=True))
    with join([model]):
        assert list(until_all_ranks_finish([1, 2], model)) == [1, 2]
