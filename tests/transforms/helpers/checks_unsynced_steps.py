"""What gradients.py must do on two ranks where steps follow backwards without synchronization. Run by test_gradients.py."""

from __future__ import annotations

import contextlib

import pytest
import torch
from models import batch, build, close, parameters_of
from to_fsdp2.transforms.helpers.gradients import no_gradient_sync


def check_a_step_behind_backwards_without_synchronization() -> None:
    """It goes by the average, as if the last of them had been synchronized; training goes on."""
    results = []
    for cut in (False, True):
        model = build("fsdp2", like="ddp")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        for step in range(3):
            for micro in range(2):
                is_last = micro == 1 and not (cut and step == 1)
                with contextlib.nullcontext() if is_last else no_gradient_sync(model):
                    model(*batch(2 * step + micro)).backward()
            with pytest.warns(UserWarning, match="averaged at this step") if cut and step == 1 else contextlib.nullcontext():
                optimizer.step()
            optimizer.zero_grad()
        results.append(parameters_of(model))
    assert close(results[0], results[1])


def check_what_came_behind_a_reduced_gradient_counts_too() -> None:
    """A window the wrong way round, `no_sync()` for the last part: the mean of what DDP's ranks would step by."""
    results = []
    for reversed_window in (False, True):
        model = build("fsdp2", like="ddp")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        for micro in range(2):
            is_reduced = (micro == 0) == reversed_window
            with contextlib.nullcontext() if is_reduced else no_gradient_sync(model):
                model(*batch(micro)).backward()
        with pytest.warns(UserWarning, match="averaged at this step") if reversed_window else contextlib.nullcontext():
            optimizer.step()
        results.append(parameters_of(model))
    assert close(results[0], results[1])
