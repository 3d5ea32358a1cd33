"""Where modules' own `zero_grad` has to reach the gradients of shards, which the wrap sees to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import takewhile

from ..flow.values import Instance, Wrapped
from ..queries.answers import Answer
from ..queries.file import File
from ..queries.given_up_windows import is_right_behind_step
from ..queries.sharding import ShardingQueries
from ..sites import Site

ZERO_GRAD = "torch.nn.Module.zero_grad"
_OPTIMIZER = re.compile(r"(?i)opt(im(izers?)?)?$|optim")
_CALLED_SO = re.compile(r"(?i)(\b|_)optimizers?(\b|_)")


def resets_model(sharding: ShardingQueries, site: Site) -> bool:
    """Whether a `zero_grad` may be one of a sharded model, with something else registered than its shards.

    Right behind an optimizer's step a backward has left the shards registered; in front of a loop with such a step nothing
    is left to reset. Of several models, another one may have made the step.
    """
    if site.symbol != ZERO_GRAD or site.call is None or site.receiver is None or site.sharding is None:
        return False
    if site.sharding.answer is Answer.NO or _is_used_as_optimizer(site.file, site.receiver):
        return False
    if any(map(sharding.is_optimizer, site.file.values(site.receiver))):
        return False
    is_known = bool(site.sharding.wrappers) and len(sharding.program.wraps) == 1
    return not (is_known and (is_right_behind_step(site.file, site.call) or _is_in_front_of_loop(site)))


def _is_in_front_of_loop(site: Site) -> bool:
    """Whether a model is reset once in a function which later on resets it behind each step."""
    function, text = site.file.function(site.node), ast.unparse(site.node)
    if any(isinstance(around, (ast.For, ast.While)) for around in _inside(site.file, site.node)):
        return False
    alike = (n for n in ast.walk(function or site.file.tree) if isinstance(n, ast.Call) and ast.unparse(n) == text)
    return any(n is not site.node and is_right_behind_step(site.file, n) for n in alike)


def _inside(file: File, node: ast.AST) -> Iterator[ast.AST]:
    return takewhile(lambda around: around is not file.function(node), file.ancestors(node))


def _is_used_as_optimizer(file: File, receiver: ast.expr) -> bool:
    """Whether something that is no model one knows of is called an optimizer, or named like one and makes steps."""
    text = ast.unparse(receiver)
    if any(isinstance(v, Wrapped | Instance) for v in file.values(receiver)):
        return False
    if _CALLED_SO.search(text) is not None:
        return True
    uses = {node.attr for node in file.nodes(ast.Attribute) if ast.unparse(node.value) == text}
    return _OPTIMIZER.search(text) is not None and not uses.isdisjoint({"step", "param_groups"})
