"""New imports among sorted ones of the same package."""

from __future__ import annotations

import libcst as cst
import pytest
from migrated_texts import migrated
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.rewrites.import_order import place_in_order, put_in_order
from to_fsdp2.transforms.text.source import Source

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


@pytest.mark.parametrize(
    "line, is_kept",
    [
        ('print("DDP")', False),
        ('MODES = ["DDP", "FSDP"]', False),
        ('chosen = {"DDP": 1}["DDP"]', False),
        ('__all__ = ["DDP", "wrapped"]', True),
        ('chosen: "dict[str, DDP]" = {}', True),
        ('chosen = cast("DDP", None)', True),
    ],
)
def test_a_word_in_a_text_keeps_no_import(line: str, is_kept: bool) -> None:
    text = "from typing import cast\n\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\n"
    text += f"{line}\n\n\ndef wrapped(net, options):\n    return DDP(net, **options)\n"
    source = Source.decode("train.py", text.encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert ("DistributedDataParallel as DDP" in analysis.texts["train.py"]) == is_kept


def test_a_block_that_is_left_empty_is_none_of_imports() -> None:
    text = migrated(train="""import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def main(net, args):
    import json

    model = DDP(net)
    print(json.dumps(args.options))
    if args.checks():
        model._set_static_graph()
    return model
""")["train"]
    assert "    if args.checks():\n        pass\n" in text and "DistributedDataParallel" not in text


def test_tests_go_with_what_they_were_for_alone() -> None:
    text = migrated(train="""import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def main(net, args):
    model = DDP(net)
    if args.checkpointing:
        if args.static:
            model._set_static_graph()
    if args.a:
        print(1)
    elif args.b:
        model._set_static_graph()
    if args.distributed:
        model = model.module
    return model
""")["train"]
    assert text.endswith("""    model = shard_like_ddp(net)
    if args.a:
        print(1)
    elif args.b:
        pass
    return model
""")


def test_no_blank_line_begins_a_function_that_lost_its_import() -> None:
    program = (
        "def f(net, options):\n    from torch.nn.parallel import DistributedDataParallel as DDP\n\n"
        "    # about it\n    return DDP(net, **options)\n"
    )
    assert "def f(net, options):\n    # about it\n    return shard_like_ddp(net, **options)\n" in migrated(train=program)["train"]


@pytest.mark.parametrize(("imports", "is_apart"), [
    ("import os\n\nimport torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n", True),
    ("import os\nimport torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n", False),
    ("import os\n\nimport torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\nfrom data import load\n", False),
])  # fmt: skip
def test_helpers_come_in_a_group_of_their_own_where_the_file_has_groups(imports: str, is_apart: bool) -> None:
    text = migrated(train=f"{imports}\n\ndef wrapped(net, options):\n    return DDP(net, **options)\n")["train"]
    assert ("\n\nfrom fsdp2_helpers import shard_like_ddp\n" in text) == is_apart
    assert "from fsdp2_helpers import shard_like_ddp\n\n\ndef" in text
