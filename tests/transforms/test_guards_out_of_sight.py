"""Guards of ranks that are told by more than the statement around a place."""

from __future__ import annotations

import textwrap

import pytest
from migrated_texts import HEAD, migrated
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.findings import Level
from to_fsdp2.transforms.text.source import Source

IMPORTS = HEAD + "import torch.distributed as dist\n\n"

TRAINER = """
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from settings import Settings


class Trainer:
    def __init__(self, args):
        self.flag = args.flag
        self.model = DDP(nn.Linear(4, 4))

    def save(self):
        if self.flag:
            torch.save(self.model.state_dict(), "x.pt")
"""


def train(program: str) -> str:
    """The new text of a program."""
    return migrated(train=IMPORTS + textwrap.dedent(program))["train"]


def notes(program: str) -> list[Level]:
    """How the guards of a program come out."""
    source = Source.decode("train.py", (IMPORTS + textwrap.dedent(program)).encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    return [finding.level for finding in analysis.findings if finding.rule == "FS414"]


def test_files_that_take_an_attribute_from_each_other() -> None:
    """Whether a flag is of one rank is asked in the files that assign it, and not in a circle."""
    settings = """
        class Settings:
            def __init__(self, args):
                self.flag = args.flag
    """
    new = migrated(train=TRAINER, settings=textwrap.dedent(settings))["train"]
    assert "if self.flag:\n            torch.save(model_state(self.model)" in new


def test_variables_of_comprehensions_have_their_own_scope() -> None:
    """The optimizers that a comprehension runs over are held, and not what another one with the same names runs over."""
    program = """
        def main(parts, args):
            rank = dist.get_rank()
            model = DDP(nn.Linear(2, 2))
            optimizer = {name: torch.optim.AdamW(model.parameters()) for name in parts}
            metrics = evaluate(model)
            best = [v for k, v in metrics.items() if k in parts]
            if rank == 0:
                states = {k: v.state_dict() for k, v in optimizer.items()}
                torch.save((states, model.state_dict(), best), "x.pt")
    """
    assert "with whole_on_each_rank(optimizer, model):" in train(program)


EVALUATION = """
    def evaluate(model, data, args):
        metrics = {}
%s
        model.eval()
        for x in data:
            metrics["out"] = model(x).sum().item()
        return metrics

    def main(data, args):
        args.rank = dist.get_rank()
        model = DDP(nn.Linear(2, 2))
        evaluate(model, data, args)
"""


LEAVE = "    if args.rank != 0:\n        return metrics"


@pytest.mark.parametrize(
    "leaving, held",
    [
        (f"if not args.all:\n{LEAVE}", "model, needed=not args.all"),
        ("if not args.all and args.rank != 0:\n    return metrics", "model, needed=not args.all"),
        ("if not args.all:\n    if args.rank == 0:\n        x = 1\n    else:\n        return 0", "model, needed=not args.all"),
        (f"with torch.no_grad():\n{LEAVE}", "model"),
        (f"if args.one:\n{LEAVE}\nelif args.two:\n{LEAVE}", "model, needed=args.one or (not args.one and args.two)"),
    ],
)
def test_what_follows_an_early_return_of_some_ranks_however_deep_it_stands(leaving: str, held: str) -> None:
    lines = train(EVALUATION % textwrap.indent(leaving, " " * 8)).splitlines()
    begin = next(number for number, line in enumerate(lines) if "whole_on_each_rank(" in line)
    assert lines[begin].strip() in (f"with whole_on_each_rank({held}):", f"held = entered(whole_on_each_rank({held}))")
    loop = next(number for number, line in enumerate(lines) if line.strip() == "for x in data:")
    assert begin < loop
    assert lines[begin].startswith("    with") or "    held.close()" in lines[loop:]


@pytest.mark.parametrize(
    "leaving",
    [
        "if args.only:\n    if args.rank == 0:\n        return metrics\n    return None",
        "if args.only:\n    if args.rank == 0:\n        return metrics\n    else:\n        raise SystemExit",
        "for name in data:\n    if args.rank == 0:\n        break",
    ],
)
def test_where_all_ranks_leave_or_none_does_nothing_is_held(leaving: str) -> None:
    assert "whole_on_each_rank" not in train(EVALUATION % textwrap.indent(leaving, " " * 8))


def test_what_is_behind_a_further_guard_is_held_under_its_own_condition() -> None:
    """Where all ranks go on, rank 0 alone saves: the condition of the early return is not that of holding."""
    body = "        if not args.all:\n            if args.rank != 0:\n                return metrics\n        save(model)"
    program = EVALUATION % body + """
    def save(model):
        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), "x.pt")
    """
    assert "whole_on_each_rank(model)" in train(program)


TRAINING = """
    def train(model, data, optimizer, profiler):
        for x in data:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

    def main(data, args):
        rank = dist.get_rank()
        model = DDP(nn.Linear(2, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
%s
"""
BOTH = """
if args.profile and rank == 0:
    with torch.profiler.profile() as profiler:
        train(model, data, optimizer, profiler)
else:
    train(model, data, optimizer, None)
"""


def test_a_guard_whose_branches_both_train_is_none() -> None:
    new = train(TRAINING % textwrap.indent(BOTH, " " * 8))
    assert "fully_shard(model)" in new and "whole_on_each_rank" not in new
    assert not notes(TRAINING % textwrap.indent(BOTH, " " * 8))


@pytest.mark.parametrize(
    "text",
    [
        BOTH + '    torch.save(model.state_dict(), "x.pt")\n',
        "if rank == 0:\n    train(model, data, optimizer, None)\n",
        "if rank == 0:\n    model(data).sum().backward()\n",
        "if rank != 0:\n    return\ntrain(model, data, optimizer, None)\n",
    ],
)
def test_nothing_is_held_around_what_trains(text: str) -> None:
    new = train(TRAINING % textwrap.indent(text, " " * 8))
    assert "whole_on_each_rank" not in new and notes(TRAINING % textwrap.indent(text, " " * 8)) == [Level.MANUAL]


def test_guards_in_what_both_branches_call_are_seen() -> None:
    program = TRAINING.replace("            optimizer.step()\n", """            optimizer.step()
        if dist.get_rank() == 0:
            with torch.no_grad():
                print(model(x))
""") % textwrap.indent(BOTH, " " * 8)
    assert "with whole_on_each_rank(model):\n        if dist.get_rank() == 0:" in train(program)


def test_a_probe_of_one_rank_still_gets_the_model_whole() -> None:
    text = """
if rank == 0:
    probe = nn.Linear(2, 2)
    with torch.no_grad():
        found = model(data)
    probe(found).sum().backward()
"""
    assert "with whole_on_each_rank(model):" in train(TRAINING % textwrap.indent(text, " " * 8))


def test_a_leave_for_what_goes_wrong_keeps_no_rank_from_training() -> None:
    text = """
if rank == 0:
    if args.exists:
        print("there is one already")
        return -1
train(model, data, optimizer, None)
"""
    assert not notes(TRAINING % textwrap.indent(text, " " * 8))


def test_an_epoch_without_training_is_run_by_one_rank_alone() -> None:
    program = """
        def epoch(model, data, optimizer=None):
            for x in data:
                loss = model(x).sum()
                if optimizer is not None:
                    loss.backward()
                    optimizer.step()

        def main(data):
            model = DDP(nn.Linear(2, 2))
            epoch(model, data, torch.optim.SGD(model.parameters(), 0.1))
            if dist.get_rank() == 0:
                epoch(model, data)
    """
    assert "with whole_on_each_rank(model):" in train(program)


SLICES = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.head(self.encoder(x))

    def evaluation(model, found):
        model.eval()
        rank, world = dist.get_rank(), dist.get_world_size()
        step = len(found) // world + 1
        start = rank * step
        end = min(len(found), start + step)
%s

    def main(found):
        model = DDP(Net())
        evaluation(model.module, found)
"""


@pytest.mark.parametrize(
    "loop",
    [
        "for i, x in enumerate(found[start:end]):\n    print(model.head(model.encoder(x)))",
        "for i in range(start, end):\n    print(model.encoder(found[i]))",
        "scores = [model.encoder(x) for x in found[start:end]]",
        "mine = found[start:end]\nfor x in mine:\n    print(model(x))",
    ],
)
def test_parts_of_models_are_called_in_loops_over_a_slice_with_computed_bounds(loop: str) -> None:
    assert "with whole_on_each_rank(model):" in train(SLICES % textwrap.indent(loop, " " * 8))


BY_NAME = (
    HEAD
    + """import torch.distributed as dist


def wrapped(**parts):
    return {name: DDP(part) for name, part in parts.items()}


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Linear(4, 4)


def main(x):
    agent = Agent()
    models = wrapped(**agent._modules)
    models["actor"](x).sum().backward()
    if dist.get_rank() == 0:
        print(agent.actor(x))
"""
)


def test_models_that_come_to_their_wrapper_out_of_a_dictionary_of_modules() -> None:
    assert "with whole_on_each_rank(agent.actor):\n        if dist.get_rank() == 0:" in migrated(train=BY_NAME)["train"]


def test_what_is_read_off_an_object_by_several_names_is_held_with_the_object() -> None:
    """One of the things that may come to the guarded code is not all of them."""
    program = """
        class Trainer:
            def __init__(self, net):
                self.model = DDP(net)
                self.optimizer = torch.optim.Adam(self.model.parameters())
                self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}
                self.is_leader = dist.get_rank() == 0

            def end(self):
                self.model.eval()
                if self.is_leader:
                    self.save()

            def save(self):
                torch.save({name: getattr(self, name).state_dict() for name in ["model", "optimizer"]}, "out.pt")


        Trainer(nn.Linear(4, 4)).end()
    """
    assert "with whole_on_each_rank(self):\n            if self.is_leader:" in train(program)


AVERAGED = """
    class Trainer:
        def __init__(self, net):
            self.model = DDP(net)
            self.shadow = [p.detach().clone() for p in self.model.parameters()]

        def use_average(self):
            self.kept = [p.detach().clone() for p in self.model.parameters()]
            for p, s in zip(self.model.parameters(), self.shadow):
                p.data.copy_(s)

        def restore(self):
            for p, s in zip(self.model.parameters(), self.kept):
                p.data.copy_(s)

        def save(self, plain):
            if dist.get_rank() == 0:
                if plain:
                    torch.save(self.model.state_dict(), "last.pt")
                else:
                    self.use_average()
                    torch.save(self.model.state_dict(), "average.pt")
                    self.restore()


    trainer = Trainer(nn.Linear(4, 4))
    trainer.save(True)
    trainer.save(False)
"""


def test_copies_that_one_rank_writes_parameters_from_are_held_too() -> None:
    """But those that are made behind the guard are whole; and what is needed in either case is needed."""
    assert "whole_on_each_rank(self.model, self.shadow)" in train(AVERAGED)


def test_what_a_library_writes_behind_a_guard_is_in_the_state_that_is_saved_there() -> None:
    program = """
        from averages import ExponentialMovingAverage


        def main(net):
            model = DDP(net)
            ema = ExponentialMovingAverage(model.parameters(), 0.9)
            if dist.get_rank() == 0:
                ema.copy_to()
                torch.save(model.state_dict(), "average.pt")


        main(nn.Linear(4, 4))
    """
    new = train(program)
    assert "ema = with_whole_copies(ExponentialMovingAverage)(model.parameters(), 0.9)" in new
    assert "    with everything_whole_on_each_rank():\n        if dist.get_rank() == 0:\n            ema.copy_to()" in new


def test_nothing_is_held_for_what_was_just_made() -> None:
    """Also where the whole is done again and again: no wrap lies between the model's making and the guard."""
    program = """
        import copy


        def train(args):
            rank = dist.get_rank()
            net = nn.Linear(4, 4)
            average = copy.deepcopy(net) if rank == 0 else None
            if rank == 0:
                args.check(net)
            model = DDP(net)
            model(torch.ones(2, 4)).sum().backward()
            return average


        def main(args):
            for _ in range(3):
                train(args)


        main(None)
    """
    assert "whole_on_each_rank" not in train(program)


def test_methods_of_models_that_are_handed_on_and_models_behind_lambda_properties() -> None:
    program = """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.part = nn.Linear(4, 4)

            def act(self, x):
                return self.part(x) @ self.part.weight

            def forward(self, x):
                return self.part(x)


        class Agent:
            def __init__(self):
                self.wrapped = DDP(Net())

            net = property(lambda self: self.wrapped.module)


        def evaluate(policy, x):
            if dist.get_rank() == 0:
                return policy(x)


        agent = Agent()
        agent.wrapped(torch.ones(2, 4)).sum().backward()
        evaluate(agent.net.act, torch.ones(2, 4))
    """
    new = train(program)
    assert 'evaluate(forward_method(agent.net, "act"), torch.ones(2, 4))' in new
    assert "    with everything_whole_on_each_rank():\n        if dist.get_rank() == 0:\n            return policy(x)" in new


def test_what_a_library_gets_on_one_rank_is_held_whatever_annotations_say() -> None:
    """Its optimizer too: what saves the one saves the other."""
    program = """
        from typing import Union

        from savers import save_checkpoint


        def save(model: Union[nn.Module, DDP], optimizer=None):
            if dist.get_rank() != 0:
                return
            save_checkpoint("out.pt", model=model, optimizer=optimizer)


        def main():
            model = DDP(nn.Linear(4, 4))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model(torch.ones(2, 4)).sum().backward()
            save(model, optimizer)


        main()
    """
    assert "    with whole_on_each_rank(model, optimizer):\n        if dist.get_rank() != 0:" in train(program)
