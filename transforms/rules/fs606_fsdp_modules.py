"""``FSDP.fsdp_modules(model)``: the units of a model."""

from __future__ import annotations

import ast

from ..analysis.scopes import dotted_path
from ..analysis.symbols import FSDP1
from ..findings import Level
from ..introspection.roots import define_is_root
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..text.patches import Part
from ..training.conditions import FSDP_MODULE


def check(site: Site, migration: Migration) -> Outcome:
    view, call = site.view, site.call
    if site.role == "keyword":
        return Outcome(Level.SAFE, "part of the call", silent=True)
    root_only = _root_only(call)
    target = _model(call)
    is_chosen = root_only is not None and not isinstance(root_only, ast.Constant)
    if call is None or target is None or is_chosen or (root_only is not None and dotted_path(target) is None):
        return Outcome(
            Level.MANUAL,
            "fsdp_modules is handed on as a function" if root_only is None else "the roots among the units may be asked for",
            "The units are the FSDPModule instances among model.modules(); the model that fully_shard was called on "
            "last is the root.",
            holds=True,
        )
    outcome = Outcome(Level.SAFE, "the units are the FSDPModule instances among the model's modules")
    module = migration.use(outcome, view, FSDP_MODULE, call)
    unit = view.free_name(call, "module")
    parts: list[Part] = [f"[{unit} for {unit} in ", view.keep(target), f".modules() if isinstance({unit}, {module})"]
    if isinstance(root_only, ast.Constant) and root_only.value:
        outcome.level, outcome.message = Level.REVIEW, "the roots are the units of the model that lie in no other one"
        parts += [f" and {define_is_root(migration, view, call, outcome)}({unit}, ", view.keep(target), ")"]
    parts.append("]")
    outcome.patches.append(view.replace(call, parts, "FSDP2 has no list of its units"))
    return outcome


def _root_only(call: ast.Call | None) -> ast.expr | None:
    """The argument that asks for roots alone, None where it is left at its default, False."""
    if call is None:
        return None
    return call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.arg == "root_only"), None)


def _model(call: ast.Call | None) -> ast.expr | None:
    if call is None:
        return None
    if call.args:
        return call.args[0]
    return next((keyword.value for keyword in call.keywords if keyword.arg == "module"), None)


_HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\ndef units(model):\n"

RULE = Rule(
    id="FS606",
    title="FSDP.fsdp_modules becomes a look at the modules",
    why="A sharded unit is a module whose class derives from FSDPModule, so a comprehension over modules() finds them.",
    symbols=(f"{FSDP1}.fsdp_modules", f"{FSDP1}.fsdp_modules(*"),
    roles=("call", "use", "reference", "keyword"),
    check=check,
    proof=("unwrap_helper",),
    examples=(
        Example(
            _HEAD + "    return FSDP.fsdp_modules(model)\n",
            "from torch.distributed.fsdp import FSDPModule\n\n\ndef units(model):\n"
            "    return [module for module in model.modules() if isinstance(module, FSDPModule)]\n",
        ),
    ),
)
