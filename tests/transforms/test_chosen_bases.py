"""Classes derived from one of two wrappers: what they hand on of `self.module` they hand on from the same place."""

from __future__ import annotations

import pytest
from migrated_texts import migrated


@pytest.mark.parametrize("base", [
    "nn.parallel.DistributedDataParallel if distributed else nn.DataParallel", "nn.parallel.DistributedDataParallel",
])  # fmt: skip
def test_self_module_stays(base: str) -> None:
    """`unwrap(self)` would be the object itself, whose missing attributes are asked of it again, and again."""
    text = migrated(train=f"""import torch
from torch import nn


def wrapper_class(distributed):
    class Wrapper({base}):
        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.module, name)

    return Wrapper


def main(net, distributed):
    model = wrapper_class(distributed)(net)
    model(torch.ones(2, 2)).sum().backward()
    return model.extra


main(nn.Linear(2, 2), True)
""")["train"]
    assert "return getattr(self.module, name)" in text and "class Wrapper(ShardedLikeDDP" in text
