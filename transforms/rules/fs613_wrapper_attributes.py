"""FS613: attributes that are set on a wrapper."""

from __future__ import annotations

import ast

from ..findings import Form, Level
from ..migration import Migration
from ..queries.unwrapping import comes_unwrapped
from ..queries.wrapper_attributes import is_read_off_wrapper, model_reads
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import OWN_ATTRIBUTE, Site


def kept_from_the_model(site: Site, migration: Migration) -> Outcome | None:
    """What the wrapper kept to itself, the sharded model does not see either."""
    assert site.receiver is not None and site.sharding is not None and isinstance(site.node, ast.Attribute)
    if not migration.options.wraps or migration.is_before_wrap(site):
        return None
    if comes_unwrapped(migration.sharding, site.file, site.receiver, by_name=not site.sharding.certain):
        return None
    if not model_reads(migration.program, list(site.file.values(site.receiver)), site.node.attr):
        return Outcome("the model does not ask for it", level=Level.OK)
    if is_read_off_wrapper(migration.program, site.node.attr):
        return Outcome(f"a wrapper kept {site.node.attr} to itself: now the model in it sees it too", level=Level.REVIEW,
                       form=Form.NOTE, advice="Give it another name, if the model shall go on with its own.")  # fmt: skip
    name = migration.helper(site, "on_wrapper")
    message = f"a wrapper kept {site.node.attr} to itself, and the model in it went on with its own: so does the sharded one"
    advice = f"If the model shall see it, as where nothing is wrapped, set {site.file.text(site.node)} itself."
    return Outcome(message, [around(site.file, site.receiver, f"{name}({{it}})")], Level.REVIEW, advice=advice)


RULE = Rule(
    id="FS613",
    title="attributes that are set on a wrapper",
    symbols=(OWN_ATTRIBUTE,),
    roles=("store",),
    why="An attribute of a wrapper is none of the model in it; a sharded model is in no wrapper, and would read it.",
    fallback=kept_from_the_model,
    examples=(
        Example(
            before=(
                "from torch import nn\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "class Net(nn.Linear):\n"
                "    loss = 'l2'\n"
                "\n"
                "    def forward(self, x):\n"
                "        out = super().forward(x)\n"
                "        return out.abs() if self.loss == 'l1' else out.square()\n"
                "\n"
                "\n"
                "def f(options, x):\n"
                "    model = DDP(Net(4, 4), **options)\n"
                "    model.loss = 'l1'\n"
                "    model.step = 0\n"
                "    return model(x)\n"
            ),
            after=(
                "from torch import nn\n"
                "\n"
                "from fsdp2_helpers import on_wrapper, shard_like_ddp\n"
                "\n"
                "\n"
                "class Net(nn.Linear):\n"
                "    loss = 'l2'\n"
                "\n"
                "    def forward(self, x):\n"
                "        out = super().forward(x)\n"
                "        return out.abs() if self.loss == 'l1' else out.square()\n"
                "\n"
                "\n"
                "def f(options, x):\n"
                "    model = shard_like_ddp(Net(4, 4), **options)\n"
                "    on_wrapper(model).loss = 'l1'\n"
                "    model.step = 0\n"
                "    return model(x)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
