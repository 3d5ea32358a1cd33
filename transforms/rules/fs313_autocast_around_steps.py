"""An autocast context that lasts over several steps: what it has cast once it does not cast again."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..analysis.values import Opaque
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.passes import FORWARD, calls_in, calls_named, outside_name, passes_in
from ..view import FileView

_AUTOCASTS = frozenset({"torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast"})
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SYMBOL = "torch.autocast(cache_enabled=)"
_STEP = frozenset({"step"})


def find(migration: Migration) -> Iterator[Site]:
    """Calls of ``autocast`` whose block, or decorated function, trains an FSDP1 model in a loop."""
    known: set[ast.Call] = set()
    for view in migration.views():
        for node in view.nodes(ast.With, ast.FunctionDef):
            contexts = [i.context_expr for i in node.items] if isinstance(node, ast.With) else node.decorator_list
            for at, call in (found for context in contexts for found in _autocasts(view, context)):
                if call in known or any(keyword.arg in ("cache_enabled", None) for keyword in call.keywords):
                    continue
                group = next(
                    (g for g in migration.groups.all if "FSDP1" in g.kinds and _trains(migration, view, node.body, g)), None
                )
                if group is not None:
                    known.add(call)
                    yield Site(at, call, _SYMBOL, "hazard", group, (), call)


def _autocasts(view: FileView, context: ast.expr) -> Iterator[tuple[FileView, ast.Call]]:
    """The calls that may have made a context, wherever they stand."""
    if isinstance(context, ast.Call) and outside_name(view, context.func) in _AUTOCASTS:
        yield view, context
        return
    for value in view.values(context):
        if isinstance(value, Opaque) and value.name in _AUTOCASTS:
            yield view.program.call_node(value.site)


def _trains(migration: Migration, view: FileView, body: Iterable[ast.AST], group: Group) -> bool:
    """Whether statements, or functions that they call, run forwards of a model and steps in one loop."""
    seen: set[object] = set()
    pending: list[tuple[FileView, list[ast.AST]]] = [(view, list(body))]
    while pending:
        current, statements = pending.pop()
        for loop in (n for statement in statements for n in ast.walk(statement) if isinstance(n, _LOOPS)):
            if FORWARD in passes_in(migration, current, loop.body, group) and calls_named(migration, current, loop.body, _STEP):
                return True
        for call in calls_in(statements):
            for callee in migration.program.callees(current, call):
                if callee not in seen:
                    seen.add(callee)
                    inner, node = migration.program.function_node(callee)
                    pending.append((inner, list(getattr(node, "body", [])) if not isinstance(node, ast.Lambda) else [node.body]))
    return False


def check(site: Site, migration: Migration) -> Outcome:
    view, call = site.view, site.call
    assert call is not None
    outcome = Outcome(
        Level.REVIEW,
        "this autocast lasts over several steps and keeps the weights that it has cast: FSDP1's were views, which it does not "
        "keep, FSDP2's are parameters, so the second step would run on the weights of the first; its cache is turned off",
        "An autocast around each forward and loss is what PyTorch advises, and needs no such argument.",
    )
    last = call.keywords[-1] if call.keywords else call.args[-1] if call.args else None
    kept = view.keep(last if last is not None else call.func)
    written = (kept, ", cache_enabled=False") if last is not None else (kept, "(cache_enabled=False)")
    outcome.patches.append(view.replace(last if last is not None else call, written, "casts are not kept over a step"))
    return outcome


_BEFORE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
optimizer = torch.optim.AdamW(model.parameters())
with torch.autocast("cuda", dtype=torch.bfloat16):
    for batch in batches():
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
_AFTER = """\
import torch
from torch.distributed.fsdp import fully_shard

model = build()
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
    for batch in batches():
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

RULE = Rule(
    id="FS313",
    title="Autocast around several steps",
    why=(
        "autocast keeps the casts of parameters until its context ends. FSDP1 gives modules views of its flat parameter, which "
        "are not kept; the gathered parameters of FSDP2 are, and the same object comes back with new weights after each step. "
        "Measured with a context around the loop, the second step ran on the first weights, without an error."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=(
        "torch/csrc and aten/src/ATen/autocast_mode.cpp: cached_cast keeps leaves that require gradients",
        "losses of FSDP1 and FSDP2 under one autocast compared on torch 2.13",
    ),
    examples=(Example(_BEFORE, _AFTER, Level.REVIEW),),
)
