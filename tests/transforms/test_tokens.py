"""Which files are worth reading: those that mention the old world."""

from __future__ import annotations

import pytest
from to_fsdp2.transforms.engine import holds_token


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"model = DDP(model)\n", True),
        (b"strategy = 'DDPStrategy'\nflag = args.use_DDP\n", True),
        (b"class TorchDDP: ...\n", True),
        (b"words = r'ADDPROPERTY|ADDPATH'\n", False),
        (b"words = r'ADDPROPERTY'\nmodel = DDP(model)\n", True),
        (b"words = r'ADDPROPERTY'\nmodel = FSDP(model)\n", True),
        (b"model = DataParallel(model)\n", False),
    ],
)
def test_tokens_are_words_of_their_own(text: bytes, expected: bool) -> None:
    assert holds_token(text) is expected
