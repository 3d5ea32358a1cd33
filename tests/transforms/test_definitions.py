"""Functions that the tool adds to a module stand two blank lines apart from what is around them."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

IMPORTS = """\
import functools
from contextlib import nullcontext

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import _or_policy, size_based_auto_wrap_policy, transformer_auto_wrap_policy
from torch.nn.parallel import DistributedDataParallel as DDP
"""
BY_SIZE = """
# the model
model = FSDP(torch.nn.Linear(2, 2), auto_wrap_policy=functools.partial(size_based_auto_wrap_policy, min_num_params=5))
model(1)
"""
HOOK = """

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(2)


model = DDP(Net())
model(1)
"""
FACTORY = """
shard = functools.partial(FSDP, use_orig_params=True)
models = [shard(torch.nn.Linear(2, 2))]
"""
CONTEXT = """
model = DDP(torch.nn.Linear(2, 2))
for i in range(3):
    with model.no_sync() if i else nullcontext():
        model(i).backward()
    aux.backward()
"""

POLICY = """
def policy(blocks):
    print(blocks)
    layers = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={blocks})
    chosen = functools.partial(_or_policy, policies=[layers])
    return chosen
"""


@pytest.mark.parametrize("body", [BY_SIZE, HOOK, FACTORY, CONTEXT])
def test_blank_lines_around_new_functions(body: str) -> None:
    _, results = analyse_texts({"train.py": IMPORTS + body})
    lines = results["train.py"].splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith(("def ", "@")) and not lines[n - 1].startswith("@")]
    assert starts
    for start in starts:
        assert lines[start - 2 : start] == ["", ""]
        assert lines[start - 3] != ""
        end = next(n for n in range(start + 2, len(lines)) if lines[n] and not lines[n].startswith((" ", "def ")))
        assert lines[end - 2 : end] == ["", ""]
        assert lines[end - 3] != ""


def test_one_blank_line_around_a_function_inside_another() -> None:
    _, results = analyse_texts({"train.py": IMPORTS + POLICY})
    assert results["train.py"].endswith(
        "    print(blocks)\n\n    def chosen(module):\n"
        "        return isinstance(module, blocks)\n\n    return chosen\n"
    )


def test_comment_stays_with_its_statement() -> None:
    _, results = analyse_texts({"train.py": IMPORTS + BY_SIZE})
    assert "# the model\nmodel = torch.nn.Linear(2, 2)\n" in results["train.py"]


def test_an_import_that_stays_waits_for_what_still_uses_it() -> None:
    text = (
        "import functools\n\nfrom torch.distributed.fsdp.wrap import size_based_auto_wrap_policy\n\n\n"
        "def policy():\n    return functools.partial(size_based_auto_wrap_policy, min_num_params=5)\n"
    )
    analysis, _ = analyse_texts({"policies.py": text})
    waiting = {finding.line: finding.blocked_by for finding in analysis.findings}
    assert waiting == {3: "policies.py:7", 7: None}
