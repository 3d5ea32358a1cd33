"""Models out of a dictionary: what was put into it says whether their keys begin with `module.`."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = HEAD + """

def inside(model):
    while hasattr(model, "module"):
        model = model.module
    return model


class Agent:
    def __init__(self):
        self.actor, self.critic = DDP(nn.Linear(4, 4)), DDP(nn.Linear(4, 4))

    def nets(self):
        return {{"actor": {actor}, "critic": {critic}}}

    def state(self):
        return {{name: net.state_dict() for name, net in self.nets().items()}}


agent = Agent()
torch.save(agent.nets()["actor"].state_dict(), "actor.pt")
torch.save(agent.state(), "agent.pt")
"""


@pytest.mark.parametrize(("actor", "critic", "is_inside"), [
    ("inside(self.actor)", "inside(self.critic)", True),
    ("self.actor.module", "inside(self.critic)", True),
    ("self.actor", "self.critic", False),
])  # fmt: skip
def test_keys_of_what_is_taken_out_of_a_dictionary(actor: str, critic: str, is_inside: bool) -> None:
    text = migrated(train=PROGRAM.format(actor=actor, critic=critic))["train"]
    assert ("model_state(net)" in text) is not is_inside
    assert ('model_state(agent.nets()["actor"])' in text) is not is_inside


PEELED = HEAD + """

def peel(*models):
    bare = []
    for m in models:
        if isinstance(m, DDP):
            m = m.module
        elif hasattr(m, "average"):
            m = m.average
        {put}
    return {given}


class Net(nn.Linear):
    scale = 1.0

    def forward(self, x):
        return super().forward(x) * self.scale


class Average:
    def __init__(self, net):
        self.average = Net(4, 4)


net = Net(4, 4)
average = Average(net)
model = DDP(net)
{taken}
inner.scale = 2.0
torch.save(inner.state_dict(), "inner.pt")
"""


@pytest.mark.parametrize("taken", ["inner, other = peel(model, average)", "inner = peel(model)",
                                   "inner = peel(model, average)[0]"])  # fmt: skip
@pytest.mark.parametrize(("put", "given"), [
    ("bare.append(m)", "bare[0] if len(bare) == 1 else tuple(bare)"),
    ("bare += [m]", "bare"),
    ("bare.extend([m])", "list(bare)"),
    ("bare = [m, *bare]", "bare"),
])  # fmt: skip
def test_what_a_function_of_several_models_takes_out_is_inside(put: str, given: str, taken: str) -> None:
    text = migrated(train=PEELED.format(put=put, given=given, taken=taken))["train"]
    assert "inner.scale = 2.0\n" in text
    assert "on_wrapper" not in text
    assert "torch.save(inner.state_dict()" in text


def test_what_such_a_function_gives_back_may_be_the_wrapper() -> None:
    text = migrated(train=PEELED.format(put="bare.append(m)", given="bare", taken="inner = model"))["train"]
    assert "on_wrapper(inner).scale = 2.0\n" in text
    assert "model_state(inner)" in text


PUT = HEAD + """

def bare(model):
    if hasattr(model, "module"):
        model = model.module
    return getattr(model, "_orig_mod", model)


class Engine:
    def __init__(self):
        self.kept = {{}}

    def state(self):
        return {{name: net.state_dict() for name, net in self.kept.items()}}


class Pair(Engine):
    def build(self):
        self.model = DDP(nn.Linear(4, 4))
        {put}


engine = Pair()
engine.build()
torch.save(engine.state(), "engine.pt")
"""


@pytest.mark.parametrize(
    ("put", "is_inside"),
    [
        ("self.kept.update(model=bare(self.model))", True),
        ('self.kept.update({"model": bare(self.model)})', True),
        ('self.kept["model"] = bare(self.model)', True),
        ("self.kept.update(model=self.model)", False),
        ('self.kept["model"] = self.model', False),
    ],
)
def test_keys_of_what_is_put_into_a_dictionary_of_an_object(put: str, is_inside: bool) -> None:
    assert ("model_state(net)" in migrated(train=PUT.format(put=put))["train"]) is not is_inside


ENTERED = HEAD + """import torch.distributed as dist


class Evaluating:
    def __init__(self, model):
        self.model = model

    def __enter__(self):
        self.model.eval()
        return self.model

    def __exit__(self, *_):
        self.model.train()


def evaluate(model, batches):
    with Evaluating(model) as net:
        return [net(x) for x in batches]


def main(batches):
    model = DDP(nn.Linear(4, 4))
    if dist.get_rank() == 0:
        evaluate(model, batches)


main([])
"""


def test_what_a_context_of_the_repository_gives_is_the_model() -> None:
    assert "with whole_on_each_rank(model):" in migrated(train=ENTERED)["train"]
