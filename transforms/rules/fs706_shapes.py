"""FS706: choices by the shapes of parameters, which FSDP1 had made flat, and counts of their elements."""

from __future__ import annotations

from ..findings import Level
from ..migration import Migration
from ..queries.module_forwards import runs_in_forwards
from ..rule import Example, Outcome, Rule
from ..sites import COUNT, SHAPE, Site


def named(site: Site, migration: Migration) -> Outcome | None:
    """Nothing is rewritten: the whole shape is what the author meant, but not what FSDP1 showed."""
    assert site.sharding is not None
    if "fsdp1" not in site.sharding.wrappers or migration.is_before_wrap(site):
        return None
    if migration.runs_before_wraps(site.file, site.node):
        return None
    if runs_in_forwards(site.file, site.node):
        return Outcome("inside of a forward parameters are whole, as they were in FSDP1", level=Level.OK)
    if any(_is_of_the_same(site, other) for other in migration.sites[site.file.path]):
        return Outcome("told at the first place of its kind in this statement", level=Level.OK)
    if site.symbol == COUNT:
        return Outcome(_COUNTED, level=Level.REVIEW, advice=_OF_PART)
    return Outcome(_MESSAGE, level=Level.REVIEW, advice=_ADVICE)


def _is_of_the_same(site: Site, other: Site) -> bool:
    """Whether another place of the same kind stands further in front in the statement of a place."""
    statement = site.file.statement(site.node)
    is_in_front = other.symbol == site.symbol and _position(other) < _position(site)
    return is_in_front and other.file.statement(other.node) is statement


def _position(site: Site) -> tuple[int, int]:
    return site.node.lineno, site.node.col_offset  # type: ignore[attr-defined]


_COUNTED = "FSDP1 counted the elements of this rank's own part here; now the whole parameter's are counted"
_OF_PART = "If a rank's own are meant, count p.to_local()'s; the total needs no sum over ranks any more."
_MESSAGE = "FSDP1 showed parameters flat here, with one dimension; now they have their own shapes: the test may choose other ones"
_ADVICE = "Compare what the test chooses (weight decay groups, say) in the old and the new run; `verify` does."

RULE = Rule(
    id="FS706",
    title="shapes and sizes of parameters",
    symbols=(SHAPE, COUNT),
    roles=("read",),
    why="Behind FSDP1 `p.dim() >= 2` is false for every parameter, so that no weight decays; FSDP2 keeps the shapes.",
    fallback=named,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = FSDP(net, **options)\n"
                "    return [p for p in model.parameters() if p.dim() >= 2]\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_fsdp1\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_fsdp1(net, **options)\n"
                "    return [p for p in model.parameters() if p.dim() >= 2]\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
