"""Arguments that are aligned to a call's parenthesis stay so when what is called gets another name."""

from __future__ import annotations

import pytest
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

HEAD = "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\ndef wrapped(net, options):\n"


def _migrated(call: str) -> str:
    source = Source.decode("train.py", (HEAD + call).encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert not analysis.errors
    return analysis.texts["train.py"].partition("def wrapped(net, options):\n")[2]


@pytest.mark.parametrize(
    "call, new",
    [
        ("    return DDP(net,\n               **options)\n",
         "    return shard_like_ddp(net,\n                          **options)\n"),
        ("    return DDP(net, dim=0,  # why\n               **options)\n",
         "    return shard_like_ddp(net, dim=0,  # why\n                          **options)\n"),
        ("    return DDP(net,\n        **options)\n", "    return shard_like_ddp(net,\n        **options)\n"),
        ("    return DDP(\n        net,\n        **options,\n    )\n",
         "    return shard_like_ddp(\n        net,\n        **options,\n    )\n"),
        ("    return DDP(net, **options)\n", "    return shard_like_ddp(net, **options)\n"),
    ],
)  # fmt: skip
def test_arguments_below_the_first_one_stay_below_it(call: str, new: str) -> None:
    assert _migrated(call) == new
