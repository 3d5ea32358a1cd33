"""Copies of models that nothing shows to be models: in configurations, in lists, by functions that get anything."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, helpers, migrated

PROGRAM = (
    HEAD
    + """import copy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


class Settings:
    source = None

    def build(self):
        return {copy}


def main(options, settings):
    net = Net(){early}
    model = DDP(net{keywords})
    settings.source = model.module
    return settings.build()


if __name__ == "__main__":
    main(dict(), Settings())
"""
)


@pytest.mark.parametrize("copy", [
    "copy.deepcopy(self.source)", "copy.deepcopy(self)", "list(map(copy.deepcopy, [self.source]))",
    "copy.deepcopy({'source': self.source})",
])  # fmt: skip
def test_models_can_be_copied_where_it_is_not_seen(copy: str) -> None:
    files = {"train": PROGRAM.format(copy=copy, early="", keywords="")}
    text = migrated(**files)["train"]
    assert "copy_as_plain(net)" in text or "plain_copy(self.source)" in text
    files = {"train": PROGRAM.format(copy=copy, early="", keywords=", **options")}
    text = migrated(**files)["train"]
    assert "copy_as_plain(module)" in text + helpers(**files) or "plain_copy(self.source)" in text


def test_a_model_that_takes_the_place_of_none_out_of_sight() -> None:
    text = PROGRAM.replace("settings.source =", "settings.part.source =")
    text = text.format(copy="copy.deepcopy(self.source)", early="", keywords="")
    assert "copy_as_plain(net)" in migrated(train=text)["train"]


@pytest.mark.parametrize(("copy", "early"), [
    ("self.source", ""), ("copy.deepcopy(3)", ""), ("self.source", "\n    plain = copy.deepcopy(net)"),
    ("self.source", "\n    settings.other = copy.deepcopy(options)"), ("copy.deepcopy(self.source.state_dict())", ""),
])  # fmt: skip
def test_other_copies_need_nothing(copy: str, early: str) -> None:
    files = {"train": PROGRAM.format(copy=copy, early=early, keywords="")}
    assert "copy_as_plain" not in migrated(**files)["train"] + helpers(**files)


def test_averages_whose_class_another_file_derives_from_torchs() -> None:
    """As in torchvision's references: the constructor copies the model, wherever its class is read off."""
    utils = (
        "import torch\n\n\nclass Average(torch.optim.swa_utils.AveragedModel):\n"
        "    def __init__(self, model, device):\n        super().__init__(model, device, use_buffers=True)\n"
    )
    train = HEAD + (
        "import utils\n\n\ndef main(args, device):\n    model = args.make()\n    plain = model\n    if args.distributed:\n"
        "        model = DDP(model)\n        plain = model.module\n    average = utils.Average(plain, device=device)\n"
        "    average.update_parameters(model)\n"
    )
    new = migrated(train=train, utils=utils)["train"]
    assert "utils.Average(as_plain(plain), device=device)" in new
    assert "average.update_parameters(as_plain(model))" in new


def test_an_average_by_a_star_is_of_the_module_that_has_it() -> None:
    text = HEAD + (
        "from timm.loss import *\nfrom timm.utils import *\n\n\ndef main(net, options, x):\n    average = ModelEmaV2(net)\n"
        "    model = DDP(net, **options)\n    model(x).sum().backward()\n    average.update(model)\n    return average.module\n"
    )
    new = migrated(train=text)["train"]
    assert "    average.update(model)\n    return average.module\n" in new


@pytest.mark.parametrize(("other", "is_edited"), [
    ("opt['train']['rate']", False), ("opt['train'].get('rate')", False), ("2", True),
])  # fmt: skip
def test_entries_of_settings_are_no_models(other: str, is_edited: bool) -> None:
    """A class that nobody is seen to make works on modules: what it copies may be one, but not what has settings beside it."""
    program = HEAD + (
        "import copy\n\nimport registry\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "class Trainer:\n    def __init__(self, opt):\n"
        f"        self.rate = {other}\n        self.net = FSDP(registry.build(copy.deepcopy(opt['network'])))\n"
        "        self.count = len(list(self.net.parameters()))\n"
    )
    assert ("plain_copy(opt['network'])" in migrated(train=program)["train"]) == is_edited
