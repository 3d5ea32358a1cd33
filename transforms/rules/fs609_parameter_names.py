"""FS609: the names of a model's parameters, buffers and modules."""

from __future__ import annotations

from ..findings import Form, Level
from ..migration import Migration
from ..queries.parameter_names import asks_for_fsdp1, depends_on_prefix
from ..queries.plain_branches import is_in_plain_branch
from ..queries.unwrapping import comes_unwrapped
from ..rewrites.helper_calls import method_as_function
from ..rule import Example, Outcome, Rule
from ..sites import Site


def named_as_before(site: Site, migration: Migration) -> Outcome | None:
    """The names with the prefix that DDP gave them, where something depends on it."""
    if site.call is None or site.receiver is None or site.sharding is None:
        return None
    if "fsdp1" in site.sharding.wrapped_in and asks_for_fsdp1(site.file, site.call):
        return None if migration.is_before_wrap(site) else Outcome(_OF_FSDP1, level=Level.MANUAL, form=Form.NOTE, advice=_ADVICE)
    if "ddp" not in site.sharding.wrapped_in:
        return None
    if is_in_plain_branch(site.file, site.receiver) or migration.is_before_wrap(site):
        return None
    if comes_unwrapped(migration.sharding, site.file, site.receiver, by_name=not site.sharding.certain):
        return None
    if not depends_on_prefix(site.file, site.call):
        return None
    change = method_as_function(site.file, site.call, migration.helper(site, site.member))
    return Outcome("names begin with module., as DDP's did: code here depends on more than their ends", [change])


_OF_FSDP1 = "names had _fsdp_wrapped_module in them under FSDP1: what asks for it here finds none any more"
_ADVICE = "Ask for the module that owns the parameter instead: isinstance(module, FSDPModule)."

RULE = Rule(
    id="FS609",
    title="names of parameters",
    symbols=tuple(f"torch.nn.Module.{name}" for name in ("named_parameters", "named_buffers", "named_modules")),
    roles=("call",),
    why="DDP put module. in front of every name; patterns, groups and saved dictionaries that count on it match nothing else.",
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
    ),
    proof=("ddp_prefixed_checkpoint",),
)
