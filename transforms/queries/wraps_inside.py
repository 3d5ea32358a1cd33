"""Wrapped models inside of a module that is in no wrapper itself, such as heads in a ``ModuleList``: keys have their prefix."""

from __future__ import annotations

import ast

from ..flow.values import Wrapped
from .file import File
from .sharding import ShardingQueries


def wraps_inside(sharding: ShardingQueries, file: File, node: ast.expr) -> list[Wrapped]:
    """The wrappers in what a module holds, at any depth; none of a module that may be in one itself."""
    holders = [v for v in file.values(node) if not isinstance(v, Wrapped) and sharding.is_module(v)]
    return [v for v in sharding.held_values(holders) if isinstance(v, Wrapped) and not sharding.kept(v)]
