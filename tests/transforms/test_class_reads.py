"""The class of a sharded model as a value."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """class Net(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layer = nn.Linear(size, size)

    def packed(self):
        return {"class": self.__class__, "state": self.state_dict()}


def pack(model, path):
    {use}


def main(options, path):
    model = DDP(Net(4), **options)
    pack(model.module, path)
    print(model.module.packed())


main(dict(), "net.pt")
"""
)


@pytest.mark.parametrize(
    ("use", "written"),
    [
        ('torch.save({"class": model.__class__}, path)', '{"class": class_of(model)}'),
        ("return type(model) is Net", "class_of(model) is Net"),
        ("known = {Net: 1}[type(model)]", "[class_of(model)]"),
        ("return isinstance(path, type(model))", "isinstance(path, class_of(model))"),
        ("return type(model).__name__", "type(model).__name__"),
        ("return type(model)(4)", "class_of(model)(4)"),
        ("return model.__class__(4)", "class_of(model)(4)"),
        ("return type(path) is str", "type(path) is str"),
    ],
)
def test_the_class_of_a_model_is_its_own(use: str, written: str) -> None:
    text = migrated(train=PROGRAM.replace("{use}", use))["train"]
    assert written in text and '{"class": class_of(self), ' in text
