"""Small programs, each about one kind of code: on two ranks they print the same before and after the tool has migrated them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from case_runner import run_side
from to_fsdp2.corpus.cases import Run
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

RUN = Run("two_ranks", "torchrun", 2, "train.py", ((),), (), (), False)
HEAD = """
import copy
import math
import pickle
import statistics
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(3)


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 4) + dist.get_rank()).square().mean().backward()
    optimizer.step()


def show(state):
    print({name: (tuple(value.shape), round(value.double().sum().item(), 5)) for name, value in sorted(state.items())})


"""
PROGRAMS = {
    "keys of branches for plain models": """
        def by_name(m):
            if hasattr(m, "module"):
                return m.module.state_dict()
            else:
                return m.state_dict()

        def by_class(m):
            if isinstance(m, (DDP, nn.DataParallel)):
                return m.module.state_dict()
            return m.state_dict()

        def by_recursion(m):
            if hasattr(m, "module"):
                return by_recursion(m.module)
            return m.state_dict()

        def by_attempt(m):
            try:
                return m.module.state_dict()
            except AttributeError:
                return m.state_dict()

        def by_type(m):
            return m.state_dict() if type(m) != DDP else m.module.state_dict()

        model = DDP(nn.Linear(4, 2))
        for state in (by_name, by_class, by_recursion, by_attempt, by_type):
            show(state(model))
        show(model.module.state_dict() if hasattr(model, "module") else model.state_dict())
        show(model.state_dict())
    """,
    "averages of a class that is made by its name": """
        class Average:
            def __init__(self, net):
                self.net = net
                self.average = copy.deepcopy(net)

            @torch.no_grad()
            def update(self):
                for p_net, p_average in zip(self.net.parameters(), self.average.parameters()):
                    p_average.lerp_(p_net, 0.5)

        def make(name, **given):
            return eval(name)(**given)

        net = nn.Linear(4, 2)
        model = DDP(net)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        average = make("Average", net=net)
        for _ in range(2):
            step(model, optimizer)
            average.update()
        show(average.average.state_dict())
    """,
    "plain tensors written into parts of a model": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})
                self.register_buffer("queue", torch.zeros(3, 4))

            def forward(self, x):
                return self.heads["a"](x) + self.heads["b"](x)

        model = DDP(Net())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with torch.no_grad():
            getattr(model.module.heads, "a").weight.copy_(torch.arange(8.0).view(2, 4))
            model.module.heads["b"].bias.mul_(0.5).add_(torch.ones(2), alpha=2)
            model.module.queue.copy_(torch.ones(3, 4))
        net = model.module
        net.heads["b"].weight.data.copy_(torch.arange(8.0).view(2, 4))
        step(model, optimizer)
        show(model.state_dict())
    """,
    "collectives on parameters": """
        def check(module):
            for name, p in module.named_parameters():
                other = p.detach().clone()
                dist.broadcast(tensor=other, src=0)
                assert (p == other).all(), name

        model = DDP(nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        step(model, optimizer)
        check(model)
        for p in model.parameters():
            dist.all_reduce(p.grad, async_op=True).wait()
        optimizer.step()
        show(model.state_dict())
    """,
    "norms of gradients by hand": """
        def by_list(model):
            return torch.norm(torch.tensor([torch.norm(p.grad) for p in model.parameters()])).item()

        def by_appending(model):
            norms = []
            for p in model.parameters():
                norms.append(p.grad.norm())
            return torch.tensor(norms).norm().item(), math.fsum(norms), statistics.mean(float(norm) for norm in norms)

        def largest(model):
            return max(p.grad.abs().max() for p in model.parameters()).item()

        def of_all(model):
            total = 0.0
            for p in model.parameters():
                total += torch.norm(p.grad).item() ** 2
            return total ** 0.5, torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()

        model = DDP(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))
        step(model, torch.optim.SGD(model.parameters(), 0.1))
        print([f"{x:.5f}" for x in (by_list(model), *by_appending(model), largest(model), *of_all(model))])
    """,
}


def migrated(program: str) -> tuple[str, str, str]:
    """A program as a script, before and after its migration, and its helpers."""
    text = HEAD + textwrap.dedent(program) + "\ndist.destroy_process_group()\n"
    source = Source.decode("train.py", text.encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert not analysis.errors
    return text, analysis.texts["train.py"], "".join(analysis.new_files.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_both_print_the_same(name: str, tmp_path: Path) -> None:
    old, new, helpers = migrated(PROGRAMS[name])
    printed = []
    for side, text in (("old", old), ("new", new)):
        folder = tmp_path / side / "source"
        folder.mkdir(parents=True)
        (folder / "train.py").write_text(text)
        (folder / "fsdp2_helpers.py").write_text(helpers)
        printed.append(run_side(RUN, folder, tmp_path / side / "run").printed)
    assert printed[0] == printed[1] and "".join(printed[0])
