"""Guards and what stands around them: other guards, contexts, wraps, early leaves, and objects that some ranks alone have."""

from __future__ import annotations

import pytest
from guarded_programs import HEAD, contexts
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source


def test_ranks_that_exchange_messages_meet_inside_of_one_context() -> None:
    """A gather between the two guards would wait for the rank that waits for its message to be taken."""
    program = """
        def score(net, x, scale):
            return net(x).sum() * scale

        def report(net, x, more):
            result = torch.zeros(())
            if dist.get_rank() == 1:
                dist.send(score(net, *more), dst=0)
            if dist.get_rank() == 0:
                dist.recv(result, src=1)
                print(score(net, x, 2.0), result)

        def main(net, options, x, more):
            model = DDP(net, **options)
            report(model, x, more)
    """
    assert contexts(program) == ["with whole_on_each_rank(net):"]
    apart = program.replace("dist.recv(result, src=1)", "pass").replace("dist.send(score(net, *more), dst=0)", "print(net(x))")
    assert contexts(apart) == ["with whole_on_each_rank(net):"] * 2


def test_what_is_summoned_around_a_guard_is_not_held_in_it() -> None:
    """With ``rank0_only`` the other ranks have their shards there: they would gather alone."""
    program = """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        class Adapter(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.base = torch.nn.Linear(2, 2)
                self.a = torch.nn.Parameter(torch.ones(2, 2))

        class Towers(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.text = FSDP(torch.nn.Sequential(Adapter()))

        class Run:
            def __init__(self):
                self.model = FSDP(Towers())

            def export(self, merged):
                text = self.model.module.text
                with FSDP.summon_full_params(text, rank0_only=True, writeback=False):
                    if dist.get_rank() == 0:
                        found = {n: m for n, m in text.named_modules() if isinstance(m, Adapter)}
                        for n, m in found.items():
                            merged[n] = (m.base.weight + m.a @ m.a).detach().clone()
                        for n, p in text.named_parameters():
                            merged.setdefault(n, p.detach().clone())

        Run().export({})
    """
    assert contexts(program) == []


@pytest.mark.parametrize("given", ["trainer.whole()", "whole_of(trainer.model)"])
def test_a_context_that_a_function_gives_is_seen_through(given: str) -> None:
    program = """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def whole_of(model):
            return FSDP.summon_full_params(model, rank0_only=True, writeback=False)

        class Trainer:
            def __init__(self):
                self.model = FSDP(torch.nn.Linear(2, 2))

            def whole(self):
                return FSDP.summon_full_params(self.model, rank0_only=True, writeback=False)

        def log(trainer):
            with GIVEN:
                if dist.get_rank() == 0:
                    print({n: p.norm().item() for n, p in trainer.model.named_parameters()})

        log(Trainer())
    """
    assert contexts(program.replace("GIVEN", given)) == []
    assert contexts(program.replace("GIVEN", "torch.no_grad()")) != []


@pytest.mark.parametrize(("body", "gathers"), [
    ("if small:\n        saved = model.state_dict()\n    else:\n        saved = {'model': model.state_dict(), 'step': 1}", 1),
    ("saved = {'model': model.state_dict()}\n    if small:\n        check(model.state_dict())", 2),
    ("if small:\n        saved = model.state_dict()\n    else:\n        saved = {'model': other.state_dict()}", 2),
])  # fmt: skip
def test_a_state_that_two_branches_read_is_gathered_once(body: str, gathers: int) -> None:
    """Of two reads that are both made, the one may change what the other gets."""
    program = (
        "def save(model, other, small, check):\n"
        f"    if dist.get_rank() == 0:\n        {body.replace(chr(10), chr(10) + '    ')}\n        torch.save(saved, 'x.pt')\n\n"
        "def main(net, options, small):\n    save(DDP(net, **options), DDP(net, **options), small, print)\n"
    )
    source = Source.decode("train.py", (HEAD + program).encode())
    new = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"]).texts["train.py"]
    assert new.count("= model_state(") == gathers and ("else None" in new) == (gathers > 1)


@pytest.mark.parametrize(("early", "held"), [("", 0), ("    wrapped = DDP(net)\n", 1)])
def test_a_model_that_was_just_made_is_not_held_for_what_one_rank_makes_of_it(early: str, held: int) -> None:
    """However often its function runs, as sweeps run it."""
    program = (
        "import copy\n\n\nclass Average:\n    def __init__(self, net):\n"
        "        self.net = copy.deepcopy(unwrap(net)).eval()\n\n\n"
        f"def train(width):\n    net = torch.nn.Linear(width, 2)\n{early}"
        "    average = Average(net) if dist.get_rank() == 0 else None\n    return average, DDP(net)\n\n\n"
        "if __name__ == '__main__':\n    for width in range(3):\n        train(width)\n"
    )
    source = Source.decode("train.py", (HEAD + program).encode())
    new = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"]).texts["train.py"]
    assert new.count("with whole_on_each_rank(net):") == held


def test_numbers_of_parts_behind_an_early_leave_hold_the_model_when_they_are_read() -> None:
    program = """
        def norms(model, step):
            if dist.get_rank() != 0 or step % 10 != 0:
                return None
            found = {}
            for name, part in model.module.named_children():
                found[name] = sum(p.grad.norm(2).item() for p in part.parameters() if p.grad is not None)
            return found

        def main(options):
            model = DDP(torch.nn.Sequential(torch.nn.Linear(2, 2)), **options)
            for step in range(30):
                model(torch.ones(2)).sum().backward()
                norms(model, step)

        main({})
    """
    assert contexts(program) == ["with whole_on_each_rank(model, needed=step % 10 == 0):"]


@pytest.mark.parametrize(("twin", "held"), [("copy.deepcopy(net)", 1), ("net", 0)])
def test_a_copy_that_one_rank_trains_is_made_of_the_whole_model(twin: str, held: int) -> None:
    program = f"""
        import copy

        def sharpness(net, x):
            twin = {twin}
            twin(x).sum().backward()
            return sum(p.grad.abs().sum().item() for p in twin.parameters())

        def report(model, x):
            if dist.get_rank() == 0:
                print(sharpness(model.module, x))

        def main(net, options, x):
            model = DDP(net, **options)
            report(model, x)
    """
    assert contexts(program) == ["with whole_on_each_rank(model):"] * held


def test_hooks_that_rank_0_alone_has_are_held_for_where_all_ranks_run_theirs() -> None:
    """Elsewhere all ranks may have such hooks: what one rank alone comes to then waits for the others."""
    program = """
        class Saver:
            def __init__(self, model):
                self.model = model

            def after_epoch(self):
                torch.save(self.model.state_dict(), "x.pt")

        class Trainer:
            def __init__(self, net, options):
                self.model = DDP(net, **options)
                self.hooks = []
                if is_main():
                    self.hooks.append(Saver(self.model))

            def train(self):
                for hook in self.hooks:
                    hook.after_epoch()

        class Other(Trainer):
            def __init__(self, net, options):
                self.model = DDP(net, **options)
                self.hooks = [Saver(self.model)]

        Trainer(torch.nn.Linear(2, 2), {}).train()
        Other(torch.nn.Linear(2, 2), {}).train()
    """
    assert len(contexts(program)) == 1


@pytest.mark.parametrize("run", ["try:\n        train(net)\n    finally:\n        save(net)", "train(net)\n    save(net)"])
def test_a_save_behind_an_exception_says_who_waits(run: str) -> None:
    program = f"""import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from elsewhere import train


def save(net):
    if dist.get_rank() == 0:
        torch.save(net.state_dict(), "a.pt")


def main(net, options):
    net = DDP(net, **options)
    {run}
"""
    source = Source.decode("train.py", program.encode())
    analysis = analyse([extract(source)], {"train.py": source}.__getitem__, Options(target_torch=(2, 13)), paths=["train.py"])
    (finding,) = [one for one in analysis.findings if one.rule == "FS414"]
    assert ("after an exception" in finding.advice) is ("finally" in run)
