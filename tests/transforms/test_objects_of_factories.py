"""Objects that a registry, or a function that builds models, makes for several callers."""

from __future__ import annotations

from migrated_texts import HEAD, texts

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
