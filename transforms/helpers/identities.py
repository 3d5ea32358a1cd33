"""Identities of parameters that code took before they were sharded."""

from typing import Any


def id_before_sharding(thing: Any) -> int:
    """`id(thing)`; of a sharded parameter the one of the plain parameter in whose place it is, which code knew before."""
    return getattr(thing, "_id_before_sharding", id(thing))
