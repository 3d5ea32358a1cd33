"""Branches for versions of torch that are too old for fully_shard: what is migrated never runs them."""

from __future__ import annotations

import ast
import re
from functools import cache

from ..text.trees import walk
from .evaluation import Evaluator, Unclear
from .written_names import Names

OLDEST: tuple[int, int] = (2, 6)
"""The first torch that has ``torch.distributed.fsdp.fully_shard``."""

_HAVING_IT = (
    "2.6.0a0+ecf3bae40a.nv25.01", "2.6.0+cu124", "2.7.1", "2.8.0.dev20250601+cpu", "2.9.0", "2.10.0", "2.13.0", "2.20.1",
    "3.0.0", "3.10.0",
)  # fmt: skip
"""Versions that have it, in all the shapes that their names take: a test that is the same under all is decided."""

_WORDS = re.compile(r"version|torch.|.torch", re.IGNORECASE)


def outcome(test: ast.expr, names: Names) -> bool | None:
    """What a test comes out as on every torch that has fully_shard; None if that depends on more."""
    found: set[bool] = set()
    for torch in _HAVING_IT:
        try:
            found.add(Evaluator(torch, names).truth(test))
        except Unclear:
            return None
        if len(found) > 1:
            return None
    return found.pop()


def speaks_of_versions(test: ast.expr) -> bool:
    """Whether a test has a name that a version, or a test of one, would be called by; others are not worth a look."""
    for node in walk(test):
        if isinstance(node, ast.Name):
            name = node.id
        elif isinstance(node, ast.Attribute):
            name = node.attr
        else:
            continue
        if _is_telling(name):
            return True
    return False


@cache
def _is_telling(name: str) -> bool:
    return _WORDS.search(name) is not None
