"""Wraps whose model is not seen: a registry or a configuration may choose any of the repository's classes."""

from __future__ import annotations

from ..analysis.values import Instance
from ..groups import Group
from ..migration import Migration


def groups_with_unseen_models(migration: Migration) -> list[Group]:
    """The groups that leave DDP and whose models are not all known."""
    leaving = [group for group in migration.groups.all if "DDP" in group.kinds and not group.stays_ddp]
    return [group for group in leaving if not group.raw or not all(isinstance(value, Instance) for value in group.raw)]
