"""FS717: the class of a model, taken for a value: `type(model)`, `model.__class__`."""

from __future__ import annotations

import libcst as cst

from ..findings import Level
from ..migration import Migration
from ..rewrites.changes import replace
from ..rewrites.templates import expression
from ..rule import Example, Outcome, Rule
from ..sites import MODEL_CLASS, Site


def own_class(site: Site, migration: Migration) -> Outcome | None:
    """The class that the model was written with."""
    assert site.receiver is not None
    if migration.is_before_wrap(site):
        return None
    name = migration.helper(site, "class_of")

    def build(node: cst.CSTNode) -> cst.CSTNode:
        model = node.args[0].value if isinstance(node, cst.Call) else cst.ensure_type(node, cst.Attribute).value
        return expression("{name}({model})", name=name, model=model)

    change = replace(site.file, site.node, build, late=True)  # type: ignore[arg-type]
    return Outcome("a sharded model has a class that fully_shard made: its own is meant", [change])


RULE = Rule(
    id="FS717",
    title="classes of models",
    symbols=(MODEL_CLASS,),
    roles=("read",),
    why="fully_shard gives each unit a class of its own: it cannot be pickled or called, and equals no other.",
    fallback=own_class,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, path):\n"
                "    model = DDP(net, **options)\n"
                '    torch.save({"class": type(model.module)}, path)\n'
                "    print(type(model.module).__name__)\n"
            ),
            after=(
                "import torch\n"
                "\n"
                "from fsdp2_helpers import class_of, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, path):\n"
                "    model = shard_like_ddp(net, **options)\n"
                '    torch.save({"class": class_of(model)}, path)\n'
                "    print(type(model).__name__)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
