"""Wrapper classes in registries: decorated subclasses, and classes that are values."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

REGISTRY = """class Registry:
    def __init__(self):
        self.classes = {}

    def register(self, name=None, module=None):
        def put(cls):
            self.classes[name or cls.__name__] = cls
            return cls

        return put(module) if module is not None else put

    def build(self, name, *args, **kwargs):
        return self.classes[name](*args, **kwargs)


MODELS = Registry()
WRAPPERS = Registry()
"""
PROGRAM = HEAD + """from registry import MODELS, WRAPPERS

WRAPPERS.register(module=DDP)


@MODELS.register()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)


@WRAPPERS.register()
class Own(DDP):
    def train_step(self, x):
        return self(x)


def is_wrapped(model):
    return isinstance(model, {classes})


model = WRAPPERS.build("Own", MODELS.build("Net"))
print(is_wrapped(model), model.train_step(torch.ones(2, 4)))
"""


def test_a_class_out_of_a_registry_may_be_asked_for() -> None:
    text = migrated(train=PROGRAM.format(classes="tuple(WRAPPERS.classes.values())"), registry=REGISTRY)["train"]
    assert "WRAPPERS.register(module=ClassLikeDDP)" in text
    assert "class Own(ShardedLikeDDP):" in text


def test_a_value_that_is_only_called_is_a_function() -> None:
    text = migrated(train=PROGRAM.format(classes="Own"), registry=REGISTRY)["train"]
    assert "WRAPPERS.register(module=shard_like_ddp)" in text


def test_keys_leave_room_for_what_a_registry_holds() -> None:
    """A decorator with a key, and without, gives back keys and classes alike, as far as is seen."""
    registry = REGISTRY.replace("name=None, module=None", "key").replace(
        "        return put(module) if module is not None else put\n",
        "        return self.add(None, key) if callable(key) else lambda cls: self.add(key, cls)\n\n"
        "    def add(self, key, cls):\n        self.classes[key or cls.__name__] = cls\n        return cls\n",
    ).replace("        def put(cls):\n            self.classes[name or cls.__name__] = cls\n            return cls\n\n", "")
    methods = "".join(f'\n\n@METHODS.register("m{i}")\nclass M{i}(Base):\n    pass\n' for i in range(40))
    program = HEAD + (
        "from registry import Registry\n\nMETHODS = Registry()\n\n\n"
        "class Base:\n    def __init__(self):\n        self.model = nn.Linear(4, 4)\n\n"
        "    def save(self):\n        torch.save(self.model.state_dict(), 'model.pt')\n" + methods +
        "\n\ndef main(name):\n    method = METHODS.build(name)\n    method.model = DDP(method.model)\n    method.save()\n"
    )
    assert "model_state(self.model)" in migrated(train=program, registry=registry)["train"]


@pytest.mark.parametrize(("given", "stays"), [("", True), ('config["module"] = net', False)])
def test_a_registry_keeps_wrappers_to_ask_for_them(given: str, stays: bool) -> None:
    """What it makes of a configuration is no model in a wrapper, unless some configuration has a module for one."""
    by_arguments = "    def build(self, name, *args, **kwargs):\n        return self.classes[name](*args, **kwargs)\n"
    by_config = "    def build(self, config):\n        return self.classes[config.pop('type')](**config)\n"
    registry = REGISTRY.replace(by_arguments, by_config)
    program = HEAD + (
        "from registry import MODELS, WRAPPERS\n\nWRAPPERS.register(module=DDP)\n\n\n"
        "@MODELS.register()\nclass Head(nn.Module):\n    def scores(self, x):\n        return x @ self.weight\n\n\n"
        "def is_wrapped(model):\n    return isinstance(model, tuple(WRAPPERS.classes.values()))\n\n\n"
        f"def main(config, net, x):\n    {given or 'print(net)'}\n    head = MODELS.build(config)\n    return head.scores(x)\n"
    )
    assert ("return head.scores(x)" in migrated(train=program, registry=registry)["train"]) is stays
