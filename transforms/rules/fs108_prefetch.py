"""backward_prefetch and forward_prefetch: FSDP2 gathers ahead by itself."""

from __future__ import annotations

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.constructor import check_keyword, is_left_out, wrapping_calls
from ..sites import Site

PREFETCH = "torch.distributed.fsdp.BackwardPrefetch"


def check(site: Site, migration: Migration) -> Outcome:
    """Keywords go with the wrap; a member that stands elsewhere has to be looked at."""
    if site.role == "keyword":
        return check_keyword(site, migration)
    if _inside_wrap(site, migration) or is_left_out(site, migration):
        return Outcome(Level.SAFE, f"{site.member} goes with the wrap")
    if site.role in ("annotation", "isinstance"):
        what = "a test for" if site.role == "isinstance" else "a place for"
        return Outcome(
            Level.MANUAL,
            f"{what} BackwardPrefetch, which has no counterpart in FSDP2",
            "Take it out with the setting that it belongs to: fully_shard always gathers the next unit early.",
        )
    return Outcome(
        Level.MANUAL,
        "BackwardPrefetch has no counterpart in FSDP2, and this value is kept outside the wrap",
        "Take it out of the configuration: fully_shard always gathers the next unit early.",
    )


def _inside_wrap(site: Site, migration: Migration) -> bool:
    wraps = wrapping_calls(migration)
    return any(ancestor in wraps for ancestor in site.view.ancestors(site.node))


RULE = Rule(
    id="FS108",
    title="backward_prefetch and forward_prefetch go",
    why=(
        "They decide when parameters are gathered, never what is computed. FSDP2 always gathers the next unit before "
        "the current one computes its gradients; forwards can be told with set_modules_to_forward_prefetch."
    ),
    symbols=(f"{FSDP1}(backward_prefetch=)", f"{FSDP1}(forward_prefetch=)", PREFETCH, f"{PREFETCH}.*"),
    roles=("keyword", "reference", "annotation", "call", "isinstance"),
    check=check,
    examples=(
        Example(
            before="""\
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP


def shard(model):
    return FSDP(model, backward_prefetch=BackwardPrefetch.BACKWARD_PRE, forward_prefetch=False)
""",
            after="""\
from torch.distributed.fsdp import fully_shard


def shard(model):
    fully_shard(model)
    return model
""",
        ),
        Example(
            before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    return FSDP(model, backward_prefetch=None, forward_prefetch=True)
""",
            after="""\
from torch.distributed.fsdp import fully_shard


def shard(model):
    fully_shard(model)
    return model
""",
            level=Level.REVIEW,
            note="Memory and speed change, numbers do not.",
        ),
    ),
    proof=("trainer_files",),
)
