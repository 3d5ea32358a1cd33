"""Guards beside training: nothing is held whole while a model trains, and nothing is read that may not be there."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated
from to_fsdp2.transforms.findings import Level

LOOP = HEAD + """import torch.distributed as dist


class Callbacks:
    stop = False


def evaluate(model):
    with torch.no_grad():
        return model(torch.ones(2, 4)).sum()


def train(rank, callbacks):
    model = DDP(nn.Linear(4, 4))
    for epoch in range(3):
        for step in range(4):
            model(torch.ones(2, 4)).sum().backward()
            if {test}:
                {leave}
    if rank == 0:
        print(evaluate(model))


train(dist.get_rank(), Callbacks())
"""


@pytest.mark.parametrize("leave", ["return", "break", "raise SystemExit"])
@pytest.mark.parametrize("test", ["callbacks.stop and rank == 0", "rank == 0"])
def test_a_training_loop_that_is_left_is_not_held_whole(test: str, leave: str) -> None:
    text = migrated(train=LOOP.format(test=test, leave=leave))["train"]
    assert "    for epoch in range(3):\n        for step in range(4):\n            model(" in text
    assert "    with whole_on_each_rank(model):\n        if rank == 0:\n" in text


RESUME = HEAD + """import torch.distributed as dist


def resume(rank, path):
    model = DDP(nn.Linear(4, 4))
    other = nn.Linear(4, 4)
    ckpt = {made}
    if rank == 0 and {test}:
        other.load_state_dict(ckpt["ema"].state_dict())
    return model


resume(dist.get_rank(), "last.pt")
"""


def test_what_a_test_asks_for_is_not_read_in_front_of_it() -> None:
    text = migrated(train=RESUME.format(made='{"ema": model} if path else {}', test='ckpt.get("ema")'))["train"]
    assert "    with whole_on_each_rank(ckpt):\n        if rank == 0 and ckpt.get" in text


@pytest.mark.parametrize("test", ['"ema" in ckpt', "ckpt"])
def test_a_test_that_costs_nothing_is_made_in_front(test: str) -> None:
    text = migrated(train=RESUME.format(made='{"ema": model} if path else {}', test=test))["train"]
    assert f"    if {test}:\n        ema_state_dict = model_state(ckpt[\"ema\"])\n        if rank == 0:\n" in text


def test_models_out_of_files_are_plain() -> None:
    text = migrated(train=RESUME.format(made="torch.load(path)", test='ckpt.get("ema")'))["train"]
    assert 'ckpt.get("ema"):\n        other.load_state_dict(ckpt["ema"].state_dict())' in text


GATHERED = HEAD + """import torch.distributed as dist


def gathered(part):
    parts = [None, None]
    dist.gather_object(part, parts)
    {leave}
    return parts


def evaluated(model):
    results = gathered(model(torch.ones(2, 4)))
    if results is None:
        return None
    return max(results)


def main():
    model = DDP(nn.Linear(4, 4))
    best = evaluated(model)
    if best is not None:
        torch.save(model.module, "best.pt")


main()
"""


def test_what_other_ranks_left_with_nothing_is_a_rank_s_own() -> None:
    text = migrated(train=GATHERED.format(leave="if dist.get_rank() != 0:\n        return None"))["train"]
    assert "    with whole_on_each_rank(model):\n        if best is not None:\n" in text
    assert "whole_on_each_rank" not in migrated(train=GATHERED.format(leave="if not parts:\n        return None"))["train"]


OWN_RANK = HEAD + """import torch.distributed as dist


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


def main():
    model = DDP(nn.Linear(4, 4))
    if rank() == 0:
        {body}


main()
"""


def test_a_rank_that_may_be_of_no_group() -> None:
    text = migrated(train=OWN_RANK.format(body="torch.save(model.state_dict(), 'a.pt')"))["train"]
    assert "    model_state_dict = model_state(model)\n    if rank() == 0:\n" in text


def test_new_values_on_one_rank_are_told_of() -> None:
    program = OWN_RANK.format(body="nn.init.normal_(model.module.weight)")
    told = [f for f in findings(train=program) if f.rule == "FS414"]
    assert [f.level for f in told] == [Level.MANUAL] and "whole_on_each_rank" not in migrated(train=program)["train"]


CAPTURED = HEAD + """import torch.distributed as dist


class Captured:
    def __init__(self, model, optim=None):
        self.model, self.optim = model, optim

    def __call__(self, function):
        def run(*arguments):
            if self.optim is not None:
                self.optim.zero_grad()
            result = function(*arguments)
            if self.optim is not None:
                result.backward()
                self.optim.step()
            return result
        return run


def validate(step, model, batches):
    with torch.no_grad():
        return sum(step(model, x).sum() for x in batches)


def main(batches):
    model = DDP(nn.Linear(4, 4))

    @Captured(model)
    def step(model, x):
        return model(x)

    if dist.get_rank() == 0:
        print(validate(step, model, batches))


main([])
"""


def test_what_decorates_a_function_is_not_what_it_does() -> None:
    assert "    with whole_on_each_rank(model):\n        if dist.get_rank() == 0:\n" in migrated(train=CAPTURED)["train"]
    assert not [f for f in findings(train=CAPTURED) if f.level is Level.MANUAL]
