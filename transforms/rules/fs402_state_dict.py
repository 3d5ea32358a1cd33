"""FS402: `state_dict()` of models, optimizers, and what may be either."""

from __future__ import annotations

from ..findings import Form, Level
from ..migration import Migration
from ..queries.full_state import full_state_around
from ..queries.group_reads import groups_read
from ..queries.kept_states import is_read_later, keeps_tensors
from ..queries.rank_files import is_in_file_of_rank
from ..rewrites.changes import replace
from ..rewrites.helper_calls import method_instead
from ..rewrites.templates import expression
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state_functions import has_state, taker_of_state

_STATE = "torch.distributed.checkpoint.state_dict"


def asked(site: Site, migration: Migration) -> Outcome | None:
    """What people write where they want no more than a setting, or full state that a context of FSDP1 asked for."""
    groups = groups_read(site.file, site.call)
    if groups is None or site.receiver is None or not has_state(site, migration):
        return full(site, migration)
    text = f"{site.file.text(site.receiver)}.param_groups"
    return Outcome("a setting is read off the optimizer itself: its state would be gathered for it",
                   [replace(site.file, groups, lambda _: expression(text))])  # fmt: skip


def full(site: Site, migration: Migration) -> Outcome | None:
    """Full state that FSDP1's context asked for is what PyTorch's own function for it gives, for any model."""
    found = full_state_around(migration.program, site.file, site.call) if site.call is not None else None
    if found is None or site.receiver is None:
        return None
    take = migration.torch(site, f"{_STATE}.get_model_state_dict")
    kind = migration.torch(site, f"{_STATE}.StateDictOptions")
    model = site.file.text(site.receiver)
    options = f"{kind}(full_state_dict=True{', cpu_offload=True' if found.offloads else ''})"
    where = "on the first rank's CPU" if found.offloads else "on every rank"
    change = replace(site.file, site.call, lambda _: expression(f"{take}({model}, options={options})"))  # type: ignore[arg-type]
    return Outcome(f"the full state of the model, {where}", [change])


def gathered(site: Site, migration: Migration) -> Outcome | None:
    """The state with every shard gathered, in the format that it always had."""
    assert site.receiver is not None and site.sharding is not None
    if not has_state(site, migration):
        return None
    if migration.is_before_wrap(site):
        return Outcome("the model is still plain here", level=Level.OK)
    if site.call is not None and keeps_tensors(site.file, site.call) and migration.wrapper_kinds_near(site.file.path) == {"ddp"}:
        follow = migration.helper(site, "live_state")
        change = method_instead(site.file, site.node, site.call, follow, lambda: follow)
        return Outcome(_FOLLOWS, [change], Level.REVIEW) if change is not None else None
    name = taker_of_state(site, migration)
    kinds = migration.wrapper_kinds_near(site.file.path)
    if name in ("optimizer_state", "state_of") and kinds == {"fsdp1"} and is_in_file_of_rank(site.file, site.node):
        return Outcome("each rank writes its own part to a file of its own, as before; files of flat parameters cannot be loaded",
                       level=Level.REVIEW, form=Form.NOTE)  # fmt: skip
    kept = "ddp" in (site.sharding.wrappers or kinds) and site.call is not None and is_read_later(site.file, site.call)
    if name is None:
        return Outcome(_KEPT, level=Level.REVIEW, form=Form.NOTE, advice=_ADVICE) if kept else Outcome(_STAYS, level=Level.OK)
    function = migration.helper(site, name)
    change = method_instead(site.file, site.node, site.call, function, lambda: migration.helper(site, "as_method"))
    if kept and change is not None:
        return Outcome(_KEPT, [change], Level.REVIEW, advice=_ADVICE)
    return Outcome(_GATHERED[name], [change]) if change is not None else None


_GATHERED = {
    "optimizer_state": "the optimizer's state is gathered, in the format of the old files",
    "model_state": "the model's state is gathered, in the format of the old files",
    "state_of": "the state is gathered if it is a sharded model's or its optimizer's, in the format of the old files",
}
_FOLLOWS = "tensors of the state are kept: they follow the weights, as under DDP, brought up to date by each step of an optimizer"
_KEPT = "DDP's state dict followed the weights; what is kept here is a copy of them as they are now: what is read later differs"
_ADVICE = "If the weights of this moment were meant (the best ones, an average), it is right now."
_STAYS = "the state dict stays whole: the sharded model sees to it, and to those of its optimizers"

RULE = Rule(
    id="FS402",
    title="state_dict()",
    symbols=("torch.nn.Module.state_dict",),
    roles=("call", "read"),
    why="Under FSDP2 state_dict() holds DTensors: a rank that saves them saves its own rows only.",
    idiom=asked,
    fallback=gathered,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, path):\n"
                "    model = DDP(net, **options)\n"
                "    torch.save(model.state_dict(), path)\n"
            ),
            after=(
                "import torch\n"
                "\n"
                "from fsdp2_helpers import model_state, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, path):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    torch.save(model_state(model), path)\n"
            ),
            level=Level.SAFE,
        ),
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, average, batches):\n"
                "    model = DDP(net, **options)\n"
                "    weights = list(model.state_dict().values())\n"
                "    for x in batches:\n"
                "        average.step(model, x, weights)\n"
            ),
            after=(
                "from fsdp2_helpers import live_state, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, average, batches):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    weights = list(live_state(model).values())\n"
                "    for x in batches:\n"
                "        average.step(model, x, weights)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
    proof=("ddp_prefixed_checkpoint", "finetuning_package"),
)
