"""``require_backward_grad_sync``: the flag behind ``no_sync``, set or read by hand."""

from __future__ import annotations

import ast

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..text.generated import removed
from ..training.conditions import is_known, may_meet_ddp, only_where_sharded
from ..training.gradient_sync import WHY, switch
from ..training.passes import gives_windows_up
from ..view import FileView

_ADVICE = "Keep the condition in a variable of your own: FSDP2 has no public way to ask for the switch."


def check(site: Site, migration: Migration) -> Outcome:
    """A store becomes a call; a read is right only where it saves the value for a later store."""
    view, node = site.view, site.node
    if not is_known(site, migration):
        return Outcome(Level.MANUAL, "nothing in this code wraps the model", _ADVICE)
    if not isinstance(node, ast.Attribute):
        return Outcome(Level.MANUAL, "the flag is not used on a model", _ADVICE, holds=True)
    if may_meet_ddp(site, node):
        return Outcome(Level.OK, "models that stay under DDP read this flag; those of FSDP1 never did, and FSDP2 does not either")
    if isinstance(node.ctx, ast.Load):
        return _read(site)
    parent = view.parents[node]
    if isinstance(parent, ast.Assign) and parent.targets == [node]:
        outcome = Outcome(Level.SAFE, "setting the flag becomes a call of set_requires_gradient_sync")
        value = parent.value
        call = switch(view.keep(node.value), (view.keep(value),))
        parts = only_where_sharded(site, migration, outcome, call, view.indent(parent), parent)
        outcome.patches.append(view.replace(parent, parts, WHY))
        if gives_windows_up(view, node):
            outcome.level = Level.REVIEW
            outcome.message += "; a window that is given up half-way leaves its gradients to the next one in FSDP2"
        return outcome
    return Outcome(
        Level.MANUAL,
        "the flag is set together with other things",
        "Call model.set_requires_gradient_sync(…) in a statement of its own.",
        holds=True,
    )


def _read(site: Site) -> Outcome:
    view, node = site.view, site.node
    if _is_saved(view, node):
        outcome = Outcome(
            Level.REVIEW,
            "the saved flag becomes True, what it is wherever gradients are not being accumulated already",
        )
        outcome.patches.append(view.replace(node, "True", WHY))
        loads = _loads_of_kept(view, node)
        outcome.patches.extend(view.replace(load, "True", WHY) for load in loads)
        statement = view.statement(node)
        if loads and isinstance(statement, ast.Expr) and view.stands_alone(statement):
            outcome.patches.append(removed(view, statement, WHY))
        return outcome
    return Outcome(
        Level.MANUAL,
        "the flag is read, and an FSDP2 module does not have it",
        _ADVICE,
        holds=True,
    )


def _is_saved(view: FileView, node: ast.AST) -> bool:
    """Whether a value is only put away for a later store: appended to a list, or assigned to a name for it."""
    parent = view.parents[node]
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        name = parent.targets[0].id
        scope = view.function(node) or view.tree
        loads = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
        return bool(loads) and all(_is_stored_back(view, load) for load in loads)
    if not isinstance(parent, ast.Call) or node not in parent.args:
        return False
    return isinstance(parent.func, ast.Attribute) and parent.func.attr == "append"


def _loads_of_kept(view: FileView, node: ast.AST) -> list[ast.expr]:
    """Where a saved flag is stored back from its name or its list, if nothing else reads those."""
    parent, scope = view.parents[node], view.function(node)
    list_method = parent.func if isinstance(parent, ast.Call) else None
    if isinstance(list_method, ast.Attribute):
        name = list_method.value
    else:
        name = parent.targets[0] if isinstance(parent, ast.Assign) else None
    if not isinstance(name, ast.Name) or scope is None:
        return []
    reads = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Load)]
    if list_method is None:
        return list(reads)
    elements = [view.parents[read] for read in reads if read is not name]
    loads = [e for e in elements if isinstance(e, ast.Subscript) and isinstance(e.slice, ast.Name) and _is_stored_back(view, e)]
    return list(loads) if len(loads) == len(elements) else []


def _is_stored_back(view: FileView, load: ast.AST) -> bool:
    parent = view.parents[load]
    return isinstance(parent, ast.Assign) and all(
        isinstance(target, ast.Attribute) and target.attr == "require_backward_grad_sync" for target in parent.targets
    )


_WRAP = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(build())\n"
_SHARD = "import torch\nfrom torch.distributed.fsdp import fully_shard\n\nmodel = build()\nfully_shard(model)\n"

RULE = Rule(
    id="FS302",
    title="require_backward_grad_sync becomes set_requires_gradient_sync",
    why=(
        "On an FSDP2 module the assignment succeeds and does nothing: every micro-batch communicates, which costs the "
        "accumulation factor in traffic and raises no error."
    ),
    symbols=(
        "torch.nn.parallel.DistributedDataParallel.require_backward_grad_sync",
        "torch.distributed.fsdp.FullyShardedDataParallel.require_backward_grad_sync",
    ),
    roles=("use",),
    check=check,
    proof=("nanogpt_ddp",),
    examples=(
        Example(
            _WRAP + "for i, x in enumerate(batch):\n    model.require_backward_grad_sync = i == len(batch) - 1\n"
            "    model(x).backward()\n",
            _SHARD + "for i, x in enumerate(batch):\n    model.set_requires_gradient_sync(i == len(batch) - 1)\n"
            "    model(x).backward()\n",
        ),
    ),
)
