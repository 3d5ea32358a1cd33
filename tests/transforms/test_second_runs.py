"""What was migrated says to a later run what it said to the first one: only what came since is rewritten."""

from __future__ import annotations

import textwrap

import pytest
from migrated_texts import HEAD
from to_fsdp2.transforms.engine import Analysis, Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
MAIN = """
if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    train(nn.Linear(4, 4))
"""
SECTIONS = {
    "wrap_by_enable_wrap": FSDP + """\
from torch.distributed.fsdp.wrap import enable_wrap, wrap


def shard(net, **options):
    with enable_wrap(wrapper_cls=FSDP, **options):
        net.body = wrap(wrap(net.body))
        net.head = wrap(net.head)


def load(net, optimizer, saved):
    net.load_state_dict(saved["net"], strict=False)
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(net, optimizer, saved["optimizer"]))


def train(net):
    shard(net, use_orig_params=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    load(net, optimizer, torch.load("saved.pt"))
""",
    "a_private_function_of_fsdp1": FSDP + """\


def save(net, optimizer):
    state = optimizer.state_dict()
    return FSDP._optim_state_dict_impl(net, optimizer, state, None, False)


def resume(trainer, saved):
    trainer.optimizer.load_state_dict(saved)
    if torch.distributed.get_rank() == 0:
        torch.save(trainer.net.state_dict(), "net.pt")


def train(net):
    net = FSDP(net, use_orig_params=True)
    save(net, torch.optim.SGD(net.parameters(), lr=0.1))
""",
    "ddp_that_stays_beside_fsdp1": FSDP + """\


def sync(net, batches):
    context = net.no_sync
    with context():
        net(batches[0]).sum().backward()
        return [p.grad.norm() for p in net.parameters()]


def train(net, parallel=DDP):
    if torch.distributed.get_world_size() > 4:
        net = FSDP(net)
    else:
        net = DDP(net)
    print(sync(net, [torch.ones(2, 4)]))
    print(hasattr(net, "head"))
""",
}  # fmt: skip
COMMON = """
import json
import torch


def export(net, path):
    torch.jit.script(net).save(path)


def keep(holder, path):
    if torch.distributed.get_rank() == 0:
        torch.save(holder.net.state_dict(), path)
        holder.net.generate(path)


def write(average, net):
    for p, q in zip(average.parameters(), net.parameters()):
        p.data.copy_(q.data)
"""


def run(files: dict[str, str]) -> tuple[dict[str, str], Analysis]:
    """The files after a run, with modules of helpers, by path."""
    sources = {path: Source.decode(path, text.encode()) for path, text in files.items()}
    facts = [extract(source) for source in sources.values()]
    analysis = analyse(facts, sources.__getitem__, Options(target_torch=(2, 13)), paths=list(sources))
    assert not analysis.errors
    return {**files, **analysis.new_files, **analysis.texts}, analysis


@pytest.mark.parametrize("name", SECTIONS)
def test_what_stays_of_the_old_world_makes_nothing_new(name: str) -> None:
    after, first = run({"train.py": HEAD + SECTIONS[name] + MAIN})
    assert "fsdp2_helpers" in first.texts["train.py"]
    assert not run(after)[1].texts


def test_a_program_that_came_later_leaves_the_others_alone() -> None:
    use = "from common import export, keep, write\n\n\n" + textwrap.dedent("""\
        class Holder:
            def __init__(self, net):
                self.net = net


        def train(net):
            net = DDP(net)
            export(net, "net.pt")
            keep(Holder(net), "net.pt")
            write(nn.Linear(4, 4), net)
        """)
    after, first = run({"one.py": HEAD + use + MAIN, "common.py": COMMON})
    assert "common.py" in first.texts
    _, later = run({**after, "two.py": HEAD + use + MAIN})
    assert list(later.texts) == ["two.py"]
