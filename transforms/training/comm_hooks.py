"""DDP's communication hooks: which one a registration names, and the compression it stands for."""

from __future__ import annotations

import ast

from ..groups import Group
from ..migration import Migration
from ..sites import Site
from .conditions import conditions_of
from .passes import outside_name

PACKAGES = ("torch.distributed.algorithms.ddp_comm_hooks", "torch.distributed.algorithms._comm_hooks")
_COMPRESSED = {
    "default_hooks.fp16_compress_hook": "torch.float16",
    "default_hooks.bf16_compress_hook": "torch.bfloat16",
    "BuiltinCommHookType.FP16_COMPRESS": "torch.float16",
}
REGISTRATIONS = ("register_comm_hook", "_register_builtin_comm_hook")


def hook_of(site: Site) -> str | None:
    """The canonical name of the hook that a registration names; None for functions of the repository."""
    call = site.call
    if call is None or site.member not in REGISTRATIONS:
        return None
    position = 0 if site.member == "_register_builtin_comm_hook" else 1
    node = call.args[position] if len(call.args) > position else None
    for keyword in call.keywords:
        if keyword.arg in ("hook", "comm_hook_type"):
            node = keyword.value
    return outside_name(site.view, node) if node is not None else None


def is_compression(hook: str) -> bool:
    """Whether a hook only rounds gradients for their reduction."""
    return hook.endswith(tuple(_COMPRESSED))


def compression(migration: Migration, site: Site) -> str | None:
    """The dtype that gradients are reduced in under a registered hook, if every rank registers it in any case."""
    hook = hook_of(site)
    dtype = next((d for name, d in _COMPRESSED.items() if hook is not None and hook.endswith(name)), None)
    group = site.group
    if dtype is None or group is None or group.kinds != {"DDP"}:
        return None
    here = conditions_of(site.view, site.node)
    same = all(here <= conditions_of(wrap.view, wrap.node) for wrap in group.wraps)
    in_branch = any(isinstance(a, (ast.For, ast.While, ast.Try)) for a in site.view.ancestors(site.node))
    return dtype if same and not in_branch else None


def reduce_dtype(migration: Migration, group: Group | None) -> str | None:
    """The compression registered for a group's models."""
    if group is None:
        return None
    for site in migration.sites_of(group):
        if site.role == "use" and site.member in REGISTRATIONS:
            return compression(migration, site)
    return None
