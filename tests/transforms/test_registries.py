"""Wrapper classes in registries: decorated subclasses, and classes that are values."""

from __future__ import annotations

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
