"""A second name for a wrapper class, ``DDP = torch.nn.parallel.DistributedDataParallel``."""

from __future__ import annotations

import ast

from ..findings import Level
from ..rule import Outcome
from ..sites import Site


def alias_outcome(site: Site) -> Outcome | None:
    """The finding of an assignment that gives the class another name: each use of that name has a finding of its own."""
    view = site.view
    assigned = view.parents[site.node]
    if not isinstance(assigned, ast.Assign) or assigned.value is not site.node:
        return None
    targets = [target.id for target in assigned.targets if isinstance(target, ast.Name)]
    if len(targets) != len(assigned.targets):
        return None
    names = [node for node in ast.walk(view.tree) if isinstance(node, ast.Name) and node.id in targets]
    bound = [name for name in names if isinstance(name.ctx, ast.Store)]
    loads = [name for name in names if isinstance(name.ctx, ast.Load)]
    if len(bound) > len(targets) or any(view.external(load) != site.symbol for load in loads):
        return None
    return Outcome(
        Level.OK, f"another name for {site.member}, and every use of it has a finding of its own; it may go once nothing uses it"
    )
