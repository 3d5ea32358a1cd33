"""Units for a model whose author named none, and parameters that cannot be in any."""

import ast
import functools
import inspect
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from .shard_units import parts_with_forward


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The outermost blocks that `model` repeats: entries of a ModuleList or Sequential with siblings of their class.

    Left out are single layers, and blocks without parameters, or with some, or with modules, that lie elsewhere too; and
    those in parts that a forward runs in a loop: of ranks that go around another number of times, some would wait for ever.
    None at all where they hold less than a tenth of the model: gathers of their own would save nothing.
    """
    holders: dict[nn.Module, list[nn.Module]] = {}
    for module in model.modules():
        for child in module.children():
            holders.setdefault(child, []).append(module)
    uses = Counter(id(p) for m in model.modules() for p in m._parameters.values() if p is not None)
    blocks: list[nn.Module] = []
    parts = [getattr(module, name, None) for module in model.modules() for name in read_in_loops(type(module))]
    covered: set[nn.Module] = {inner for part in parts if isinstance(part, nn.Module) for inner in part.modules()}
    for container in model.modules():
        if container in covered or not isinstance(container, (nn.ModuleList, nn.Sequential)):
            continue
        entries = [entry for child in container.children() for entry in parts_with_forward(child)]
        classes = Counter(type(entry) for entry in entries)
        for entry in entries:
            inside = Counter(id(p) for m in entry.modules() for p in m._parameters.values() if p is not None)
            parts = set(entry.modules())
            own = inside and all(uses[p] == count for p, count in inside.items())
            own = own and all(parts.issuperset(holders[part]) for part in parts - {entry})
            if own and classes[type(entry)] > 1 and any(entry.children()) and entry not in covered:
                blocks.append(entry)
                covered.update(entry.modules())
    sizes = [sum(p.numel() for p in module.parameters()) for module in (model, *blocks)]
    return blocks if 10 * sum(sizes[1:]) >= sizes[0] else []


@functools.cache
def read_in_loops(cls: type) -> set[str]:
    """The attributes of itself that an object reads in loops, but for lists of which each round takes the next entry."""
    try:
        tree = ast.parse("" if cls.__module__.startswith("torch.") else textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return set()
    found: set[str] = set()
    for loop in ast.walk(tree):
        heads: list[Any] = getattr(loop, "generators", [loop] if isinstance(loop, ast.For | ast.While) else [])
        names = {n.id for head in heads for n in ast.walk(getattr(head, "target", ast.Pass())) if isinstance(n, ast.Name)}
        heads = [getattr(head, "iter", None) for head in heads]
        inside = [n for part in ast.iter_child_nodes(loop) if heads and part not in heads for n in _walk_past(part, heads)]
        indexed = [n for n in inside if isinstance(n, ast.Subscript)]
        entries = [n.value for n in indexed if names & {getattr(i, "id", "") for i in ast.walk(n.slice)}]
        reads = (n for n in inside if isinstance(n, ast.Attribute) and n not in entries)
        found.update(n.attr for n in reads if getattr(n.value, "id", "") == "self")
    return found


def _walk_past(node: ast.AST, left_out: list[Any]) -> Iterator[ast.AST]:
    if node not in left_out:
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _walk_past(child, left_out)


def plain_parameters(model: nn.Module, blocks: Iterable[nn.Module]) -> set[nn.Parameter]:
    """Parameters that fully_shard cannot take: scalars, empty and complex ones, those with sparse gradients, and trainable
    ones of another dtype than most of their unit, because a unit reduces its gradients in one piece.
    """
    plain: set[nn.Parameter] = set()
    seen: set[nn.Parameter] = set()
    for unit in [*blocks, model]:
        sizes: Counter[torch.dtype] = Counter()
        own = [p for p in unit.parameters() if p not in seen]
        seen.update(own)
        sparse = {p for m in unit.modules() if getattr(m, "sparse", False) is True for p in m.parameters(recurse=False)}
        refused = {p for p in own if p.dim() == 0 or p.numel() == 0 or p.is_complex() or p in sparse}
        for p in own:
            if p.requires_grad and p not in refused:
                sizes[p.dtype] += p.numel()
        most = max(sizes, key=lambda dtype: sizes[dtype], default=None)
        plain |= refused | {p for p in own if p.requires_grad and p.dtype != most}
    return plain
