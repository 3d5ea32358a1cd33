"""FS609: the names of a model's parameters, buffers and modules."""

from __future__ import annotations

from ..findings import Form, Level
from ..flow.values import Wrapped
from ..migration import Migration
from ..queries.flat_parameters import shows_flat_parameters
from ..queries.name_uses import NameUse, Prefix
from ..queries.parameter_names import asks_for_fsdp1_names, depends_on_prefix, uses_of_names
from ..queries.summoned import is_summoned
from ..queries.unwrapping import comes_unwrapped
from ..rewrites.helper_calls import method_as_function
from ..rule import Example, Outcome, Rule
from ..sites import Site


def named_as_before(site: Site, migration: Migration) -> Outcome | None:
    """The names with what the wrappers put into them, where something depends on it."""
    if site.call is None or site.receiver is None or site.sharding is None:
        return None
    kinds = site.sharding.wrapped_in
    if not kinds or migration.is_before_wrap(site):
        return None
    if comes_unwrapped(migration.sharding, site.file, site.receiver, by_name=not site.sharding.certain):
        return None
    if "ddp" in kinds and depends_on_prefix(site.file, site.call):
        if migration.sharding.comes_out_of_wrapper(site.file, site.receiver):
            return Outcome(_BOTH, level=Level.REVIEW, form=Form.NOTE, advice=_ADVICE)
        change = method_as_function(site.file, site.call, migration.helper(site, site.member))
        return Outcome("names begin with module., as DDP's did: code here depends on more than their ends", [change])
    return _named_as_in_fsdp1(site, migration) if "fsdp1" in kinds else None


def _named_as_in_fsdp1(site: Site, migration: Migration) -> Outcome | None:
    """The names with `_fsdp_wrapped_module.` in them; of flat parameters, which had one name a unit, what that did is told."""
    assert site.call is not None and site.receiver is not None
    if site.member == "named_parameters" and is_summoned(site.file, site.call, site.receiver):
        return None  # where FSDP1 showed the model's own names
    uses = uses_of_names(site.file, site.call, Prefix.FSDP1)
    asked = site.member == "named_parameters" and NameUse.ASKED in uses_of_names(site.file, site.call, Prefix.FLAT)
    flat = _is_flat(site, migration) if asked else False
    if flat:
        return Outcome(_FLAT, level=Level.REVIEW, form=Form.NOTE, advice=_ADVICE)
    if NameUse.ASKED in uses or (NameUse.KEPT in uses and migration.program.once(asks_for_fsdp1_names)):
        change = method_as_function(site.file, site.call, migration.helper(site, site.member))
        if flat is None:
            return Outcome(_FLAT_IF_ASKED, [change], Level.REVIEW, advice=_ADVICE)
        return Outcome("names have _fsdp_wrapped_module. in them, as FSDP1's: something is decided by whole names", [change])
    return Outcome(_FLAT_IF_ASKED, level=Level.REVIEW, form=Form.NOTE, advice=_ADVICE) if flat is None else None


def _is_flat(site: Site, migration: Migration) -> bool | None:
    """Whether FSDP1 showed one flat parameter in place of those of a unit; None where that is decided at run time."""
    assert site.sharding is not None
    value = site.sharding.value
    if not isinstance(value, Wrapped):
        return False
    return shows_flat_parameters(migration.program, migration.program.call_node(value.site)[1])


_BOTH = "the model comes here in DDP's wrapper and out of it: names of the wrapper began with module., now none does"
_FLAT = "FSDP1 showed one flat parameter a unit here: choices by names took all or nothing of it; now each parameter has its own"
_FLAT_IF_ASKED = f"with use_orig_params=False, {_FLAT}"
_ADVICE = "Compare what is chosen (weight decay groups, say) in the old and the new run; `verify` does."

RULE = Rule(
    id="FS609",
    title="names of parameters",
    symbols=tuple(f"torch.nn.Module.{name}" for name in ("named_parameters", "named_buffers", "named_modules")),
    roles=("call",),
    why="Wrappers put texts into names; patterns, groups and saved dictionaries that count on them match nothing else.",
    fallback=named_as_before,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                '    return [p for name, p in model.named_parameters() if name.startswith("module.head")]\n'
            ),
            after=(
                "from fsdp2_helpers import named_parameters, shard_like_ddp\n\n\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                '    return [p for name, p in named_parameters(model) if name.startswith("module.head")]\n'
            ),
            level=Level.SAFE,
        ),
        Example(
            before=(
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
                "def f(net, options, skipped):\n"
                "    model = FSDP(net, use_orig_params=True, **options)\n"
                "    return [p for name, p in model.named_parameters() if name not in skipped]\n"
            ),
            after=(
                "from fsdp2_helpers import named_parameters, shard_like_fsdp1\n\n\n"
                "def f(net, options, skipped):\n"
                "    model = shard_like_fsdp1(net, use_orig_params=True, **options)\n"
                "    return [p for name, p in named_parameters(model) if name not in skipped]\n"
            ),
            level=Level.SAFE,
        ),
    ),
    proof=("ddp_prefixed_checkpoint",),
)
