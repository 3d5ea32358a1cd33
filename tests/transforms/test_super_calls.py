"""Constructors and class methods behind ``super()``, of objects that are made in a file that is looked at later."""

from __future__ import annotations

from migrated_texts import HEAD, migrated

LOOPS = (
    HEAD
    + """class Loop:
    def __init__(self, model):
        self.model = DDP(model)


class Further(Loop):
    def __init__(self, *, target, **kwargs):
        super().__init__(**kwargs)
        self.target = target

    def run(self, batches):
        for batch in batches[:-1]:
            with self.model.no_sync():
                self.model(batch).sum().backward()
        if torch.distributed.get_rank() == 0:
            torch.save(self.model.state_dict(), "m.pt")
"""
)
TRAIN = """from loops import Further

LOOPS = {"further": Further}


def chosen(kind):
    return LOOPS[kind]


def main(net, batches):
    chosen("further")(model=net, target=None).run(batches)


main(None, [])
"""


def test_what_runs_behind_a_constructor_of_a_base_is_rewritten() -> None:
    text = migrated(loops=LOOPS, train=TRAIN)["loops"]
    assert "no_gradient_sync(self.model)" in text or "set_requires_gradient_sync" in text
    assert "model_state_dict = model_state(self.model)\n" in text


PRETRAINED = (
    HEAD
    + """from transformers import PreTrainedModel


class Net(PreTrainedModel):
    @classmethod
    def from_pretrained(cls, path, **kwargs):
        return super().from_pretrained(path, **kwargs)


def train(model):
    model = DDP(model)
    model(1).sum().backward()


def main(path):
    model = Net.from_pretrained(path)
    train(model)
    if torch.distributed.get_rank() == 0:
        model.save_pretrained(path)


main("x")
"""
)


def test_what_a_class_method_gets_from_a_librarys_base_is_a_model() -> None:
    text = migrated(train=PRETRAINED)["train"]
    assert "whole_on_each_rank(" in text.partition("def main(path)")[2]
