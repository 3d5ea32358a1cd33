"""Positions inside f-strings are those of the text, on every Python."""

from __future__ import annotations

import ast

import pytest
from to_fsdp2.transforms.text.source import Source

TEXTS = [
    'print(f"norm {model.clip_grad_norm_(1.0):.4f} of {model.module.name!r}")\n',
    'print(f"{a.b}" f"{c.d:{width.value}}" "x{y}"\n      f"é {e.f=}")\n',
    'print(f"""line\n  {model.module} and {first(\n    second.third)}\n""")\n',
    "print(f'{{no}} {yes.value} {d[k].attr}')\n",
    "x = f'{a.b if c.d else e.f:>{w.x}} {lambda_.call(1, k=v.u)}'\n",
]


@pytest.mark.parametrize("text", TEXTS)
def test_attributes_are_where_they_are_written(text: str) -> None:
    source = Source.read("x.py", text.encode())
    attributes = [node for node in ast.walk(source.tree) if isinstance(node, ast.Attribute)]
    assert attributes
    for node in attributes:
        assert source.segment(node) == ast.unparse(node)
