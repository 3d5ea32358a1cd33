"""What rank 0 alone ran of a sharded model: run by all ranks where that is sound, left to a person where it is not."""

from __future__ import annotations

import textwrap

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Finding, Level

HEAD = """\
import logging

import torch
from torch.nn.parallel import DistributedDataParallel as DDP


"""


def migrated(body: str) -> tuple[str, list[Finding]]:
    """The new text of a script, and its findings about forwards behind guards."""
    analysis, results = analyse_texts({"train.py": HEAD + textwrap.dedent(body)})
    return results["train.py"], [finding for finding in analysis.findings if finding.rule == "FS414"]


EARLY_RETURN = """
    def evaluate(model, loader, rank):
        if rank != 0:
            return
        model.eval()
        total = 0.0
        for batch in loader:
            total += model(batch).item()
        model.train()
        logging.info(total)


    def main(rank, loader):
        model = DDP(torch.nn.Linear(2, 1))
        evaluate(model, loader, rank)
"""


def test_early_return_moves_behind_the_last_use_of_the_model() -> None:
    after, findings = migrated(EARLY_RETURN)
    assert [finding.level for finding in findings] == [Level.REVIEW]
    body = after[after.index("def evaluate") : after.index("def main")]
    assert body.index("model.train()") < body.index("if rank != 0:") < body.index("logging.info")
    assert body.index("torch.get_rng_state()") < body.index("model.eval()")
    assert body.index("torch.set_rng_state(random_states[0])") < body.index("        return\n") < body.index("logging.info")


def test_block_is_run_by_all_ranks_but_for_its_report() -> None:
    after, findings = migrated(
        """
        def main(rank, loader):
            model = DDP(torch.nn.Linear(2, 1))
            for step in range(9):
                if rank == 0:  # a look
                    # at held-out data
                    with torch.no_grad():
                        seen = [model(batch) for batch in loader]
                        print(len(seen))
                    print("done")
        """
    )
    assert [finding.level for finding in findings] == [Level.REVIEW]
    expected = """\
    for step in range(9):
        # a look
        # forwards need all ranks; the others go on with the random numbers that they have now
        random_states = [torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_available() else None]
        # at held-out data
        with torch.no_grad():
            seen = [model(batch) for batch in loader]
            if rank == 0:
                print(len(seen))
        if rank == 0:
            print("done")
        else:
            torch.set_rng_state(random_states[0])
            if torch.cuda.is_available():
                torch.cuda.set_rng_state(random_states[1])
"""
    assert expected in after


def test_state_that_is_saved_behind_the_same_guard_is_gathered_in_front_of_it() -> None:
    after, _ = migrated(
        """
        def main(rank, loader):
            model = DDP(torch.nn.Linear(2, 1))
            for epoch in range(9):
                if rank == 0:
                    for batch in loader:
                        print(model(batch))
                    torch.save(model.module.state_dict(), "model.pt")
        """
    )
    gathered = after.index("model_state_dict = get_model_state_dict(")
    assert gathered < after.index("for batch in loader") < after.index("if rank == 0:\n            torch.save(model_state_dict")


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("for batch in loader:\n    torch.save(model(batch), 'out.pt')", "writes files"),
        ("torch.distributed.barrier()\nfor batch in loader:\n    print(model(batch))", "ranks wait for each other"),
        ("for batch in held_out:\n    print(model(batch))", "held_out exists on some ranks only"),
        ("for batch in loader:\n    loss = model(batch)\n    if loss > 3:\n        break", "ranks may differ about `loss > 3`"),
        ("for batch in loader:\n    best = model(batch)", "`best` is used on all ranks"),
        ("for batch in loader:\n    history.last = model(batch)", "`history.last` would change on every rank"),
        ("for batch in loader:\n    if rank == 0:\n        print(model(batch))", "it stays"),
        ("for batch in loader:\n    if stop:\n        return\n    print(model(batch))", "control may leave"),
    ],
)
def test_what_all_ranks_cannot_run_is_left(block: str, reason: str) -> None:
    guarded = textwrap.indent(block, "        ")
    before = (
        "def main(rank, loader, history, stop, best=0):\n"
        "    held_out = load() if rank == 0 else None\n"
        "    model = DDP(torch.nn.Linear(2, 1))\n"
        f"    if rank == 0:\n{guarded}\n"
        "    print(best)\n"
    )
    after, findings = migrated(before)
    assert {finding.level for finding in findings} == {Level.MANUAL}
    assert reason in findings[0].message
    assert after == HEAD + before


def test_a_result_that_callers_use_keeps_the_early_return() -> None:
    used = EARLY_RETURN.replace("return\n", "return {}\n").replace("logging.info(total)", "return {'loss': total}")
    after, findings = migrated(
        used.replace("        evaluate(model", "        print(evaluate(model").replace("rank)\n", "rank))\n")
    )
    assert "DDP(" in after
    assert findings[0].level is Level.MANUAL


FACTORY = """
    KEPT = dict()


    def load(path):
        model = torch.nn.Linear(2, 1)
        model.load_state_dict(torch.load(path))
        return model


    def check(model, batch):
        print(model(batch))


    def main(rank, batch):
        model = DDP(load("start.pt"))
        if rank == 0:
            USE
"""


@pytest.mark.parametrize(
    "use", ["check(load('end.pt'), batch)", "check(load('end.pt').eval(), batch)", "best = load('end.pt'); check(best, batch)"]
)
def test_a_model_that_is_loaded_behind_the_guard_is_not_the_sharded_one(use: str) -> None:
    _, findings = migrated(FACTORY.replace("USE", use))
    assert not findings


@pytest.mark.parametrize("use", ["check(model, batch)", "check(model.module, batch)"])
def test_the_wrapped_model_is(use: str) -> None:
    _, findings = migrated(FACTORY.replace("USE", use))
    assert findings


def test_a_factory_that_keeps_its_models_may_hand_out_the_sharded_one() -> None:
    kept = FACTORY.replace("        return model\n", "        KEPT[path] = model\n        return KEPT[path]\n", 1)
    _, findings = migrated(kept.replace("USE", "check(load('end.pt'), batch)"))
    assert findings


MODES = """
    def set_mode(model, training):
        if training:
            model.train()
        else:
            model.eval()


    def evaluate(model, batch):
        model.eval()
        return model(batch).sum()


    def main(rank, batch):
        model = DDP(torch.nn.Linear(2, 1))
        for step in range(9):
            if rank == 0:
                loss = evaluate(model, batch)
                print(loss)
                BACK
                print("done")
"""


@pytest.mark.parametrize("back", ["model.train()", "set_mode(model, True)"])
def test_all_ranks_go_back_to_training(back: str) -> None:
    after, findings = migrated(MODES.replace("BACK", back))
    assert {finding.level for finding in findings} == {Level.REVIEW}
    assert f"        if rank == 0:\n            print(loss)\n        {back}\n        if rank == 0:" in after


@pytest.mark.parametrize(
    ("start", "loop", "level"), [("", "model.train()", Level.REVIEW), ("model.train()", "pass", Level.MANUAL)]
)
def test_a_model_that_stays_in_evaluation_mode_is_left_on_rank_0(start: str, loop: str, level: Level) -> None:
    body = MODES.replace("                BACK\n", "").replace("range(9):\n", f"range(9):\n            {loop}\n")
    _, findings = migrated(body.replace("        for step", f"        {start or 'pass'}\n        for step"))
    assert {finding.level for finding in findings} == {level}


AVERAGE = """
    from copy import deepcopy


    def unwrap(model):
        return model.module if hasattr(model, "module") else model


    class Average:
        def __init__(self, model):
            self.ema = deepcopy(unwrap(model))

        def update(self, model):
            state = unwrap(model).state_dict()
            for name, value in self.ema.state_dict().items():
                BODY


    def main(rank, batch):
        model = torch.nn.Linear(2, 1)
        average = Average(model) if rank == 0 else None
        model = DDP(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(batch).sum().backward()
        optimizer.step()
        if average:
            average.update(model)
"""


@pytest.mark.parametrize(
    "body", ["value += state[name]", "value.lerp_(state[name], 0.1)", "value *= 0.9; value += 0.1 * state[name]"]
)
def test_state_that_is_computed_with_stays_on_the_device(body: str) -> None:
    after, _ = migrated(AVERAGE.replace("BODY", body))
    assert "        unwrap(model), options=StateDictOptions(full_state_dict=True)\n" in after
    assert "average.update(model, model_state_dict=model_state_dict)" in after


def test_state_is_not_handed_in_where_the_function_trains_first() -> None:
    trains = AVERAGE.replace("state = unwrap", "model(torch.ones(2)).sum().backward()\n            state = unwrap")
    after, _ = migrated(trains.replace("BODY", "value += state[name]"))
    assert "DDP(" in after


RUNNER = """
    import functools


    def main_process(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            if torch.distributed.get_rank() == 0:
                return function(*args, **kwargs)

        return wrapper


    class Runner:
        def __init__(self):
            self.model = DDP(torch.nn.Linear(2, 1))

        def train(self):
            result = self.evaluate()
            if result is not None:
                self.save("best.pt")

        @main_process
        def evaluate(self):
            return 1.0

        @main_process
        def save(self, path):
            torch.save(self.model.module.state_dict(), path)


    class Other(Runner):
        def train(self):
            self.save(3)

        @main_process
        def save(self, number):
            torch.save({"weights": self.model.module.state_dict(), "number": number}, "last.pt")
"""


def test_methods_with_a_decorator_are_handed_the_state_also_where_they_are_overridden() -> None:
    after, _ = migrated(RUNNER)
    assert after.count("self.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)") == 2
    assert after.index("get_model_state_dict(\n") < after.index("if result is not None:")
    assert 'self.save("best.pt", model_state_dict=model_state_dict)' in after
    assert "self.save(3, model_state_dict=model_state_dict)" in after


def test_a_method_that_the_base_calls_for_its_subclasses_is_left() -> None:
    analysis, _ = analyse_texts(
        {"train.py": HEAD + textwrap.dedent(RUNNER.replace("            self.save(3)", "            super().train()"))}
    )
    state = [finding for finding in analysis.findings if finding.rule == "FS402"]
    assert {finding.level for finding in state} == {Level.MANUAL}
