"""What each_rank.py must do on two ranks for what libraries do with a model. Run by test_each_rank.py."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import torch
import torch.distributed as dist
from checks_each_rank import trained
from models import batch, build, close
from to_fsdp2.transforms.helpers.copies import to_trace
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.each_rank import saving_whole, whole_on_each_rank
from to_fsdp2.transforms.helpers.state import state_of
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


class MainCheckpointer:
    """As fvcore's: all ranks call it, and one goes on."""

    def __init__(self, model: Any, **others: Any) -> None:
        self.model, self.others, self.saved = model, others, {}

    def save(self) -> None:
        if dist.get_rank() == 0:
            self.saved = {"model": self.model.state_dict(), "optimizer": self.others["optimizer"].state_dict()}


def check_checkpointers_that_save_on_one_rank() -> None:
    """What they take of model and optimizer is whole; training goes on behind it."""
    model, optimizer = trained()
    expected = {"model": state_of(model), "optimizer": state_of(optimizer)}
    checkpointer = saving_whole(MainCheckpointer(model, optimizer=optimizer))
    for _ in range(2):
        checkpointer.save()
    with whole_on_each_rank(model, optimizer):
        if dist.get_rank() == 0:
            checkpointer.save()
    assert close(checkpointer.saved, expected) if dist.get_rank() == 0 else not checkpointer.saved
    model(*batch(1)).backward()
    optimizer.step()


def check_checkpointers_that_save_a_trainer() -> None:
    """As detectron2's keeps a proxy of the trainer, which has a trainer of its own that has the optimizer."""
    model, optimizer = trained()
    expected = {"model": state_of(model), "optimizer": state_of(optimizer)}

    class Trainer:
        def __init__(self, **held: Any) -> None:
            vars(self).update(held)

    trainer = Trainer(_hooks=[], _trainer=Trainer(model=model, optimizer=optimizer))

    class OfTrainers(MainCheckpointer):
        def save(self) -> None:
            if dist.get_rank() == 0:
                inner = self.others["trainer"]._trainer
                self.saved = {"model": self.model.state_dict(), "optimizer": inner.optimizer.state_dict()}

    checkpointer = saving_whole(OfTrainers(model, trainer=weakref.proxy(trainer)))
    if dist.get_rank() == 0:
        trainer._hooks.append(Trainer(optimizer=optimizer))  # type: ignore[attr-defined]
    checkpointer.save()
    assert close(checkpointer.saved, expected) if dist.get_rank() == 0 else not checkpointer.saved
    model(*batch(1)).backward()
    optimizer.step()


def check_replicas_of_what_is_held_are_of_its_own_class() -> None:
    """As torch.nn.parallel.replicate makes them, of each module in it."""
    model, _ = trained()
    own = type(build("plain"))
    with whole_on_each_rank(model):
        copies = [module._replicate_for_data_parallel() for module in model.modules()]
        assert type(copies[0]) is own and not any(isinstance(copy, FSDPModule) for copy in copies)
    model(*batch(1)).backward()


def check_what_is_traced_moves_the_statistics_of_the_model() -> None:
    """As tracing the model of DDP did: one rank inside of a hold, or all of them. The copy is a plain one."""
    x = torch.ones(3, 4) * torch.arange(3.0)[:, None]
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model: Any = shard_like_ddp(copy.deepcopy(plain))
    torch.jit.trace(plain, x)
    with whole_on_each_rank(model):
        if dist.get_rank() == 0:
            torch.jit.trace(to_trace(model), x)
            assert all(map(torch.equal, model.buffers(), plain.buffers()))
    dist.broadcast(model[1].running_mean, src=0)
    before = model[1].num_batches_tracked.clone()
    traced: Any = torch.jit.trace(to_trace(model), x)
    assert model[1].num_batches_tracked > before
    assert not any(isinstance(p, DTensor) for p in traced.parameters())
    assert to_trace(plain) is plain
    model(x).sum().backward()


def check_one_rank_generates_with_transformers() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    net: Any = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=16)).eval()
    tokens = torch.arange(4)[None]
    options: dict[str, Any] = {"attention_mask": torch.ones_like(tokens), "max_length": 8, "do_sample": False, "pad_token_id": 0}
    expected = net.generate(tokens, **options)
    model: Any = shard_like_ddp(net)
    with whole_on_each_rank(model):
        if dist.get_rank() == 0:
            assert torch.equal(model.generate(tokens, **options), expected)
    assert torch.equal(model.generate(tokens, **options), expected)
