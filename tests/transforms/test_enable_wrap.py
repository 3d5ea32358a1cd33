"""Blocks of enable_wrap: what becomes of them, and what keeps them as they are."""

from __future__ import annotations

import textwrap

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, enable_wrap, wrap

torch.cuda.set_device(0)


class Net(nn.Module):
    def __init__(self, parts, head):
        super().__init__()
        self.parts, self.head = nn.ModuleList(parts), head

"""


def migrated(method: str, more: str = "") -> tuple[str, dict[str, set[Level]]]:
    """The file after the migration, and the levels of each rule's findings."""
    text = HEAD + textwrap.indent(textwrap.dedent(method), "    ") + textwrap.dedent(more)
    analysis, results = analyse_texts({"net.py": text})
    levels: dict[str, set[Level]] = {}
    for finding in analysis.findings:
        levels.setdefault(finding.rule, set()).add(finding.level)
    return results["net.py"], levels


def test_a_lone_wrap_becomes_a_call_where_it_stands() -> None:
    text, levels = migrated(
        """
        def shard(self):
            with torch.no_grad(), enable_wrap(wrapper_cls=FSDP):
                self.head = wrap(self.head)
                parts = [wrap(wrap(part)) for part in self.parts]
        """
    )
    assert "with torch.no_grad():\n            fully_shard(self.head)\n" in text
    assert "parts = [fully_shard(part, reshard_after_forward=True) for part in self.parts]" in text
    assert levels["FS140"] == {Level.SAFE}


def test_a_policy_of_the_block_becomes_a_loop_in_a_function() -> None:
    text, levels = migrated(
        """
        def shard(self):
            with enable_wrap(wrapper_cls=FSDP, auto_wrap_policy=ModuleWrapPolicy({nn.Linear})):
                self.head = wrap(self.head)
        """
    )
    assert "def shard(model):\n            for module in reversed(list(model.modules())):\n" in text
    assert "if module is not model and isinstance(module, nn.Linear):\n                    fully_shard(module)\n" in text
    assert "self.head = shard(self.head)" in text
    assert levels["FS103"] == {Level.SAFE}


STAYING = {
    "another wrapper": "with enable_wrap(wrapper_cls=Other):\n    self.head = wrap(self.head)",
    "a wrapper that is chosen": "with enable_wrap(wrapper_cls=FSDP if big else Other):\n    self.head = wrap(self.head)",
    "a context that is kept": "context = enable_wrap(wrapper_cls=FSDP)\nwith context:\n    self.head = wrap(self.head)",
    "no wrap in sight": "with enable_wrap(wrapper_cls=FSDP):\n    self.head = build()",
    "a wrap in a function": "with enable_wrap(wrapper_cls=FSDP):\n    self.head = apply(lambda part: wrap(part), self.head)",
    "a wrap that is handed on": "with enable_wrap(wrapper_cls=FSDP):\n    self.parts = nn.ModuleList(map(wrap, self.parts))",
    "different arguments inside": (
        "with enable_wrap(wrapper_cls=FSDP):\n"
        "    self.head = wrap(wrap(self.head), sharding_strategy=ShardingStrategy.NO_SHARD)"
    ),
    "keywords that are not told apart": "with enable_wrap(wrapper_cls=FSDP):\n    self.head = wrap(self.head, **some)",
}


@pytest.mark.parametrize("name", STAYING)
def test_what_cannot_be_told_stays(name: str) -> None:
    body = textwrap.indent(STAYING[name], "    ")
    text, levels = migrated(f"def shard(self, big, some):\n{body}\n")
    assert "fully_shard" not in text
    assert Level.MANUAL in levels["FS140"]


PASSED = """
def shard(self, options, device):
    with enable_wrap(wrapper_cls=FSDP, **options):
        self.head = wrap(self.head)
"""


def test_a_dictionary_that_a_caller_passes_keeps_what_fully_shard_takes() -> None:
    text, levels = migrated(
        PASSED,
        """
        def main(net: Net, device):
            options = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, device_id=device, sync_module_states=True)
            net.shard(options, device)


        main(Net([], nn.Linear(2, 2)), torch.device("cuda", 0))
        """,
    )
    assert "options = dict(reshard_after_forward=False)" in text
    assert "            model.to(device)\n" in text
    assert "dist.broadcast(tensor.detach(), src=0)" in text
    assert "fully_shard(model, **options)" in text
    assert Level.MANUAL not in levels["FS140"]


CALLERS = {
    "two callers": "net.shard(dict(use_orig_params=True), 0)\nnet.shard(dict(use_orig_params=False), 0)",
    "a policy": "net.shard(dict(auto_wrap_policy=ModuleWrapPolicy({nn.Linear})), 0)",
    "a dictionary that is used again": "options = dict(use_orig_params=True)\nnet.shard(options, 0)\nprint(options)",
    "a device that is not passed": "net.shard(dict(device_id=find(), sync_module_states=True), 0)",
}


@pytest.mark.parametrize("name", CALLERS)
def test_a_dictionary_that_cannot_be_split_stays(name: str) -> None:
    body = textwrap.indent(CALLERS[name], "    ")
    text, levels = migrated(PASSED, f"\n\ndef main():\n    net = Net([], nn.Linear(2, 2))\n{body}\n\n\nmain()\n")
    assert "fully_shard" not in text
    assert Level.MANUAL in levels["FS140"]


def test_a_model_is_of_the_group_of_its_parts() -> None:
    text, _ = migrated(
        """
        def shard(self):
            with enable_wrap(wrapper_cls=FSDP):
                self.head = wrap(self.head)
        """,
        """

        def main():
            net = Net([], nn.Linear(2, 2))
            net.shard()
            if torch.distributed.get_rank() == 0:
                torch.save(net.state_dict(), "net.pt")
        """,
    )
    assert "= get_model_state_dict(\n        net, options=StateDictOptions(full_state_dict=True" in text
    assert "net.state_dict()" not in text


def test_a_method_that_takes_the_name_of_the_wrapper_s_stays() -> None:
    text, levels = migrated(
        """
        def shard(self):
            with enable_wrap(wrapper_cls=FSDP):
                self.head = wrap(self.head)

            def clip_grad_norm_(max_norm):
                self.head.clip_grad_norm_(max_norm)

            self.clip_grad_norm_ = clip_grad_norm_

        def forward(self, x):
            return self.head(x)
        """,
        """

        def main():
            net = Net([], nn.Linear(2, 2))
            net.shard()
            net.clip_grad_norm_(1.0)
        """,
    )
    assert "torch.nn.utils.clip_grad_norm_(self.head.parameters(), max_norm)" in text
    assert "    net.clip_grad_norm_(1.0)\n" in text
    assert "FS308" not in levels


_EMBEDDINGS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap


class Net:
    def shard(self, device):
        with enable_wrap(wrapper_cls=FSDP, device_id=device):
            self.layer = wrap(self.layer)
            self.words.set_input(wrap(wrap(self.words.get_input())))
            self.words.set_output(wrap(wrap(self.words.{output})))
"""


@pytest.mark.parametrize(("output", "told"), [("get_output()", True), ("head", False)])
def test_what_two_methods_give_is_sharded_once(output: str, told: bool) -> None:
    analysis, texts = analyse_texts({"net.py": _EMBEDDINGS.format(output=output)})
    assert "enable_wrap" not in texts["net.py"]
    assert ("if isinstance(model, FSDPModule):\n                return model\n" in texts["net.py"]) == told
    assert any("may be one module" in finding.message for finding in analysis.findings) == told
