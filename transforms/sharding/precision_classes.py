"""MixedPrecision and CPUOffload where they are made or named."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.symbols import FSDP1
from ..analysis.values import Opaque
from ..findings import Level
from ..migration import Migration
from ..rule import Outcome
from ..sites import Site
from .arguments import without_arguments
from .constructor import Constructor, constructor_of, factory_of, is_partial
from .outside import for_others, uses_fsdp1
from .precision import CPU_OFFLOAD, FIELDS, MIXED_PRECISION, POLICIES, Precision, has_buffers, precision_of


def check_precision(site: Site, migration: Migration) -> Outcome:
    """MixedPrecision: the call with its fields, or the name of the class."""
    if not uses_fsdp1(migration):
        return for_others("MixedPrecision", "MixedPrecisionPolicy")
    if site.role == "keyword":
        return _field(site, migration)
    if site.role != "call" or site.call is None:
        return _rename(site, migration, POLICIES[MIXED_PRECISION])
    source = precision_of(site.view, site.call)
    if any(k.arg is None for k in site.call.keywords) or any(
        isinstance(a, ast.Starred) for a in site.call.args
    ):
        return Outcome(
            Level.MANUAL,
            "the fields of this MixedPrecision come from a dictionary",
            "Write out param_dtype and reduce_dtype; MixedPrecisionPolicy knows no buffer_dtype.",
            holds=True,
        )
    outcome = Outcome(Level.SAFE, "MixedPrecisionPolicy with the same param_dtype and reduce_dtype")
    if source.flag("cast_forward_inputs", False) is not True and not _constructors_with(migration, site):
        outcome.level = Level.REVIEW
        outcome.message += (
            "; no wrap is seen to take it: MixedPrecision left the inputs of units as they are, this casts those of every "
            "unit that it is given to; to keep float32 inputs give units a copy with cast_forward_inputs=False"
        )
    name = migration.use(outcome, site.view, POLICIES[MIXED_PRECISION], site.call)
    outcome.patches.append(site.view.replace(site.call.func, name, "FSDP2 has a policy for precision"))
    gone: list[ast.expr | ast.keyword] = [a for place, a in enumerate(site.call.args) if place > 1]
    gone.extend(k for k in site.call.keywords if k.arg not in FIELDS[:2] and not _stays(source, k))
    outcome.patches.extend(without_arguments(site.view, site.call, gone))
    for keyword in site.call.keywords:
        if keyword.arg == "cast_root_forward_inputs" and _stays(source, keyword):
            outcome.patches.append(
                site.view.replace(keyword, "cast_forward_inputs=False", "no inputs are cast")
            )
    return outcome


def _stays(source: Precision, keyword: ast.keyword) -> bool:
    """A cast that is asked for stays; an uncast root becomes a policy that casts nothing."""
    if keyword.arg == "cast_forward_inputs":
        return source.flag("cast_forward_inputs", False) is not False
    if keyword.arg == "cast_root_forward_inputs":
        return source.flag(keyword.arg, True) is False and "cast_forward_inputs" not in source.fields
    return False


def _field(site: Site, migration: Migration) -> Outcome:
    """The outcome of one field; what happens to the text is up to the call."""
    assert site.call is not None and site.keyword is not None
    name, value = site.keyword.arg or "**", site.keyword.value
    constant = value.value if isinstance(value, ast.Constant) else ...
    if name == "buffer_dtype":
        full = constant is None or site.view.external(value) in ("torch.float32", "torch.float")
        if full:
            return Outcome(Level.SAFE, "buffer_dtype goes: buffers in float32 stay as they are")
        matter, cast = _buffers_matter(site, migration)
        if not matter and cast:
            return Outcome(Level.SAFE, "buffer_dtype goes: the float buffers are cast once, where the model is sharded")
        if not matter:
            return Outcome(Level.SAFE, "buffer_dtype goes: there are no float buffers that it would change")
        return Outcome(
            Level.REVIEW,
            "buffer_dtype goes: FSDP2 leaves buffers in their own type, which changes results slightly unless they are "
            "cast before sharding",
        )
    if name == "cast_forward_inputs" and constant is False:
        return Outcome(Level.SAFE, "where it matters the units get a policy with cast_forward_inputs=False")
    if name == "cast_root_forward_inputs" and constant is False:
        return Outcome(Level.REVIEW, "FSDP2 has one switch for the inputs of a call: this policy casts none")
    if name == "keep_low_precision_grads" and constant is not False:
        return Outcome(
            Level.REVIEW,
            "gradients are kept in the type of the parameters, float32 as a rule; FSDP2 has no other way",
        )
    if name == "_module_classes_to_ignore":
        return Outcome(
            Level.REVIEW, "classes that FSDP1 kept in float32 need fully_shard calls of their own under FSDP2"
        )
    if name == "cast_forward_inputs" and constant is ...:
        return Outcome(Level.REVIEW, "FSDP2 applies cast_forward_inputs to the model's own inputs as well")
    return Outcome(Level.SAFE, "part of the policy", silent=True)


def _buffers_matter(site: Site, migration: Migration) -> tuple[bool, bool]:
    """Whether a model that is wrapped with this policy may have float buffers that nothing casts, and whether a wrap casts."""
    reached = _constructors_with(migration, site)
    matter = not reached or any(has_buffers(c) and not c.casts_buffers for c in reached)
    return matter, any(constructor.casts_buffers for constructor in reached)


def _constructors_with(migration: Migration, site: Site) -> list[Constructor]:
    """The wraps, and the partials that make some, which take a policy."""
    number = site.view.call_site(site.call) if site.call is not None else -1
    found: list[Constructor] = []
    for constructor in migration.once("constructors", None, lambda: list(_constructors(migration))):
        argument = constructor.arguments.get("mixed_precision")
        if argument is not None and number in {v.site for v in argument.values if isinstance(v, Opaque)}:
            found.append(constructor)
    return found


def _constructors(migration: Migration) -> Iterator[Constructor]:
    for group in migration.groups.all:
        for wrap in group.wraps:
            if wrap.value.kind == "FSDP1":
                yield constructor_of(migration, wrap.view, wrap.node, group)
    for path in sorted(migration.sites):
        for site in migration.sites[path]:
            call = site.view.parents.get(site.node)
            if site.symbol == FSDP1 and isinstance(call, ast.Call) and is_partial(site.view, call, site.node):
                yield factory_of(migration, site.view, call, site.group)


def check_offload(site: Site, migration: Migration) -> Outcome:
    """CPUOffload: a policy for each value of its flag."""
    if not uses_fsdp1(migration):
        return for_others("CPUOffload", "CPUOffloadPolicy")
    if site.role == "keyword":
        return Outcome(Level.SAFE, "part of the policy", silent=True)
    if site.role != "call" or site.call is None:
        return _rename(site, migration, POLICIES[CPU_OFFLOAD])
    view, call = site.view, site.call
    outcome = Outcome(Level.SAFE, "the policy that FSDP2 has for this")
    given = [*call.args, *(k.value for k in call.keywords)]
    off = migration.use(outcome, view, POLICIES[CPU_OFFLOAD], call) + "()"
    on = migration.use(outcome, view, "torch.distributed.fsdp.CPUOffloadPolicy", call) + "()"
    if not given or (isinstance(given[0], ast.Constant) and not given[0].value):
        outcome.patches.append(view.replace(call, off, _OFFLOAD))
    elif isinstance(given[0], ast.Constant):
        outcome.patches.append(view.replace(call, on, _OFFLOAD))
    else:
        plain = isinstance(view.parents[call], (ast.Assign, ast.Return, ast.keyword, ast.AnnAssign))
        left, right = ("", "") if plain else ("(", ")")
        outcome.patches.append(
            view.replace(call, (f"{left}{on} if ", view.keep(given[0]), f" else {off}{right}"), _OFFLOAD)
        )
    return outcome


_OFFLOAD = "FSDP2 has a policy for offloading"


def _rename(site: Site, migration: Migration, new: str) -> Outcome:
    """Annotations and checks name the new class."""
    outcome = Outcome(Level.SAFE, f"the class is {new.rpartition('.')[2]} now")
    name = migration.use(outcome, site.view, new, site.node)
    outcome.patches.append(site.view.replace(site.node, name, "the class has another name"))
    return outcome
