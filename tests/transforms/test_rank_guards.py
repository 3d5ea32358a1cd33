"""Which conditions select ranks, and which keep out every rank but the first."""

from __future__ import annotations

import ast
import textwrap

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.engine import extract
from to_fsdp2.transforms.findings import Level
from to_fsdp2.transforms.program import Program
from to_fsdp2.transforms.ranks.guards import Guard, GuardFinder
from to_fsdp2.transforms.text.source import Source

HEADER = """\
import os
import torch.distributed as dist

master_process = int(os.environ["RANK"]) == 0
local_rank = int(os.environ["LOCAL_RANK"])


def is_first():
    return not dist.is_initialized() or dist.get_rank() == 0


def only_first(function):
    def wrapper():
        if dist.get_rank() == 0:
            return function()

    return wrapper


@only_first
def measure():
    return 1.0


def is_master(args, local=False):
    return local_rank == 0 if local else args.rank == 0


def is_first_of_node():
    return local_rank == 0


"""


def guards_of(body: str) -> tuple[GuardFinder, list[Guard]]:
    """The guards around the call of ``here`` in a function with this body."""
    text = HEADER + "def run(rank, args, step, lora_rank):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    source = Source.read("train.py", text.encode())
    program = Program([extract(source)], {"train.py": source}.__getitem__)
    view = program.view("train.py")
    call = next(
        node for node in ast.walk(view.tree) if isinstance(node, ast.Call) and view.text(node.func) == "here"
    )
    finder = GuardFinder(program)
    return finder, finder.around(view, call)


@pytest.mark.parametrize(
    "body",
    [
        "if step % 10 == 0:\n    here()\n",
        "if args.local_rank != -1:\n    here()\n",
        "if rank is not None:\n    here()\n",
        "if lora_rank == 0:\n    here()\n",
        "if rank == 0:\n    print(step)\nhere()\n",
        "if dist.get_world_size() > 1:\n    here()\n",
        "found = args.find()\nif found is not None:\n    here()\n",
        "args.writes = args.log\nif args.writes:\n    here()\n",
    ],
)
def test_all_ranks_pass(body: str) -> None:
    assert not guards_of(body)[1]


@pytest.mark.parametrize(
    "body",
    [
        "if rank == 0:\n    here()\n",
        "if not rank:\n    here()\n",
        "if dist.get_rank() == 0 and step:\n    here()\n",
        "if args.rank in (-1, 0):\n    here()\n",
        "if args.rank < 1:\n    here()\n",
        "if master_process:\n    here()\n",
        "if is_first():\n    here()\n",
        "if rank != 0:\n    return\nhere()\n",
        "if not is_first():\n    print(step)\nelse:\n    here()\n",
        "state = here() if rank == 0 else None\n",
        "rank == 0 and here()\n",
        "main = dist.get_rank() == 0\nif main:\n    here()\n",
        "for _ in range(3):\n    if rank > 0:\n        continue\n    here()\n",
        "args.writes = args.log and rank == 0\nif args.writes:\n    here()\n",
        "@only_first\ndef inner():\n    here()\n",
        "if is_master(args):\n    here()\n",
    ],
)
def test_only_the_first_rank_passes(body: str) -> None:
    finder, guards = guards_of(body)
    assert guards
    assert finder.passes_only_rank_zero(guards[0])


@pytest.mark.parametrize(
    "body",
    [
        "if local_rank == 0:\n    here()\n",
        "if is_first_of_node():\n    here()\n",
        "if rank < 4:\n    here()\n",
        "if rank == 0:\n    print(step)\nelse:\n    here()\n",
        "if rank == 0 or step == 5:\n    here()\n",
        "if rank == args.saving_rank:\n    here()\n",
        "if is_master(args, local=True):\n    here()\n",
        "if is_master(args, local=step):\n    here()\n",
        "found = measure()\nif found is not None:\n    here()\n",
        "found = None\nif rank == 0:\n    found = args.step\nif found is not None:\n    here()\n",
        "found = args.step if rank == 0 else None\nif found:\n    here()\n",
    ],
)
def test_other_ranks_may_pass(body: str) -> None:
    finder, guards = guards_of(body)
    assert guards
    assert not finder.passes_only_rank_zero(guards[0])


def test_elif_is_guarded_in_front_of_its_if() -> None:
    _, guards = guards_of("if step == 1:\n    print(step)\nelif rank == 0:\n    here()\n")
    assert guards[0].statement.lineno == HEADER.count("\n") + 2


def test_a_flag_that_a_caller_passes_selects_ranks() -> None:
    text = "def save(writes):\n    if writes:\n        here()\n\n\ndef run(rank):\n    save(writes=rank == 0)\n"
    source = Source.read("train.py", text.encode())
    program = Program([extract(source)], {"train.py": source}.__getitem__)
    view = program.view("train.py")
    call = next(node for node in ast.walk(view.tree) if isinstance(node, ast.Call) and view.text(node.func) == "here")
    assert len(GuardFinder(program).around(view, call)) == 1


def test_a_call_behind_a_guard_guards_the_function() -> None:
    text = "def save():\n    here()\n\n\ndef run(rank):\n    if rank == 0:\n        save()\n"
    source = Source.read("train.py", text.encode())
    program = Program([extract(source)], {"train.py": source}.__getitem__)
    view = program.view("train.py")
    call = next(node for node in ast.walk(view.tree) if isinstance(node, ast.Call) and view.text(node.func) == "here")
    guard = GuardFinder(program).callers_guarded(view, call)
    assert guard is not None and guard.statement.lineno == 6


@pytest.mark.parametrize(("place", "told"), [("loop", True), ("end", False)])
def test_a_gather_in_every_round_is_named(place: str, told: bool) -> None:
    call = "if rank == 0:\n{0}        save(model)"
    program = f"""
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def save(model):
    torch.save(model.module.state_dict(), "a.pt")


def main(rank, batches):
    model = DDP(torch.nn.Linear(2, 2))
    for batch in batches:
        model(batch).sum().backward()
        {call.format("    ") if place == "loop" else "pass"}
    {call.format("") if place == "end" else "pass"}
"""
    analysis, _ = analyse_texts({"train.py": program})
    (found,) = [f for f in analysis.findings if f.rule == "FS402"]
    assert ("in every round" in found.message) == told


@pytest.mark.parametrize(
    "saved",
    [
        "{name: m.module.state_dict() for name, m in models.items()}",
        "[m.module.state_dict() for m in models.values()]",
    ],
)
def test_a_name_of_a_comprehension_does_not_leave_it(saved: str) -> None:
    program = f"""
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def main(rank):
    models = {{"one": DDP(torch.nn.Linear(2, 2)), "two": DDP(torch.nn.Linear(2, 2))}}
    if rank == 0:
        torch.save({saved}, "a.pt")
"""
    analysis, results = analyse_texts({"train.py": program})
    assert results["train.py"] == program
    assert {f.level for f in analysis.findings if f.rule == "FS402"} == {Level.MANUAL}


def test_a_gather_in_every_round_lets_go_of_its_copy() -> None:
    program = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def update(average, model):
    for name, value in model.module.state_dict().items():
        average[name].lerp_(value, 0.1)


def main(rank, batches, average):
    model = DDP(torch.nn.Linear(2, 2))
    for batch in batches:
        model(batch).sum().backward()
        if rank == 0:
            update(average, model)
        print("done")
"""
    _, texts = analyse_texts({"train.py": program})
    update = "update(average, model, model_state_dict=model_state_dict)"
    assert f"            {update}\n        del model_state_dict\n" in texts["train.py"]
