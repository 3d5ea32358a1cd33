"""Objects that a registry, or a function that builds models, makes for several callers."""

from __future__ import annotations

from migrated_texts import HEAD, migrated, texts

REGISTRY = '''class Registry:
    def __init__(self):
        self.known = {}

    def register(self, cls):
        self.known[cls.__name__] = cls
        return cls

    def build(self, options):
        options = dict(options)
        made = self.known[options.pop("type")](**options)
        return made


MODELS = Registry()
TRANSFORMS = Registry()
'''
PARTS = HEAD + """from registry import MODELS, TRANSFORMS


@MODELS.register
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def features(self, x):
        return self.norm(x)

    def forward(self, x):
        return self.features(x)


@TRANSFORMS.register
class Flip:
    def __call__(self, x):
        return x.flip(0)


def build_model(options):
    return MODELS.build(options)


def compose(options):
    return [TRANSFORMS.build(one) for one in options]
"""
TRAIN = HEAD + """from parts import build_model, compose


class Trainer:
    def __init__(self, options):
        self.model = {first}
        self.run = DDP(self.model)
        self.transforms = compose(options.transforms)

    def step(self, x):
        for transform in self.transforms:
            x = transform(x)
        self.run(x).sum().backward()
        return self.model.features(x)


class Predictor:
    def __init__(self, options):
        self.model = {second}

    def predict(self, x):
        return self.model.features(x)


def main(options, x):
    print(Trainer(options).step(x))
    print(Predictor(options).predict(x))


if __name__ == "__main__":
    main(None, None)
"""


def calls_rewritten(first: str, second: str, parts: str = PARTS) -> list[bool]:
    """Whether the trainer's and the predictor's call of a method are rewritten."""
    new = texts({"registry": REGISTRY, "parts": parts, "train": TRAIN.format(first=first, second=second)})["train"]
    assert "x = transform(x)" in new
    return ["forward_method(" in one for one in new.split("class Predictor")]


def test_what_a_wrapper_got_is_told_from_what_else_was_built() -> None:
    assert calls_rewritten("build_model(options.a)", "build_model(options.b)") == [True, False]
    assert calls_rewritten("build_model(options.a).cuda()", "MODELS.build(options.b)") == [True, False]


def test_functions_that_keep_what_they_built_give_it_again() -> None:
    parts = PARTS.replace("    return MODELS.build(options)\n", "    KEPT.append(MODELS.build(options))\n    return KEPT[0]\n")
    parts = parts.replace("def build_model", "KEPT = []\n\n\ndef build_model")
    assert calls_rewritten("build_model(options.a)", "build_model(options.a)", parts) == [True, True]


CONFIG = '''class Config:
    def __init__(self, options):
        self.options = options
        self.made = {{}}

    def initialize(self, name, module, *args):
{prints}
        return getattr(module, self.options[name]["type"])(*args, **self.options[name]["args"])

    def kept(self, name, module, *args):
{prints}
        if name not in self.made:
            self.made[name] = getattr(module, self.options[name]["type"])(*args, **self.options[name]["args"])
        return self.made[name]
'''.format(prints='        print(name, module, self.options["x"], self.options["y"])\n' * 30)
"""Functions so long that calls of them are not told apart by copies of their bodies."""

ZOO = HEAD + '''class Net(nn.Linear):
    def features(self, x):
        return x @ self.weight
'''
RUNS = {
    "train": HEAD
    + """import torch.distributed as dist
from config import Config
import zoo


def save(path, epoch, model, optimizer):
    state = {{"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}}
    torch.save(state, path)


def main(options, batches, path):
    config = Config(options)
    model = config.{makes}("model", zoo)
    optimizer = config.initialize("optimizer", torch.optim, filter(lambda p: p.requires_grad, model.parameters()))
    model = DDP(model)
    for epoch, x in enumerate(batches):
        model(x).sum().backward()
        optimizer.step()
        if dist.get_rank() == 0:
            save(path, epoch, model.module, optimizer)


if __name__ == "__main__":
    main(None, None, None)
""",
    "extract": HEAD
    + """from config import Config
from train import main as train
import zoo


def main(options, batches, x, path):
    train(options, batches, path)
    model = Config(options).{makes}("model", zoo)
    model.load_state_dict(torch.load(path)["model"])
    print(model.features(x))


if __name__ == "__main__":
    main(None, None, None, None)
""",
}


def of_config(makes: str) -> dict[str, str]:
    return texts({"config": CONFIG, "zoo": ZOO, **{name: text.format(makes=makes) for name, text in RUNS.items()}})


def test_what_a_class_out_of_sight_makes_is_another_object_at_each_call() -> None:
    new = of_config("initialize")
    assert new["extract"] == RUNS["extract"].format(makes="initialize")
    assert "with whole_on_each_rank(model, optimizer):" in new["train"]  # made of its parameters, by the same function


def test_what_the_function_keeps_may_be_the_one_that_is_wrapped() -> None:
    new = of_config("kept")
    assert 'forward_method(model, "features")' in new["extract"]


FROZEN = """

def {name}(options, model):
{prints}
    if options.frozen:
        for parameter in model.parameters():
            parameter.requires_grad = False
    return model
"""
ZOO_OF_OTHERS = HEAD + """from registry import MODELS


def build_model(options):
    model = MODELS[options.name].build_model(options)
    model = frozen(options, model)
    return model
""" + FROZEN.format(name="frozen", prints="    print(options.name, options.frozen)\n" * 20)


def test_what_goes_through_a_function_comes_out_where_it_was_called() -> None:
    """A model that a test freezes is not what everybody gets that has one built."""
    check = HEAD + """from parts import frozen


def test_frozen(options):
    model = frozen(options, nn.Sequential(nn.Linear(3, 3)))
    assert not model[0].weight.requires_grad
"""
    train = TRAIN.replace("compose(options.transforms)", "[]").replace(", compose", "")
    train = train.format(first="build_model(options.a).cuda()", second="build_model(options.b)")
    new = texts({"registry": "MODELS = {}\n", "parts": ZOO_OF_OTHERS, "train": train, "check": check})["train"]
    assert ["forward_method(" in one for one in new.split("class Predictor")] == [True, False]


BY_PATH = (
    HEAD
    + """import importlib


def find(path):
    return getattr(importlib.import_module(path), "main_model")


def main(path, x):
    model = find(path)(path).to("cuda")
    if path.startswith("models"):
        model = torch.compile(model)
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DDP(model)
    with torch.autocast("cuda"):
        loss = model(x).sum()
    loss.backward()
    with torch.no_grad():
        print(model(x))


main("models.one", torch.ones(2, 4))
"""
)


def test_a_library_on_the_way_is_no_model() -> None:
    text = migrated(train=BY_PATH)["train"]
    assert "shard_like_ddp(model)" in text
    assert 'with torch.autocast("cuda"):' in text and "with torch.no_grad():" in text
