"""New imports among sorted ones of the same package."""

from __future__ import annotations

import libcst as cst
import pytest
from to_fsdp2.transforms.rewrites.import_order import place_in_order, put_in_order

SORTED = """import os

import torch
from torch import nn

from ..base import A
from .data import B
from .models import C

x = 1
"""


@pytest.mark.parametrize(("code", "name", "place"), [
    (SORTED, ".fsdp2_helpers", 5),
    (SORTED, "..fsdp2_helpers", 4),
    (SORTED, ".a", 4),
    (SORTED, ".zoo", 6),
    (SORTED, "fsdp2_helpers", None),
    (SORTED.replace(".data", ".zoo"), ".fsdp2_helpers", None),
    ("from src.b import x\nfrom src.utils import y\n", "src.fsdp2_helpers", 1),
    ("from torch import nn\n", "src.fsdp2_helpers", None),
])  # fmt: skip
def test_place_of_an_import(code: str, name: str, place: int | None) -> None:
    assert place_in_order(cst.parse_module(code), name) == place


def test_what_heads_a_block_heads_it_still() -> None:
    line = cst.ensure_type(cst.parse_statement("from .a import z"), cst.SimpleStatementLine)
    module = put_in_order(cst.parse_module("import os\n\n# Ours\nfrom .b import x\nfrom .c import y\n"), ".a", line)
    assert module is not None
    assert module.code == "import os\n\n# Ours\nfrom .a import z\nfrom .b import x\nfrom .c import y\n"
    assert put_in_order(cst.parse_module("from .c import y\nfrom .b import x\n"), ".a", line) is None
