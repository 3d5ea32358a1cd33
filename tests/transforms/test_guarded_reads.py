"""What some ranks alone read off a model, copy or average: every rank holds the model whole for it."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, helpers, migrated

PROGRAM = (
    HEAD
    + """import copy
import torch.distributed as dist


class Average(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.online = [model]
        self.average = copy.deepcopy(model)

    def update(self):
        for mine, new in zip(self.average.parameters(), self.online[0].parameters()):
            mine.lerp_(new, 0.1)


class Trainer:
    def __init__(self, net, options):
        self.model = DDP(net, **options)
        self.rank = dist.get_rank()
        if self.rank == 0:
            self.average = Average(self.model.module)

    def report(self, names):
        {body}


Trainer(nn.Linear(4, 4), {{}}).report([])
"""
)
HELD = "        with whole_on_each_rank(self.model):\n"


@pytest.mark.parametrize(
    "body",
    [
        "if self.rank == 0:\n            return [p.grad.norm().item() for p in self.model.parameters()]",
        "if self.rank != 0:\n            return\n        params = dict(self.model.named_parameters())\n"
        "        print([params[n].norm().item() for n in names])",
        "if self.rank == 0:\n            return copy.deepcopy(self.model)",
    ],
)
def test_the_model_is_whole_where_one_rank_reads_it(body: str) -> None:
    new = migrated(train=PROGRAM.format(body=body))["train"]
    assert HELD in new.partition("def report")[2]


def test_an_average_of_one_rank_is_made_and_updated_with_the_model_whole() -> None:
    new = migrated(train=PROGRAM.format(body="if self.rank == 0:\n            self.average.update()"))["train"]
    made, _, reported = new.partition("def report")
    assert HELD + "            if self.rank == 0:\n                self.average = Average(self.model)\n" in made
    assert "        with everything_whole_on_each_rank():\n            if self.rank == 0:" in reported


OWN = HEAD + """def noise(model, x):
    model.zero_grad()
    with model.no_sync():
        model(x).sum().backward()
    {after}
    return [p.grad.norm() for p in model.parameters() if p.grad is not None]


def main(net, options, x):
    return noise(DDP(net, **options), x)
"""


@pytest.mark.parametrize(("after", "stays"), [("pass", True), ("model(x).sum().backward()", False)])
def test_a_model_whose_gradients_one_rank_alone_uses_stays_in_ddp(after: str, stays: bool) -> None:
    found = findings(train=OWN.replace("{after}", after))
    assert any(f.rule == "FS120" and f.message.startswith("DDP stays") for f in found) == stays


AROUND = HEAD + """import torch.distributed as dist


class Around(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner, self.param_groups = inner, inner.param_groups

    def state_dict(self):
        return {"inner": self.inner.state_dict()}


def main(net, options, path):
    model = DDP(net, **options)
    optimizer = Around(torch.optim.SGD(model.parameters(), lr=0.1))
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, path)
"""


def test_state_that_is_read_for_other_state_moves_with_it() -> None:
    new = migrated(train=AROUND)["train"]
    assert "    model_state_dict = model.state_dict()\n" in new
    assert '        torch.save({"model": model_state_dict, "optimizer": optimizer_state_dict}, path)\n' in new
    assert "whole_on_each_rank" not in new


@pytest.mark.parametrize(
    ("made", "is_whole"),
    [
        ("torch.optim.AdamW(model.parameters())", False),
        ("torch.optim.LBFGS(model.parameters())", True),
        ("LARC(torch.optim.SGD(model.parameters(), lr=0.1))", True),
        ("ScheduleFreeWrapper(torch.optim.SGD(model.parameters(), lr=0.1))", False),
    ],
)
def test_optimizers_of_libraries_that_look_at_whole_parameters(made: str, is_whole: bool) -> None:
    imports = "from apex.parallel import LARC\nfrom schedulefree import ScheduleFreeWrapper\n\n\n"
    text = HEAD + imports + f"def main(net, options):\n    model = DDP(net, **options)\n    return {made}\n"
    assert f"    return {f'step_on_whole({made})' if is_whole else made}\n" in migrated(train=text)["train"]


STATE = HEAD + """def main(net, options, rank, path):
    model = DDP(net, **options)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    if {test}:
        torch.save([optimizer.state[p]["exp_avg"] for p in model.parameters()], path)


main(nn.Linear(4, 4), {{}}, torch.distributed.get_rank(), "moments.pt")
"""


@pytest.mark.parametrize(("test", "is_held"), [("rank == 0", True), ("path", False)])
def test_states_by_parameter_are_whole_where_they_are_read(test: str, is_held: bool) -> None:
    text = STATE.format(test=test)
    assert ("with whole_on_each_rank(optimizer" in migrated(train=text)["train"]) == is_held
    assert ("compute_as_whole(module)" in helpers(train=text)) != is_held


WRITTEN = HEAD + """import torch.distributed as dist


def save(state, path, best):
    torch.save(state, path)
    if best:
        {more}torch.save(state, "best.pt")


def main(net, path):
    model = DDP(net)
    if dist.get_rank() == 0:
        save({{"model": model.module.state_dict()}}, path, best=False)
        torch.save(model.module.state_dict(), "weights.pt")
"""


@pytest.mark.parametrize(("more", "shared"), [("", True), ('state["model"].clear(); ', False)])
def test_reads_of_one_state_share_it_where_functions_only_write_it(more: str, shared: bool) -> None:
    new = migrated(train=WRITTEN.format(more=more))["train"].partition("def main")[2]
    assert "    model_state_dict = model.state_dict()\n" in new
    assert ("model_state_dict_2" in new) != shared


COUNTED = HEAD + """import torch.distributed as dist


def describe(model):
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    {more}return f"{{size / 1e6}} M"


def main(net, options):
    model = DDP(net, **options)
    if dist.get_rank() == 0:
        print(describe(model))
"""


@pytest.mark.parametrize(("more", "is_held"), [("", False), ("print(model(torch.ones(2)))\n    ", True)])
def test_functions_that_only_count_need_no_gather(more: str, is_held: bool) -> None:
    new = migrated(train=COUNTED.format(more=more))["train"].partition("def main")[2]
    assert ("whole_on_each_rank" in new) == is_held


def test_each_model_is_held_that_a_name_may_stand_for_behind_the_guard() -> None:
    text = migrated(train=HEAD + """import torch.distributed as dist


class Trainer:
    def __init__(self, net, average, options):
        self.average = average
        self.model = DDP(net, **options)

    def save(self, path):
        if dist.get_rank() == 0:
            if self.average is not None:
                model = self.average.model
            else:
                model = self.model.module
            print(path)
            torch.save(model.state_dict(), path)


def main(net, average, options):
    Trainer(net, average, options).save("a.pt")
""")["train"]
    assert "whole_on_each_rank(self.average, self.model)" in text or "whole_on_each_rank(self.model)" in text


SAVED = HEAD + """import torch.distributed as dist


class Net({base}):
    def save_pretrained(self, path):
        torch.save(self.state_dict(), path)


class Trainer:
    def wrap(self, options):
        for name in self.raw_models:
            self.models[name] = DDP(self.models[name], **options)

    def save(self, path):
        if dist.get_rank() == 0:
            for name in self.raw_models:
                self.raw_models[name].save_pretrained(path)
"""


@pytest.mark.parametrize(("base", "held"), [("nn.Linear", True), ("dict", False)])
def test_what_is_saved_by_a_name_of_models_alone_is_held(base: str, held: bool) -> None:
    """Nothing shows that the wrapped models are these too."""
    new = migrated(train=SAVED.format(base=base))["train"].partition("def save(self")[2]
    assert ("with whole_on_each_rank(self.raw_models):" in new or "with whole_on_each_rank(self):" in new) is held


RELAYED = HEAD + """import torch.distributed as dist


class Callbacks:
    def __init__(self):
        self.kept = []

    def register(self, callback):
        self.kept.append({"callback": callback})

    def run(self, event, *args):
        for callback in self.kept:
            callback["callback"](*args)


class Logger:
    def on_end(self, step, model):
        print(step)
        self.graph = torch.jit.trace(inside(model), torch.ones(1, 4))


def inside(model):
    return model.module if isinstance(model, DDP) else model


def main(net, options, loader):
    model = DDP(net, **options)
    callbacks, logger = Callbacks(), Logger()
    for name in methods(logger):
        callbacks.register(getattr(logger, name))
    for epoch, x in enumerate(loader):
        number = epoch * 2 + 1
        if dist.get_rank() == 0:
            callbacks.run("on_end", number, model)
"""


def test_what_a_function_hands_on_is_not_mistaken_for_what_stands_beside_it() -> None:
    new = migrated(train=RELAYED)["train"].partition("def main")[2]
    assert "with whole_on_each_rank(model):" in new or "with everything_whole_on_each_rank():" in new
    assert "number)" not in new.partition("whole_on_each_rank")[2].partition("\n")[0]
