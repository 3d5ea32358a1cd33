"""What DDP's wrapper hid of its model: questions to it get the old answer, those to the model the model's own."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated

PROGRAM = HEAD + """class Net(nn.Module):
    classes = 80

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.strides = [8, 16]

    def no_weight_decay(self):
        return []

    def forward(self, x):
        return self.layer(x)


class Trainer:
    def __init__(self):
        self.patience = 3


def ask(model):
    return {asked}


def main(options):
    net = Net()
    model = DDP(net, **options)
    {more}
    print(ask({given}))


main(dict())
"""


def text(asked: str, given: str = "model", more: str = "pass") -> str:
    return migrated(train=PROGRAM.format(asked=asked, given=given, more=more))["train"]


@pytest.mark.parametrize("asked", ['getattr(model, "classes", 10)', 'hasattr(model, "no_weight_decay")',
                                   'hasattr(model, "strides")'])  # fmt: skip
def test_the_wrapper_is_asked(asked: str) -> None:
    assert f"    return {asked.replace('model,', 'on_wrapper(model),')}\n" in text(asked)
    assert f"    return {asked}\n" in text(asked, given="model.module")
    assert f"    return {asked}\n" in text(asked, given="net")


@pytest.mark.parametrize("asked", ['hasattr(model, "patience")', 'hasattr(model, "training")', 'getattr(model, "classes")',
                                   'hasattr(model, "other")', 'getattr(model, "_buffers", None)'])  # fmt: skip
def test_what_the_wrapper_has_or_no_model_is_left(asked: str) -> None:
    assert f"    return {asked}\n" in text(asked)


def test_what_may_be_set_on_wrappers_is_told() -> None:
    program = PROGRAM.format(asked='hasattr(model, "strides")', given="model", more="model.strides = []")
    assert '    return hasattr(model, "strides")\n' in migrated(train=program)["train"]
    assert [f.level.value for f in findings(train=program) if f.rule == "FS614"] == ["review"]


def test_both_are_told() -> None:
    program = PROGRAM.format(asked='hasattr(model, "strides")', given="model", more="print(ask(model.module))")
    assert '    return hasattr(model, "strides")\n' in migrated(train=program)["train"]
    assert [f.level.value for f in findings(train=program) if f.rule == "FS614"] == ["review"]


@pytest.mark.parametrize("members", ["pass", "def __getattr__(self, name):\n        return getattr(self.module, name)"])
def test_wrappers_of_a_class_of_ones_own_answer_themselves(members: str) -> None:
    """They may hand on what the model has, and stay wrappers around what is sharded."""
    program = PROGRAM.format(asked='getattr(model, "classes", 10)', given="model", more="pass")
    derived = f"class Parallel(DDP):\n    {members}\n\n\nclass Net"
    program = program.replace("model = DDP(", "model = Parallel(").replace("class Net", derived)
    assert '    return getattr(model, "classes", 10)\n' in migrated(train=program)["train"]


CHOSEN = HEAD + """class Net(nn.Linear):
    scale = 0.7


class Delegating(DDP):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


def wrap(net, ranks, delegate):
    if not ranks:
        return net
    cls = {chosen}
    return cls(net)


def main(ranks, delegate):
    model = wrap(Net(4, 4), ranks, delegate)
    head = wrap(nn.Linear(4, 2), ranks, delegate)
    print(getattr(model, "scale", 1.0), head)


main(True, False)
"""


@pytest.mark.parametrize(("chosen", "asked"), [
    ("Delegating if delegate else DDP", "on_wrapper(model)"), ("DDP", "on_wrapper(model)"), ("Delegating", "model"),
])  # fmt: skip
def test_a_class_that_is_chosen_at_run_time_answers_then(chosen: str, asked: str) -> None:
    assert f'print(getattr({asked}, "scale", 1.0), head)\n' in migrated(train=CHOSEN.format(chosen=chosen))["train"]


@pytest.mark.parametrize("asked", [
    'model.classes if hasattr(model, "classes") else model.module.classes',
    'len(model.strides if hasattr(model, "strides") else model.module.strides)',
])  # fmt: skip
@pytest.mark.parametrize("given", ["model", "model.module", "nn.DataParallel(net)"])
def test_a_choice_between_the_model_and_what_is_in_it_stays(asked: str, given: str) -> None:
    assert f"    return {asked}\n" in text(asked, given=given)


def test_a_choice_between_other_things_does_not() -> None:
    asked = 'model.classes if hasattr(model, "classes") else model.module.strides'
    assert 'hasattr(on_wrapper(model), "classes")' in text(asked)
