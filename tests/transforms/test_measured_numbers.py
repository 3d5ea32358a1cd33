"""Tests of what each rank measured: some ranks alone may come behind them, so what is gathered there is held around them."""

from __future__ import annotations

import textwrap

import pytest
from guarded_programs import HEAD
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

PROGRAM = """
        def evaluate(model, loader):
            with torch.no_grad():
                return sum(model(x).sum().item() for x in loader)

        def evaluate_together(model, loader):
            loss = torch.tensor(evaluate(model, loader))
            dist.all_reduce(loss)
            return loss.item()

        def main(args, loader):
            model = {wrap}(torch.nn.Linear(2, 2))
            best, rank = 1.0, dist.get_rank()
            for epoch in range(args.epochs):
                {body}
"""
STOPPER = """

class Stopper:
    best = 9.0

    def __call__(self, loss, model):
        if self.best is None:
            self.best = loss
        elif loss > self.best:
            pass
        else:
            self.best = loss
            torch.save(model.state_dict(), "best.pt")
"""
KEEP = "torch.save(model.state_dict(), 'm.pt')"


def _migrated(body: str, wrap: str = "DDP", end: str = "") -> list[str]:
    text = HEAD.replace("import torch\n", "import time\nimport torch\n", 1)
    if wrap == "FSDP":
        text = text.replace("from torch.nn.parallel import DistributedDataParallel as DDP",
                            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP")  # fmt: skip
    text += textwrap.dedent(PROGRAM).replace("{wrap}", wrap).replace("{body}", body.replace("\n", "\n        ")) + end
    source = Source.decode("train.py", text.encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert not analysis.errors
    lines = [line.strip() for line in analysis.texts["train.py"].splitlines()]
    own = lines[lines.index("def evaluate(model, loader):") :]
    return [line for line in own if "whole_" in line or "any_rank" in line or "ask_" in line]


@pytest.mark.parametrize(
    "body, held",
    [
        (f"loss = evaluate(model, loader)\nif loss < best:\n    best = loss\n    if rank == 0:\n        {KEEP}",
         ["model_state_dict = model_state(model) if true_on_any_rank(loss < best) else None"]),
        (f"loss = evaluate(model, loader)\nif loss < best:\n    {KEEP}",
         ["model_state_dict = model_state(model) if true_on_any_rank(loss < best) else None"]),
        (f"loss = evaluate(model, loader)\nif loss < best:\n    best = loss\n    if rank == 0 and args.keep:\n        {KEEP}",
         ["model_state_dict = model_state(model) if true_on_any_rank(loss < best and args.keep) else None"]),
        (f"loss = evaluate(model, loader)\nis_best = loss < best\nif is_best:\n    {KEEP}",
         ["model_state_dict = model_state(model) if true_on_any_rank(is_best) else None"]),
        (f"if evaluate(model, loader) < best:\n    {KEEP}",
         ["with whole_when_asked(model):", "ask_for_whole()"]),
        (f"if time.time() > args.until:\n    {KEEP}",
         ["with whole_when_asked(model):", "ask_for_whole()"]),
        (f"loss = evaluate(model, loader)\nif loss > best:\n    continue\n{KEEP}",
         ["with whole_on_each_rank(model, needed=true_on_any_rank(not loss > best)):"]),
    ],
)  # fmt: skip
def test_what_some_ranks_gather_behind_a_number_of_their_own_is_held_around_the_test(body: str, held: list[str]) -> None:
    assert _migrated(body) == held


@pytest.mark.parametrize(
    "body",
    [
        f"loss = evaluate_together(model, loader)\nif loss < best:\n    {KEEP}",
        f"loss = torch.tensor(evaluate(model, loader))\ndist.all_reduce(loss)\nif loss < best:\n    {KEEP}",
        f"if epoch > args.first:\n    {KEEP}",
        f"if args.parameter.grad.abs().sum().item() == 0:\n    {KEEP}",
        f"norm = torch.norm(args.parameter.grad)\nif norm != 0 and not torch.isnan(norm):\n    {KEEP}",
        f"scale = args.scaler._scale.item()\nif scale < 0.01:\n    {KEEP}",
        f"if dist.get_world_size() > 1:\n    {KEEP}",
        f"rates = [x.item() for x in torch.linspace(0, 1, 3)]\nif args.place < len(rates) - 1:\n    {KEEP}",
        f"loss = evaluate(model, loader)\nif loss < best:\n    {KEEP}\n    dist.barrier()",
        f"loss = evaluate(model, loader)\nif loss < best:\n    {KEEP}\nelse:\n    model.load_state_dict(torch.load('m.pt'))",
    ],
)
def test_where_all_ranks_answer_alike_nothing_is_held(body: str) -> None:
    assert _migrated(body) == []


def test_a_class_that_stops_early_is_handed_what_each_rank_measured() -> None:
    found = _migrated("Stopper()(evaluate(model, loader), model)", end=STOPPER)
    assert found == ["model_state_dict = model_state(model) if true_on_any_rank(not (loss > self.best)) else None"]


def test_what_fsdp1_gathered_all_ranks_came_to() -> None:
    assert _migrated(f"loss = evaluate(model, loader)\nif loss < best:\n    {KEEP}", wrap="FSDP") == []
