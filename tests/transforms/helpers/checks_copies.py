"""What copies.py must do on two ranks with what stands for DDP's wrapper. Run by test_each_rank.py."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import torch
from models import Net, close
from to_fsdp2.transforms.helpers.copies import in_wrapper, wrapped_copy
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from torch.nn.parallel import DistributedDataParallel


def check_code_out_of_sight_sees_the_wrapper() -> None:
    """Its names, and none of the model's own attributes; the parameters are those that are trained."""
    plain = Net()
    wrapper, model = DistributedDataParallel(copy.deepcopy(plain)), shard_like_ddp(copy.deepcopy(plain))
    shown = in_wrapper(model)
    assert [name for name, _ in shown.named_parameters()] == [name for name, _ in wrapper.named_parameters()]
    assert all(one is other for one, other in zip(shown.parameters(), model.parameters(), strict=True))
    own = set(vars(plain)["_modules"]) | set(vars(plain)["_parameters"])
    assert own and not any(hasattr(shown, name) or hasattr(wrapper, name) for name in own) and shown.module is model
    assert in_wrapper(plain) is plain


def check_a_copy_of_a_wrapper_is_one_around_a_plain_model() -> None:
    """It has DDP's names, runs as the model does, and may be copied and saved again; anything else is copied as it is."""
    torch.manual_seed(0)
    plain = Net()
    wrapper = DistributedDataParallel(copy.deepcopy(plain)).eval()
    old = copy.deepcopy(wrapper)
    model: Any = shard_like_ddp(copy.deepcopy(plain)).eval()
    copied = wrapped_copy(model)
    ids = torch.arange(3)
    assert isinstance(copied, DistributedDataParallel) and not isinstance(plain, DistributedDataParallel)
    assert copied is not model and type(copied.module) is Net and not copied.training and not copied.module.training
    assert [name for name, _ in copied.named_parameters()] == [name for name, _ in old.named_parameters()]
    assert list(copied.state_dict()) == list(old.state_dict()) and close(copied(ids), old(ids))
    copied.load_state_dict(old.state_dict())
    again = pickle.loads(pickle.dumps(copy.deepcopy(copied)))
    assert close(list(again.parameters()), list(old.parameters()))
    assert type(wrapped_copy(plain)) is Net and wrapped_copy([ids])[0] is not ids
    held = SimpleNamespace(model=model, ids=ids)
    kept = wrapped_copy(held)
    assert held.model is model and kept.ids is not ids
    assert list(kept.model.state_dict()) == list(old.state_dict()) and close(kept.model(ids), old(ids))
