"""Functions that ``map``, ``sorted``, ``reduce`` and their like call: what they are handed is followed into them."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

HEAD = """\
import functools
import itertools
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils._pytree import tree_map

rank = dist.get_rank()
torch.cuda.set_device(rank)
models = [DDP(nn.Linear(4, 4)), DDP(nn.Linear(4, 4))]
for x in torch.randn(3, 2, 4):
    for model in models:
        model(x).sum().backward()
"""
STATE_OF = """

def state_of(model):
    return model.state_dict()


"""


def migrated(body: str) -> tuple[str, list[Level]]:
    """The text behind the head, and the levels of the findings about state dicts."""
    function = STATE_OF if "state_of" in body else ""
    analysis, results = analyse_texts({"train.py": HEAD + function + body})
    levels = [finding.level for finding in analysis.findings if finding.rule == "FS402"]
    return results["train.py"].partition("model(x).sum().backward()")[2], levels


@pytest.mark.parametrize(
    "states",
    [
        "list(map(lambda m: m.state_dict(), models))",
        "list(map(state_of, models))",
        "tuple(map(functools.partial(state_of), models))",
        "functools.reduce(lambda every, m: [*every, m.state_dict()], models, [])",
        "list(itertools.starmap(lambda number, m: (number, m.state_dict()), enumerate(models)))",
        "tree_map(lambda m: m.state_dict(), models)",
        "[n.state_dict() for n in map(lambda m: m.module, models)]",
        "[n.state_dict() for n in filter(lambda m: m.training, models)]",
        "{str(number): m.state_dict() for number, m in enumerate(models)}",
        "sorted(models, key=lambda m: len(m.state_dict()))[0].state_dict()",
    ],
)
def test_state_is_gathered_in_functions_that_are_applied(states: str) -> None:
    text, levels = migrated(f"states = {states}\nif rank == 0:\n    torch.save(states, 'all.pt')\n")
    assert "get_model_state_dict(" in text
    assert ".module" not in text
    assert Level.MANUAL not in levels


@pytest.mark.parametrize(
    "body",
    [
        "if rank == 0:\n    torch.save(list(map(lambda m: m.state_dict(), models)), 'all.pt')\n",
        "if rank == 0:\n    torch.save(list(map(state_of, models)), 'all.pt')\n",
        "if rank == 0:\n    models.sort(key=lambda m: sum(map(len, m.state_dict().values())))\n",
        "with ThreadPoolExecutor(1) as pool:\n    torch.save(list(pool.map(lambda m: m.state_dict(), models)), 'all.pt')\n",
    ],
)
def test_applied_on_some_ranks_only_they_hold(body: str) -> None:
    text, levels = migrated(body)
    assert Level.MANUAL in levels
    assert "get_model_state_dict" not in text


def test_a_lambda_that_gets_whatever_it_is_handed_holds() -> None:
    body = "\n\ndef save(models, path):\n    torch.save(list(map(lambda m: m.state_dict(), models)), path)\n"
    text, levels = migrated(body)
    assert Level.MANUAL in levels
    assert "get_model_state_dict" not in text


def test_methods_of_models_are_rewritten_in_them() -> None:
    text, _ = migrated("best = max(models, key=lambda m: float(m.module.weight.sum()))\n")
    assert "full_tensor()" in text and ".module" not in text
