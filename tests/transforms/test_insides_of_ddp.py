"""Tests for DDP that lead to what only DDP has."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated


@pytest.mark.parametrize(("sent", "stays"), [("model._sync_params_and_buffers()", True), ("print(model)", False)])
def test_branches_that_work_with_the_insides_of_ddp_are_for_ddp_alone(sent: str, stays: bool) -> None:
    load = f"def load(model, read):\n    late = isinstance(model, DDP) and not read\n    if late:\n        {sent}\n\n\n"
    new = migrated(train=HEAD + load + "def run(net, read):\n    load(DDP(net), read)\n")["train"]
    assert ("isinstance(model, DDP)" in new) is stays
