"""Which modules of torch have no parameters, so that nothing is gathered for them, against the modules themselves."""

from __future__ import annotations

import contextlib
import inspect

import pytest
from to_fsdp2.transforms.flow.library import has_no_parameters
from torch import nn

ARGUMENTS = ((), (2,), (2, 2), (0.1, 0.2), (1, (2, 2)), (4, 6, [2]))
CLASSES = [cls for _, cls in inspect.getmembers(nn, inspect.isclass) if issubclass(cls, nn.Module)]


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if has_no_parameters(f"torch.nn.{cls.__name__}")])
def test_they_have_none(cls: type[nn.Module]) -> None:
    for arguments in ARGUMENTS:
        with contextlib.suppress(TypeError, ValueError):
            assert not list(cls(*arguments).parameters())
            return
    pytest.fail("no arguments were found to make one")


@pytest.mark.parametrize("name", ["Linear", "PReLU", "AdaptiveLogSoftmaxWithLoss", "LinearCrossEntropyLoss", "BatchNorm1d"])
def test_others_may(name: str) -> None:
    assert not has_no_parameters(f"torch.nn.{name}")
