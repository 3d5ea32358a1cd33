"""``type(module) is Block``, ``module.__class__.__name__ == "Block"``: questions about the very class of a sharded module."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..text.patches import Part
from ..training.class_tests import IDENTITY, MEMBERSHIP, ClassTest, class_tests
from ..view import FileView

_SYMBOL = "torch.nn.Module.__class__"


def find(migration: Migration) -> Iterator[Site]:
    """Such questions about modules of a group, behind its wrap."""
    for test in class_tests(migration):
        site = Site(test.view, test.node, _SYMBOL, "hazard", test.group, tuple(test.view.values(test.subject)))
        migration.once("class test", test.node, lambda test=test: test)
        yield site


def check(site: Site, migration: Migration) -> Outcome:
    node = site.node
    test = migration.once("class test", node, lambda: None)
    assert isinstance(test, ClassTest)
    classes = _classes(test)
    if classes is not None:
        assert isinstance(node, ast.Compare)
        outcome = Outcome(
            Level.REVIEW,
            "the class of a sharded module is a new one that derives from its own, so isinstance is asked; classes derived "
            "from the one named pass it as well",
        )
        negative = isinstance(node.ops[0], (ast.IsNot, ast.NotEq, ast.NotIn))
        parts = ["not " if negative else "", "isinstance(", site.view.keep(test.subject), ", ", *classes, ")"]
        outcome.patches.append(site.view.replace(node, parts, "a sharded module is of a new class"))
        return outcome
    return Outcome(
        Level.MANUAL,
        "this asks for the very class of a module, or its name or bases: fully_shard gives every module it is called on a "
        "new class (FSDPBlock, of the bases FSDPModule and Block), so the answer changes without a word",
        "Ask isinstance(module, Block), or do this before the model is sharded.",
        holds=True,
    )


def _classes(test: ClassTest) -> list[Part] | None:
    """What isinstance is to be given where a class is compared with classes by name; None for other questions."""
    view, node = test.view, test.node
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or node.left is not test.read:
        return None
    other = node.comparators[0]
    if isinstance(node.ops[0], IDENTITY):
        return [view.keep(other)] if _is_class(view, other) else None
    if not isinstance(node.ops[0], MEMBERSHIP) or not isinstance(other, (ast.Tuple, ast.List, ast.Set)):
        return None
    if not all(_is_class(view, element) for element in other.elts) or not other.elts:
        return None
    if isinstance(other, ast.Tuple):
        return [view.keep(other)]
    parts: list[Part] = []
    for element in other.elts:
        parts.extend((", " if parts else "(", view.keep(element)))
    return [*parts, ",)" if len(other.elts) == 1 else ")"]


def _is_class(view: FileView, node: ast.expr) -> bool:
    """A name that is written as classes are: ``Block``, ``nn.Linear``."""
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    name = node.id if isinstance(node, ast.Name) else node.attr
    return name.lstrip("_")[:1].isupper() and not name.isupper()


_WRAP = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

model = FSDP(build(), auto_wrap_policy=ModuleWrapPolicy({Block}))
"""
_SHARD = """\
import torch
from torch.distributed.fsdp import fully_shard

model = build()
for module in reversed(list(model.modules())):
    if isinstance(module, Block):
        fully_shard(module)
fully_shard(model)
"""

RULE = Rule(
    id="FS609",
    title="Questions about the very class of a module",
    why=(
        "fully_shard changes the class of each module it is called on. Of a model of two blocks, type(m) is Block, "
        '__class__.__name__ == "Block" and a dictionary by type found both under FSDP1 and none under FSDP2; a look for '
        '"Block" among the bases found none, and then both. isinstance found both either way.'
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("torch/distributed/fsdp/_fully_shard/_fully_shard.py: fully_shard; counted on torch 2.13, two ranks",),
    examples=(
        Example(
            _WRAP + "layers = [m for m in model.modules() if type(m) is Block]\n",
            _SHARD + "layers = [m for m in model.modules() if isinstance(m, Block)]\n",
            Level.REVIEW,
        ),
        Example(
            _WRAP + 'layers = [m for m in model.modules() if type(m).__name__ == "Block"]\n',
            _WRAP + 'layers = [m for m in model.modules() if type(m).__name__ == "Block"]\n',
            Level.MANUAL,
        ),
    ),
)
