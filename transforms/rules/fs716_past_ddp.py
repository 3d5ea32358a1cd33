"""FS716: forwards of a model past DDP: `model.module(x)`."""

from __future__ import annotations

from ..findings import Form, Level
from ..flow.values import Bound, Instance, Opaque
from ..helper_features import sends_buffers
from ..migration import Migration
from ..queries.backwards import may_learn
from ..queries.gradient_reads import takes_powers
from ..queries.model_hazards import changes_buffers
from ..queries.model_structure import ModelStructure
from ..queries.past_ddp import LEARNS_APART, WHERE_SAME
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import PAST_DDP, Site


def own_buffers(site: Site, migration: Migration) -> Outcome | None:
    """A forward that keeps each rank's own buffers, where the wrapper's sent the first rank's to all."""
    assert site.call is not None
    if migration.is_held(site.file, site.call) or migration.is_before_wrap(site):
        return None
    if migration.is_fresh(site.file, site.call, site.call.func):
        return None
    changes = []
    if migration.follows_buffers and sends_buffers(migration) and not _has_no_buffers(site, migration):
        changes.append(around(site.file, site.call.func, f"{migration.helper(site, 'past_ddp')}({{it}})"))
    if may_learn(site.file, site.call) and takes_powers(site.file, site.call):
        return Outcome(_OTHER_POWERS, changes, Level.MANUAL, None if changes else Form.NOTE, advice=_BY_AUTOGRAD)
    if may_learn(site.file, site.call):
        return Outcome(LEARNS_APART, changes, Level.REVIEW, None if changes else Form.NOTE, advice=WHERE_SAME)
    return Outcome("past DDP a forward used each rank's own buffers, as it does now", changes) if changes else None


_OTHER_POWERS = "past DDP gradients were each rank's own: powers that are taken of them here are now of the average over ranks"
_BY_AUTOGRAD = "Take them with torch.autograd.grad(loss, parameters), which gives each rank those of its own loss."


def _has_no_buffers(site: Site, migration: Migration) -> bool:
    """Whether training surely changes no buffer of what is called."""
    values = [v.receiver if isinstance(v, Bound) else v for v in site.file.called_values(site.call)]  # type: ignore[arg-type]
    structure = ModelStructure(migration.program, migration.sharding, [v for v in values if isinstance(v, Instance | Opaque)])
    return len(structure.models) == len(values) and structure.is_known and not changes_buffers(structure)


RULE = Rule(
    id="FS716",
    title="forwards past DDP",
    symbols=(PAST_DDP,),
    roles=("call",),
    why="DDP sent buffers and reduced gradients for its own forward, not for one of the module that it had wrapped.",
    fallback=own_buffers,
    examples=(
        Example(
            before=(
                "from torch import nn\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(options, x):\n"
                "    model = DDP(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), **options)\n"
                "    model(x).sum().backward()\n"
                "    return model.module(x)\n"
            ),
            after=(
                "from torch import nn\n"
                "\n"
                "from fsdp2_helpers import past_ddp, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(options, x):\n"
                "    model = shard_like_ddp(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), **options)\n"
                "    model(x).sum().backward()\n"
                "    return past_ddp(model)(x)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
