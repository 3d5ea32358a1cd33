"""FS303: gradient clipping."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from ..facts.symbols import FSDP1
from ..findings import Level
from ..flow.values import Constant, Derived, Unknown, Wrapped
from ..migration import Migration
from ..queries.answers import Answer
from ..rewrites.changes import replace
from ..rewrites.helper_calls import around, as_method, call_instead, is_looked_at, method_as_function, name_instead
from ..rewrites.templates import call_of, expression
from ..rule import Example, Outcome, Rule
from ..sites import Site

_FUNCTIONS = {"clip_grad_norm_": "clip_grad_norm", "clip_grad_value_": "clip_grad_value", "clip_grad_norm": "clip_grad_norm"}


def by_torch(site: Site, migration: Migration) -> Outcome | None:
    """torch's own function, where all parameters are sharded alike; its norm is gathered where it is used."""
    if site.call is None or site.member not in ("clip_grad_norm_", "clip_grad_value_") or not migration.options.wraps:
        return None
    if not _is_finite_norm(site.call, 2 if site.receiver is None else 1):
        return None  # of a rank's empty part of a tensor, torch has no largest element
    is_used = migration.is_result_used(site.file, site.call)
    if site.receiver is not None:
        seen = migration.observed.wraps_at(site.file, site.receiver)
        is_alike = migration.is_sharded_alike(site.sharding and site.sharding.value)
        if not migration.is_sharded_here(site) or not (is_alike or migration.observed.are_sharded_alike(seen)):
            return None
        function = migration.torch(site, "torch.nn.utils.clip_grad_norm_")

        def build(node: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
            call = call_of(function, expression("{model}.parameters()", model=node.func.value), node)
            return expression("{call}.full_tensor()", call=call) if is_used else call

        change = replace(site.file, site.call, build)
        return Outcome("torch's clip_grad_norm_ knows sharded gradients; its norm is a DTensor", [change])
    if site.member != "clip_grad_norm_" or site.symbol.startswith(FSDP1) or not site.call.args:
        return None
    values = [v for v in site.file.values(site.call.args[0]) if not (isinstance(v, Constant) and v.value is None)]
    owners = [v.owner for v in values if isinstance(v, Derived) and not v.pairs]
    models = [owner for owner in owners if migration.is_sharded_alike(owner)]  # of several, one call gets one
    plain = [owner for owner in owners if owner not in models and migration.is_plain_or_sharded_alike(owner)]
    if not models or len(models) + len(plain) != len(values):
        if not migration.observed.are_sharded_alike(migration.observed.parameters_of(site.file, site.call.args[0])):
            return None
        plain = values  # in another run others may come
    clips_otherwise = _clipped_own_shards(site, migration)
    if not is_used and clips_otherwise:
        return Outcome(_BY_WHOLE_NORM, level=Level.REVIEW)
    if not is_used:
        return Outcome("torch's clip_grad_norm_ knows sharded gradients", level=Level.OK)
    if plain is not values and plain:
        return None  # the norm of plain ones has no `full_tensor`
    gather = f"{migration.helper(site, 'whole')}({{it}})" if plain else "{it}.full_tensor()"
    change = around(site.file, site.call, gather)
    if clips_otherwise:
        return Outcome(_BY_WHOLE_NORM, [change], Level.REVIEW)
    return Outcome("the norm of sharded gradients is a DTensor: it is gathered where it is used", [change])


def clipped(site: Site, migration: Migration) -> Outcome | None:
    """One norm over whatever the parameters are, the same plain number on every rank."""
    if site.receiver is not None:
        assert site.sharding is not None
        if site.sharding.answer is Answer.NO:
            return None
        if site.call is None:
            return _as_value(site, migration)
        change = method_as_function(site.file, site.call, migration.helper(site, "clip_model_grad_norm"))
        return Outcome("gradients of all ranks are clipped by one norm", [change])
    if site.call is None:
        assert isinstance(site.node, ast.expr)
        name = migration.helper(site, "clip_model_grad_norm" if site.symbol.startswith(FSDP1) else _FUNCTIONS[site.member])
        changes = [name_instead(site.file, site.node, name)]
        if not site.symbol.startswith(FSDP1) and _clipped_own_shards(site, migration):
            return Outcome(_BY_WHOLE_NORM, changes, Level.REVIEW)
        return Outcome("it knows sharded parameters, and plain ones", changes)
    if site.call.args and not site.symbol.startswith(FSDP1) and _are_plain(site, migration):
        return None
    if migration.wrapper_kinds == {"fsdp1"} and _is_beside_fsdp1(site) and not migration.is_result_used(site.file, site.call):
        return Outcome("the other branch clips what is sharded: this one is for plain models", level=Level.OK)
    of_model = site.symbol.startswith(FSDP1)  # FSDP.clip_grad_norm_(model, limit)
    name = migration.helper(site, "clip_model_grad_norm" if of_model else _FUNCTIONS[site.member])
    change = call_instead(site.file, site.call, name)
    if not of_model and _clipped_own_shards(site, migration):
        return Outcome(_BY_WHOLE_NORM, [change], Level.REVIEW)
    return Outcome("gradients of all ranks are clipped by one norm, a plain tensor", [change])


def _is_finite_norm(call: ast.Call, position: int) -> bool:
    """Whether the order of a norm is left out, or a number that is written there."""
    given = [*call.args[position : position + 1], *(k.value for k in call.keywords if k.arg in ("norm_type", None))]
    return all(isinstance(value, ast.Constant) for value in given)


def _as_value(site: Site, migration: Migration) -> Outcome | None:
    """``model.clip_grad_norm_``, to be called later."""
    assert isinstance(site.node, ast.Attribute)
    if is_looked_at(site.file, site.node):
        return None
    helper, function = migration.helper(site, "as_method"), migration.helper(site, "clip_model_grad_norm")
    return Outcome("gradients of all ranks are clipped by one norm", [as_method(site.file, site.node, helper, function)])


def _are_plain(site: Site, migration: Migration) -> bool:
    """Whether the parameters that are clipped are surely no sharded model's."""
    assert site.call is not None
    values = site.file.values(site.call.args[0])
    owners = [v.owner for v in values if isinstance(v, Derived)]
    if not values or any(isinstance(v, Unknown) for v in values):
        return False
    return bool(owners) and migration.sharding.of_owners(owners, path=site.file.path).answer is Answer.NO  # type: ignore[arg-type]


def _clipped_own_shards(site: Site, migration: Migration) -> bool:
    """Whether torch's function may have clipped what was in FSDP1, where each rank has but its own part of the gradients."""
    if site.member != "clip_grad_norm_" or _is_beside_fsdp1(site):
        return False
    given = site.call.args[0] if site.call is not None and site.call.args else None
    owners = [v.owner for v in site.file.values(given) if isinstance(v, Derived)] if given is not None else []
    if owners and all(isinstance(owner, Wrapped) and _is_whole(owner, migration) for owner in owners):
        return False
    found = migration.sharding.of_owners(owners, path=site.file.path)  # type: ignore[arg-type]
    return "fsdp1" in (found.wrappers or migration.wrapper_kinds_near(site.file.path))


def _is_whole(model: Wrapped, migration: Migration) -> bool:
    """Whether a wrapper leaves the parameters whole on every rank: FSDP1's was told not to shard."""
    file, call = migration.program.call_node(model.site)
    strategies = (keyword.value for keyword in call.keywords if keyword.arg == "sharding_strategy")
    return any((file.external(strategy) or "").endswith(".NO_SHARD") for strategy in strategies)


_BY_WHOLE_NORM = ("torch's clip_grad_norm_ clipped each rank of FSDP1 by the norm of its own shards alone; "
                  "now all are clipped by the norm of all gradients, which is larger")  # fmt: skip


def _is_beside_fsdp1(site: Site) -> bool:
    """Whether the same model's own ``clip_grad_norm_``, which nothing but FSDP1's wrapper has, is called in the other branch.

    Were the model in one here nevertheless, torch's function would clip it right, or raise where it is not sharded alike.
    """
    asked = site.call.args[0] if site.call is not None and site.call.args else None
    if not (isinstance(asked, ast.Call) and isinstance(asked.func, ast.Attribute) and asked.func.attr == "parameters"):
        return False
    model = ast.dump(asked.func.value)
    calls = (n for other in _other_branches(site) for n in ast.walk(other) if isinstance(n, ast.Attribute))
    return any(n.attr == "clip_grad_norm_" and ast.dump(n.value) == model for n in calls)


def _other_branches(site: Site) -> Iterator[ast.stmt]:
    """What runs instead of a place, in its function: the other branches around it, and those in front that leave."""
    inside = site.node
    for outer in site.file.ancestors(site.node):
        if isinstance(outer, ast.If) and isinstance(inside, ast.stmt):
            yield from outer.body if inside in outer.orelse else outer.orelse
        if isinstance(inside, ast.stmt):
            block, index = site.file.block_of(inside)
            for earlier in block[:index]:
                if isinstance(earlier, ast.If) and isinstance(earlier.body[-1], ast.Return | ast.Continue):
                    yield from earlier.body
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        inside = outer


RULE = Rule(
    id="FS303",
    title="gradient clipping",
    symbols=(
        f"{FSDP1}.clip_grad_norm_",
        "torch.nn.utils.clip_grad_norm_",
        "torch.nn.utils.clip_grad.clip_grad_norm_",
        "torch.nn.utils.clip_grad_value_",
        "torch.nn.utils.clip_grad.clip_grad_value_",
    ),
    roles=("call", "read", "value"),
    why="A norm of DTensors is a DTensor, formatting it raises, and mixtures of plain and sharded gradients are refused.",
    idiom=by_torch,
    fallback=clipped,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = FSDP(net, **options)\n"
                "    return model.clip_grad_norm_(1.0)\n"
            ),
            after=(
                "from fsdp2_helpers import clip_model_grad_norm, shard_like_fsdp1\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_fsdp1(net, **options)\n"
                "    return clip_model_grad_norm(model, 1.0)\n"
            ),
            level=Level.SAFE,
        ),
        Example(
            before=(
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = FSDP(net, **options)\n"
                "    return FSDP.clip_grad_norm_(model, 1.0)\n"
            ),
            after=(
                "from fsdp2_helpers import clip_model_grad_norm, shard_like_fsdp1\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_fsdp1(net, **options)\n"
                "    return clip_model_grad_norm(model, 1.0)\n"
            ),
            level=Level.SAFE,
        ),
        Example(
            before=(
                "import torch\n"
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = FSDP(net, **options)\n"
                "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
            ),
            after=(
                "from fsdp2_helpers import clip_grad_norm, shard_like_fsdp1\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_fsdp1(net, **options)\n"
                "    clip_grad_norm(model.parameters(), 1.0)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
    proof=("trainer_class",),
)
