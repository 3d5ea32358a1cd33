"""FS614: what DDP's wrapper hid of the model in it."""

from __future__ import annotations

import ast

from ..findings import Form, Level
from ..migration import Migration
from ..queries.hidden_attributes import may_be_set_on_wrappers
from ..queries.unwrapping import comes_unwrapped, unwrapping_choice
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import HIDDEN_ATTRIBUTE, Site


def answered_by_the_wrapper(site: Site, migration: Migration) -> Outcome | None:
    """The wrapper had no such attribute: so it is answered for a sharded model too, which is in none."""
    assert site.call is not None and site.receiver is not None and site.sharding is not None
    if not migration.options.wraps or migration.is_before_wrap(site):
        return None
    if comes_unwrapped(migration.sharding, site.file, site.receiver, by_name=not site.sharding.certain):
        return None
    if unwrapping_choice(site.file, site.call.func) is not None:
        return Outcome("the model has it, and the branch without `.module` is right", level=Level.OK)
    model, name = site.file.text(site.receiver), ast.literal_eval(site.call.args[1])
    if may_be_set_on_wrappers(migration.program, name):
        return Outcome(f"models have {name}, which DDP's wrapper hid unless it was set there: now the model always shows it",
                       level=Level.REVIEW, form=Form.NOTE, advice=_ADVICE)  # fmt: skip
    if migration.sharding.comes_out_of_wrapper(site.file, site.receiver):
        return Outcome(f"the model comes here in DDP's wrapper, which had no {name}, and out of it: now it always has it",
                       level=Level.REVIEW, form=Form.NOTE, advice=_ADVICE)  # fmt: skip
    change = around(site.file, site.receiver, f"{migration.helper(site, 'on_wrapper')}({{it}})")
    return Outcome(f"DDP's wrapper had no {name}, whatever the model in it has: so it is answered now", [change], Level.REVIEW,
                   advice=f"If the model's own shall count, as where nothing is wrapped, ask {model} itself.")  # fmt: skip


_ADVICE = "See what is decided by it: learning rates, weight decay, sizes; `verify` compares the old and the new run."

RULE = Rule(
    id="FS614",
    title="attributes that a wrapper hid",
    symbols=(HIDDEN_ATTRIBUTE,),
    roles=("call",),
    why="DDP's wrapper has none of its model's attributes: hasattr said no, getattr gave its default; a sharded model has them.",
    fallback=answered_by_the_wrapper,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch import nn\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "class Net(nn.Linear):\n"
                "    scale = 4.0\n"
                "\n"
                "\n"
                "def f(options):\n"
                "    model = DDP(Net(4, 4), **options)\n"
                '    return torch.optim.SGD(model.parameters(), lr=0.1 * getattr(model, "scale", 1.0))\n'
            ),
            after=(
                "import torch\n"
                "from torch import nn\n"
                "\n"
                "from fsdp2_helpers import on_wrapper, shard_like_ddp\n"
                "\n"
                "\n"
                "class Net(nn.Linear):\n"
                "    scale = 4.0\n"
                "\n"
                "\n"
                "def f(options):\n"
                "    model = shard_like_ddp(Net(4, 4), **options)\n"
                '    return torch.optim.SGD(model.parameters(), lr=0.1 * getattr(on_wrapper(model), "scale", 1.0))\n'
            ),
            level=Level.REVIEW,
        ),
    ),
)
