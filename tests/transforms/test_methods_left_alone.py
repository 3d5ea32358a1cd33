"""Methods of models that need no parameters gathered around them."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated


@pytest.mark.parametrize(("method", "stays"), [("no_weight_decay", True), ("save_checkpoint", True), ("encode", False)])
def test_methods_of_libraries_that_compute_nothing(method: str, stays: bool) -> None:
    text = HEAD + "import timm\n\n\ndef run(options):\n    model = DDP(timm.create_model('vit'), **options)\n"
    new = migrated(train=text + f"    return model.{method}()\n")["train"]
    assert (f"return model.{method}()" in new) is stays


@pytest.mark.parametrize(("member", "stays"), [("dropout", True), ("encode", False)])
def test_what_classes_set_as_an_attribute_is_a_part_and_no_method(member: str, stays: bool) -> None:
    net = "class Net(nn.Module):\n    def __init__(self, part):\n        super().__init__()\n        self.dropout = part\n\n"
    net += "    def encode(self, x):\n        return self.dropout(x) @ self.weight\n\n\n"
    run = f"def run(part, options, x):\n    model = DDP(Net(part), **options)\n    return model.module.{member}(x)\n"
    new = migrated(train=HEAD + net + run)["train"]
    assert ("forward_method(" not in new) is stays
