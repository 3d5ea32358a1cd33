"""``hasattr(model, "module")`` where something else than taking the wrapper off depends on it."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

PROGRAM = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

{before}
model = DDP(torch.nn.Linear(2, 2))
{use}
"""
HELPER = 'def wrapped(model):\n    return hasattr(model, "module")\n\n'


@pytest.mark.parametrize(
    ("before", "use"),
    [
        ("", 'rate = 2 if hasattr(model, "module") else 1'),
        ("", 'if hasattr(model, "module"):\n    rate = 2'),
        ("", 'if not hasattr(model, "module"):\n    rate = 2'),
        ("", 'wrapped = hasattr(model, "module")\nrate = 2 if wrapped else 1'),
        (HELPER, "rate = 2 if wrapped(model) else 1"),
        (HELPER, "rate = 0.1 * wrapped(model)"),
    ],
)
def test_other_work_for_wrapped_models_holds(before: str, use: str) -> None:
    analysis, results = analyse_texts({"train.py": PROGRAM.format(before=before, use=use)})
    assert "DDP(torch" in results["train.py"]
    assert any(f.rule == "FS602" and f.level is Level.MANUAL and "becomes no" in f.message for f in analysis.findings)


@pytest.mark.parametrize(
    ("before", "use"),
    [
        ("", 'raw = model.module if hasattr(model, "module") else model'),
        ("", 'if hasattr(model, "module"):\n    state = model.module.state_dict()\nelse:\n    state = model.state_dict()'),
        ("", 'raw = model\nwhile hasattr(raw, "module"):\n    raw = raw.module'),
        ("", 'wrapped = hasattr(model, "module")\nraw = model.module if wrapped else model'),
        (HELPER, "raw = model.module if wrapped(model) else model"),
        (
            'def bare(model):\n    if not hasattr(model, "module"):\n        return model\n    return model.module\n\n',
            "raw = bare(model)",
        ),
        ("", 'raw = model if not hasattr(model, "module") else model.module'),
    ],
)
def test_taking_the_wrapper_off_is_right_as_it_is(before: str, use: str) -> None:
    _, results = analyse_texts({"train.py": PROGRAM.format(before=before, use=use)})
    assert "fully_shard(model)" in results["train.py"]


def test_another_default_is_for_review() -> None:
    analysis, _ = analyse_texts({"train.py": PROGRAM.format(before="", use='inner = getattr(model, "module", None)')})
    [finding] = [finding for finding in analysis.findings if finding.rule == "FS602"]
    assert finding.level is Level.REVIEW and "None" in finding.message
