"""``hasattr(model, "no_sync")`` and its kin: attributes of the wrappers asked for by name."""

from __future__ import annotations

import ast

from ..analysis.values import Annotated, Wrapped
from ..findings import Level
from ..introspection.module_questions import only_asked_to_unwrap
from ..keeping import may_be_kept
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import RAW_MEMBERS, UNIQUE_MEMBERS, Site
from ..training.conditions import FSDP_MODULE
from ..training.gradient_sync import add_helper

_REWRITTEN = ("no_sync", "require_backward_grad_sync", "clip_grad_norm_")


def check(site: Site, migration: Migration) -> Outcome:
    view, call, name = site.view, site.call, site.member
    assert call is not None
    asks = site.symbol.startswith("builtins.hasattr")
    if not site.symbol.startswith(("builtins.hasattr", "builtins.getattr")):
        return _manual(name, "is set or deleted by name")
    if name in RAW_MEMBERS and not asks and site.group is not None:
        return Outcome(
            Level.MANUAL,
            f"{name} is taken by its name, and called on a sharded model it is about this rank's shards only",
            f"Write model.{name}(…) out, which is rewritten, or call the helpers of torch.distributed.checkpoint.state_dict.",
            holds=True,
        )
    if name in RAW_MEMBERS:
        return Outcome(Level.OK, f"{name} is a method of every module; what calls it is looked at where it is called")
    if name == "module":
        if asks:
            return _asks_for_module(site, call)
        if len(call.args) > 2:
            return _module_or_default(site, call)
        if may_be_kept(site.values):
            model = view.keep(call.args[0])
            outcome = Outcome(Level.REVIEW, "models that stay under DDP have a .module, an FSDP2 model is itself")
            outcome.patches.append(view.replace(call, ("getattr(", model, ', "module", ', model, ")"), "it takes a default"))
            return outcome
        outcome = Outcome(Level.REVIEW, "the model itself takes the place of .module")
        outcome.patches.append(view.replace(call, (view.keep(call.args[0]),), "fully_shard keeps the model itself"))
        return outcome
    if _stands_with_manual_uses(site, migration):
        return Outcome(
            Level.MANUAL,
            f"what uses {name} behind this test stays, since nothing says whose it is; so does the test",
            "Ask isinstance(model, FSDPModule) where the model is one that fully_shard shards, and rewrite both.",
        )
    module = ""
    outcome = Outcome(Level.REVIEW, f"asking for {name} becomes asking whether the model is sharded")
    if asks and name in _REWRITTEN:
        module = migration.use(outcome, view, FSDP_MODULE, call)
        parts = ("isinstance(", view.keep(call.args[0]), f", {module})")
        if name != "clip_grad_norm_" and may_be_kept(site.values):
            parts = (*parts, f" or {view.text(call)}")
            if not isinstance(view.parents[call], (ast.If, ast.While)):
                parts = ("(", *parts, ")")
        outcome.patches.append(view.replace(call, parts, f"FSDP2 models have no {name}"))
        return outcome
    if name == "no_sync" and len(call.args) > 2:
        module = migration.use(outcome, view, FSDP_MODULE, call)
        partial = migration.use(outcome, view, "functools.partial", call)
        helper = add_helper(view, migration, outcome)
        model = view.keep(call.args[0])
        choice = (f"({partial}({helper}, ", model, ") if isinstance(", model, f", {module}) else ")
        other = view.text(call) if may_be_kept(site.values) else view.keep(call.args[2])
        parts = (*choice, other, ")")
        outcome.patches.append(view.replace(call, parts, "FSDP2 models have no no_sync"))
        return outcome
    if name not in UNIQUE_MEMBERS and (asks or len(call.args) > 2):
        return Outcome(Level.REVIEW, f"an FSDP2 model has no {name}: this goes on as for any other model")
    return _manual(name, "is asked for by name, and an FSDP2 model does not have it")


def _asks_for_module(site: Site, call: ast.Call) -> Outcome:
    """``hasattr(model, "module")`` answers no for an FSDP2 model: right where a wrapper is taken off, and nowhere else."""
    view = site.view
    stays = may_be_kept(site.values) and not any(isinstance(value, (Wrapped, Annotated)) for value in site.values)
    if stays or only_asked_to_unwrap(view, call):
        return Outcome(Level.OK, "false for an FSDP2 model, which needs no unwrapping")
    what = "an FSDP2 model has no .module: the answer becomes no, and what is done for wrapped models is left out"
    if site.group is None:
        return Outcome(Level.REVIEW, f"{what} if this is asked of one")
    return Outcome(
        Level.MANUAL,
        f"{what}, without an error",
        "Ask isinstance(model, FSDPModule) where more than .module depends on the answer.",
        holds=True,
    )


def _module_or_default(site: Site, call: ast.Call) -> Outcome:
    """``getattr(model, "module", default)`` gives the default for an FSDP2 model."""
    view, parent = site.view, site.view.parents[call]
    is_itself = view.text(call.args[2]) == view.text(call.args[0])
    if is_itself or (isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.Or)):
        return Outcome(Level.OK, "gives the default for an FSDP2 model")
    return Outcome(
        Level.REVIEW, f"gives {view.text(call.args[2])} for an FSDP2 model: see that the model itself is what is used then"
    )


def _stands_with_manual_uses(site: Site, migration: Migration) -> bool:
    """Whether the same attribute of the same unknown receiver is used in this function: test and use go together."""
    if site.group is not None or any(isinstance(value, (Wrapped, Annotated)) for value in site.values):
        return False
    assert site.call is not None
    view, receiver = site.view, site.view.text(site.call.args[0])
    return any(
        other.role == "use"
        and other.member == site.member
        and other.group is None
        and not any(isinstance(value, (Wrapped, Annotated)) for value in other.values)
        and isinstance(other.node, ast.Attribute)
        and view.text(other.node.value) == receiver
        and view.function(other.node) is view.function(site.node)
        for other in migration.sites[view.path]
    )


def _manual(name: str, what: str) -> Outcome:
    return Outcome(
        Level.MANUAL,
        f"{name} {what}",
        "Ask isinstance(model, FSDPModule) instead, and write what is to be done for such a model.",
        holds=True,
    )


_WRAP = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(build())\n"
_TAKEN = _WRAP + 'torch.save(getattr(model, "state_dict")(), "model.pt")\n'
_SHARD = "import torch\nfrom torch.distributed.fsdp import FSDPModule, fully_shard\n\nmodel = build()\nfully_shard(model)\n"

RULE = Rule(
    id="FS602",
    title="Attributes of the wrappers asked for by name",
    why=(
        'getattr(model, "no_sync", nullcontext) and hasattr tests go on working on an FSDP2 model, and silently take '
        "the other way: gradients are then reduced on every micro-batch, or not clipped at all."
    ),
    symbols=("builtins.getattr.*", "builtins.hasattr.*", "builtins.setattr.*", "builtins.delattr.*"),
    roles=("dynamic",),
    check=check,
    sources=("https://github.com/huggingface/accelerate/issues/3762",),
    examples=(
        Example(
            _WRAP + 'if hasattr(model, "clip_grad_norm_"):\n    model.clip_grad_norm_(1.0)\n',
            _SHARD + "if isinstance(model, FSDPModule):\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
            Level.REVIEW,
        ),
        Example(_TAKEN, _TAKEN, Level.MANUAL),
    ),
)
