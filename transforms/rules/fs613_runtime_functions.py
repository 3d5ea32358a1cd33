"""Private functions of FSDP1's runtime that models of FSDP2 have as a method."""

from __future__ import annotations

import ast

from ..findings import Level
from ..introspection.flat_parameters import RUNTIME
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..view import FileView

_READIES = (
    "_lazy_init readies the flat parameters of FSDP1 and raises on a model of FSDP2, which readies itself in its first "
    "forward and needs nothing of the kind before its state is taken or loaded"
)

_FINAL = "_post_backward_final_callback"
_GIVEN_UP = (
    "_post_backward_final_callback ends a backward that was given up half-way; it raises on a model of FSDP2, where torch "
    "has no public call for that before 2.13"
)
_UNITS = "Call unshard() or reshard() of the modules that are FSDPModule: each gathers or frees the parameters of its own unit."


def check(site: Site, migration: Migration) -> Outcome:
    """``_reshard(model, handles, frees)`` becomes ``model.reshard()``."""
    view, call = site.view, site.call
    if site.member == _FINAL and not migration.torch_has(2, 13):
        return Outcome(Level.MANUAL, _GIVEN_UP, "From torch 2.13 there is reset_iter_state() for it, on the root.")
    if site.member == "_lazy_init":
        return Outcome(Level.MANUAL, _READIES, "Drop the call together with the work on flat parameters that it goes before.")
    statement = view.statement(site.node)
    if call is None or not isinstance(statement, ast.Expr) or statement.value is not call or call.keywords:
        return Outcome(Level.MANUAL, f"{site.member} works on the flat parameters of FSDP1, which FSDP2 does not have", _UNITS)
    if site.member == "_reshard" and len(call.args) == 3 and _is_true(view, call.args[2]):
        outcome = Outcome(Level.REVIEW, "the model's own reshard() frees its whole parameters; units inside it keep theirs")
        outcome.patches.append(view.replace(call, (view.keep(call.args[0]), ".reshard()"), "FSDP2 has a method for it"))
        return outcome
    if site.member == _FINAL:
        return _reset(site, call)
    return Outcome(Level.MANUAL, f"{site.member} is called in a way that FSDP2 has no counterpart for", _UNITS)


def _reset(site: Site, call: ast.Call) -> Outcome:
    """``_post_backward_final_callback(root, root)``, after an exception: the root's own reset."""
    view = site.view
    if len(call.args) != 2 or view.text(call.args[0]) != view.text(call.args[1]):
        return Outcome(Level.MANUAL, _GIVEN_UP, "Call reset_iter_state() on the root where the exception is caught.")
    outcome = Outcome(
        Level.REVIEW, "reset_iter_state() of the root clears what a given-up pass left, gradients of its backward included"
    )
    outcome.patches.append(view.replace(call, (view.keep(call.args[0]), ".reset_iter_state()"), "FSDP2 has a method for it"))
    return outcome


def _is_true(view: FileView, node: ast.expr) -> bool:
    """Whether a flag, or every flag of a list, says that memory is freed."""
    if isinstance(node, ast.Name):
        scope = view.function(node) or view.tree
        assigned = [s for s in ast.walk(scope) if isinstance(s, ast.Assign) and _assigns(s, node.id)]
        stored = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == node.id and isinstance(n.ctx, ast.Store)]
        return len(assigned) == len(stored) == 1 and _is_true(view, assigned[0].value)
    if isinstance(node, ast.List):
        return bool(node.elts) and all(_is_true(view, element) for element in node.elts)
    if isinstance(node, ast.ListComp):
        return _is_true(view, node.elt)
    return isinstance(node, ast.Constant) and node.value is True


def _assigns(statement: ast.Assign, name: str) -> bool:
    return [target.id for target in statement.targets if isinstance(target, ast.Name)] == [name]


_BEFORE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp._runtime_utils import _reshard


def free(model: FSDP):
    handles = model._handles
    frees = [True for handle in handles]
    _reshard(model, handles, frees)
"""
_AFTER = """\
from torch.distributed.fsdp import FSDPModule


def free(model: FSDPModule):
    model.reshard()
"""

_READIED = """\
from torch.distributed.fsdp._runtime_utils import _lazy_init


def prepare(model):
    _lazy_init(model, model)
"""

RULE = Rule(
    id="FS613",
    title="Private functions of FSDP1's runtime",
    why=(
        "They take the handles of flat parameters and raise where they are given a model of FSDP2. Such a model frees its "
        "whole parameters with reshard() and gathers them with unshard()."
    ),
    advice="model.unshard() and model.reshard() act on the parameters of one unit, not on those of the units inside it.",
    symbols=tuple(f"{RUNTIME}.{name}" for name in ("_reshard", "_unshard", "_lazy_init", _FINAL)),
    roles=("call", "reference"),
    check=check,
    sources=("torch/distributed/fsdp/_runtime_utils.py", "torch/distributed/fsdp/_fully_shard/_fully_shard.py: reshard"),
    examples=(
        Example(_BEFORE, _AFTER, Level.REVIEW),
        Example(_READIED, _READIED, Level.MANUAL, "it raises there"),
    ),
)
