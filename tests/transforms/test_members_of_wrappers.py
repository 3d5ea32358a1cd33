"""Members and classes of wrappers are told from the model's own members, and from other wrappers."""

from __future__ import annotations

import pytest
from migrated_texts import findings, migrated

OWN = """
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self, params, rank):
        super().__init__()
        self.params, self.rank = params, rank
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        return self.inner(x)


def export(model):
    return model.params.dim, model.rank


def main(distributed):
    model = Net("settings", 4)
    if distributed:
        model = DDP(model)
    print(export(model.module if distributed else model))


main(True)
"""


def test_members_that_the_model_has_itself_are_left() -> None:
    assert "return model.params.dim, model.rank" in migrated(train=OWN)["train"]


UNITS = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main():
    model = FSDP(torch.nn.Linear(2, 2))
    for unit in FSDP.fsdp_modules(model):
        if unit._has_params and unit._is_root:
            print(unit)
    print(model.mixed_precision.param_dtype)
    return model.cpu_offload


main()
"""


def test_members_of_fsdp1_are_asked_for_otherwise_or_told() -> None:
    assert "if bool(unit_parameters(unit)) and is_root(unit):" in migrated(train=UNITS)["train"]
    (told,) = [f for f in findings(train=UNITS) if f.level == "manual"]
    assert "no `cpu_offload`" in told.message
    assert "print(mixed_precision_of(model).param_dtype)" in migrated(train=UNITS)["train"]


ASSERTED = """
import unittest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


class Case(unittest.TestCase):
    def test(self):
        model, scaler = FSDP(torch.nn.Linear(2, 2)), ShardedGradScaler()
        self.assertIsInstance(scaler, ShardedGradScaler)
        self.assertIsInstance(model, FSDP, "sharded")
"""


def test_assertions_of_unit_tests_ask_for_classes() -> None:
    text = migrated(train=ASSERTED)["train"]
    assert "self.assertIsInstance(scaler, torch.amp.GradScaler)" in text
    assert 'self.assertIsInstance(model, FSDPModule, "sharded")' in text


OTHER = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel


def kind(model):
    return isinstance(model, {other})


print(kind({used}(torch.nn.Linear(2, 2))))
"""


@pytest.mark.parametrize("used", ["FullyShardedDataParallel", "DistributedDataParallel"])
def test_a_question_for_the_other_wrapper_stays(used: str) -> None:
    (other,) = {"FullyShardedDataParallel", "DistributedDataParallel"} - {used}
    text = migrated(train=OTHER.format(other=other, used=used))["train"]
    assert f"isinstance(model, {other})" in text and used not in text


UNIT = """
from typing import Generic, TypeVar
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

Batch = TypeVar("Batch")


class Unit(Generic[Batch]):
    def __init__(self, model):
        self.module = DDP(model)

    def __getattr__(self, name):
        return getattr(self.module, name)


class Trained(Unit[Batch]):
    def step(self, batch):
        return self.module(batch), self.module.module


def main():
    unit = Trained[torch.Tensor](torch.nn.Linear(2, 2))
    print(unit.step(torch.ones(1, 2)), unit.module.module)


main()
"""


def test_attributes_that_a_generic_base_stores_are_the_objects_own() -> None:
    text = migrated(train=UNIT)["train"]
    assert "return self.module(batch), self.module\n" in text and "unit.module)\n" in text and "unwrap" not in text


LISTED = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main():
    model = FSDP(torch.nn.Linear(2, 2))
    units = FSDP.fsdp_modules(model)
    own = [m for m in model.modules() if isinstance(m, FSDP)]
    print(len(units), units[0].rank, own[-1].rank)


main()
"""


def test_units_in_lists_are_units() -> None:
    text = migrated(train=LISTED)["train"]
    assert "rank_of(units[0]), rank_of(own[-1])" in text


def test_a_helper_whose_name_the_file_has_comes_from_a_module_under_another() -> None:
    text = migrated(train=LISTED)["train"]
    assert "units = fsdp2_units(model)" in text and "units as fsdp2_units" in text
    assert text.count("FSDPModule") == 2


STORED = """
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


class Sharded(FSDP):
    def __init__(self, model, state_dict_type):
        super().__init__(model)
        self.state_dict_type = state_dict_type


def save(model, kinds):
    if isinstance(model, Sharded):
        return model.state_dict_type in kinds
    if isinstance(model, DDP):
        model = model.module
    return model.state_dict()


def main():
    save(Sharded(nn.Linear(2, 2), "full"), ["full"])
    save(DDP(nn.Linear(2, 2)), [])


main()
"""


def test_an_attribute_that_a_subclass_stores_is_no_method_of_the_wrapper() -> None:
    assert "return model.state_dict_type in kinds" in migrated(train=STORED)["train"]


def test_what_a_statement_unwraps_has_no_prefix_in_its_state() -> None:
    text = migrated(train=STORED)["train"]
    assert "model_state(" not in text and ("state_of(model)" in text or "return model.state_dict()" in text)
