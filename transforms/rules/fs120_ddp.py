"""FS120: DistributedDataParallel, called or handed on."""

from __future__ import annotations

from functools import partial

from ..facts.symbols import DDP
from ..findings import Form, Level
from ..migration import Migration
from ..queries.called_variables import calls_variable
from ..queries.class_tests import asks_for_unseen_classes
from ..queries.scripted_models import may_be_scripted
from ..rewrites.helper_calls import function_instead
from ..rule import Example, Outcome, Rule
from ..sites import Site


def written_out(site: Site, migration: Migration) -> Outcome | None:
    """Weights of rank 0 on all ranks, then fully_shard on the blocks and the model, where DDP did nothing else."""
    plan = migration.ddp_plan(site)
    if plan is None or (site.call is not None and site.file.call_site(site.call) in migration.wraps_left_out):
        return None
    if site.call is not None and (calls_variable(site.file, site.call) or may_be_scripted(site.file, site.call)):
        return None
    names = migration.names(site.file)
    change = plan.place.rewritten(plan.lines(names.torch, names.helper, partial(names.local, place=site.node)))
    units = (
        "the blocks and then the model are sharded" if plan.blocks or plan.are_looked_for else "the model is sharded as one unit"
    )
    return Outcome(f"all ranks get the weights of rank 0, as from DDP; {units}", [change])


def shard_like(site: Site, migration: Migration) -> Outcome | None:
    """The class's place is taken by a function with its signature, which shards in place and returns the module."""
    if not migration.options.wraps:
        return None
    if migration.options.ddp == "keep":
        return Outcome("DDP stays, as asked for", level=Level.OK)
    why_it_stays = migration.wraps_that_stay.get(site.file.call_site(site.call)) if site.call is not None else None
    if why_it_stays is not None:
        message, advice = _STAYS[why_it_stays]
        return Outcome(message, level=Level.REVIEW, form=Form.NOTE, advice=advice)
    if site.call is not None and calls_variable(site.file, site.call):
        return Outcome(IN_VARIABLE, level=Level.OK)
    is_asked_for = site.role == "value" and migration.program.once(asks_for_unseen_classes)
    name = migration.helper(site, "ClassLikeDDP" if is_asked_for else "shard_like_ddp")
    change = function_instead(site.file, site.node, site.call, name)
    if site.call is not None and may_be_scripted(site.file, site.call):
        return Outcome(_SCRIPTED, [change], Level.MANUAL, advice=_UNSCRIPTED)
    if not migration.native_programs.isdisjoint(migration.programs.of(site.file.path)):
        return Outcome(_BESIDE_NATIVE, [change], Level.REVIEW, advice=_TO_LOOK_AT)
    return Outcome("fully_shard takes the wrapper's place; what DDP did beside averaging gradients is done as before", [change])


_SCRIPTED = "a scripted module takes no hooks and cannot be sharded: where the model is one, this raises"
_UNSCRIPTED = "Script it for inference only, or keep DDP for it (--ddp keep)."
IN_VARIABLE = "what the variable holds that it is called by takes the wrapper's place"
_STAYS = {
    "differ": (
        "DDP stays: each rank works with its own gradients behind no_sync(), so that parameters differ, as shards of one cannot",
        "Where all ranks may use the average instead, go backward without no_sync(); the model is sharded then.",
    ),
    "library": (
        "DDP stays: a library is handed the model and wraps it once more, and takes no sharded one",
        "Leave the model out of what the library prepares, or let it shard: accelerate with `fsdp_version: 2`.",
    ),
    "classes": (
        "DDP stays: the program asks whether parameters are of its own class, and sharded ones are DTensors",
        "Let attributes say what the class does, noted on the parameters behind `fully_shard`; then shard by hand.",
    ),
}
_BESIDE_NATIVE = (
    "fully_shard takes the wrapper's place; models that nobody sees wrapped are left to the program's own code for sharded ones"
)
_TO_LOOK_AT = "Look at guards and savers that this model comes to by ways that the report does not name."
_NET = (
    "import torch\n"
    "from torch import nn\n"
    "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
    "class Block(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)\n\n"
    "    def forward(self, x):\n"
    "        return x + self.norm(self.linear(x))\n\n\n"
    "class Net(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.blocks = nn.ModuleList([Block() for _ in range(4)])\n\n"
    "    def forward(self, x):\n"
    "        for block in self.blocks:\n"
    "            x = block(x)\n"
    "        return x\n\n\n"
    "model = Net()\n"
)
_PREPARED = (
    "from accelerate import Accelerator\n"
    "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
    "def main(model, optimizer, loader):\n"
    "    accelerator = Accelerator()\n"
    "    model = DDP(model.to(accelerator.device))\n"
    "    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
    "    return model\n"
)
_IMPORTS = (
    "from torch.distributed import broadcast\n"
    "from torch.distributed.fsdp import fully_shard\n"
    "\n"
    "from fsdp2_helpers import broadcast_buffers_before_forward, rebound_parameters\n"
)

RULE = Rule(
    id="FS120",
    title="DistributedDataParallel",
    symbols=(DDP,),
    roles=("call", "value"),
    why="DDP broadcasts weights and buffers from rank 0 and averages gradients; fully_shard only averages gradients.",
    idiom=written_out,
    fallback=shard_like,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
                "def wrap(model, options):\n    return DDP(model, **options)\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_ddp\n\n\n"
                "def wrap(model, options):\n    return shard_like_ddp(model, **options)\n"
            ),
            level=Level.SAFE,
        ),
        Example(
            before=_PREPARED,
            after=_PREPARED,
            level=Level.REVIEW,
            note="What accelerate prepares it puts into DDP by itself, and refuses what is sharded: the wrapper stays.",
        ),
        Example(
            before=_NET + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nmodel = DDP(model)\n",
            after=_NET.replace("from torch.nn.parallel import DistributedDataParallel as DDP\n", _IMPORTS)
            + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
            "for tensor in [*model.parameters(), *model.buffers()]:\n"
            "    broadcast(tensor.detach(), src=0)\n"
            "with rebound_parameters(model):\n"
            "    for block in model.blocks:\n"
            "        fully_shard(block)\n"
            "    fully_shard(model)\n"
            "broadcast_buffers_before_forward(model)\n",
            level=Level.SAFE,
            note="Where every module of the model is seen, its blocks are the units. The optimizer exists already, and the "
            "buffers of BatchNorm follow the first rank's.",
        ),
    ),
    proof=("ddp_keywords",),
)
