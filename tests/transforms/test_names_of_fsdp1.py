"""Names of parameters that are asked for what FSDP1's wrapper puts into them."""

from __future__ import annotations

import pytest
from migrated_texts import findings

PROGRAM = """from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(net, options):
    model = FSDP(net, use_orig_params=True, **options)
    return [p for n, p in model.named_parameters() if {test}]


main(None, {{}})
"""


@pytest.mark.parametrize(("test", "levels"), [
    ('"fsdp" in n', ["manual"]), ('"_fsdp_wrapped_module." not in n', ["manual"]), ('"bias" in n', []), ("p.requires_grad", []),
])  # fmt: skip
def test_a_test_that_finds_nothing_any_more_is_told(test: str, levels: list[str]) -> None:
    assert [f.level.value for f in findings(train=PROGRAM.format(test=test)) if f.rule == "FS609"] == levels
