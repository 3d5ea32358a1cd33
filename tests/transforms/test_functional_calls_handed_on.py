"""`functional_call` as a value: whoever calls it later gives it a model that may be sharded."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated


@pytest.mark.parametrize(("wrap", "is_edited"), [("DDP(net)", True), ("net", False)])
def test_what_is_handed_on_is_the_helper_where_models_are_sharded(wrap: str, is_edited: bool) -> None:
    program = HEAD + (
        "import functools\n\nfrom torch.func import functional_call\n\n\ndef main(weights, x):\n    net = nn.Linear(2, 2)\n"
        f"    model = {wrap}\n    run = functools.partial(functional_call, net)\n    model(x)\n    return run(weights, (x,))\n\n"
        "\nmain({}, 1)\n"
    )
    new = migrated(train=program).get("train", program)
    assert ("functools.partial(call_with_weights, net)" in new) == is_edited
