"""FS416: optimizers whose steps look at norms, shapes, rows or columns of a parameter, or run kernels of their own."""

from __future__ import annotations

import ast

import libcst as cst

from ..findings import Level
from ..flow.values import ClassValue, Instance
from ..migration import Migration
from ..queries.copied_models import is_wrapper
from ..queries.file import File
from ..queries.whole_optimizers import computes_by_element
from ..rewrites.changes import Change, replace_statement
from ..rewrites.helper_calls import around
from ..rewrites.templates import expression
from ..rule import Example, Outcome, Rule
from ..sites import OPTIMIZER, OPTIMIZER_STEP, Site


def on_whole(site: Site, migration: Migration) -> Outcome | None:
    """The steps see whole parameters and gradients on every rank, as under DDP, and keep their state so."""
    if not migration.options.wraps:
        return None
    if site.symbol == OPTIMIZER:
        assert site.call is not None
        if migration.wrapper_kinds_near(site.file.path) == {"fsdp1"}:
            helper = migration.helper(site, "step_on_parts")
            return Outcome(_IN_PARTS, [around(site.file, site.call, f"{helper}({{it}})")])
        shown = _shown_as_wrappers(site, migration)
        helper = migration.helper(site, "step_on_whole")
        returned = _returned(site.file, site.call)
        alike = _returned_alike(site.file, returned, migration)
        if returned is not None and len(alike) >= _MANY:
            changes = [around(site.file, returned, f"{helper}({{it}})")] if alike[0] is site else []
            return Outcome(_OF_FACTORY, [*changes, *shown], Level.REVIEW if changes or shown else Level.OK)
        return Outcome(_OF_LIBRARY, [around(site.file, site.call, f"{helper}({{it}})"), *shown], Level.REVIEW)
    assert isinstance(site.node, ast.FunctionDef)
    if _comes_from_factories(site, migration):
        return Outcome("the function that makes it shows it whole parameters, as all that it makes", level=Level.OK)
    decorator = cst.Decorator(expression(migration.helper(site, "on_whole_parameters")))

    def build(node: cst.CSTNode) -> list[cst.CSTNode]:
        assert isinstance(node, cst.FunctionDef)
        return [node.with_changes(decorators=[decorator, *node.decorators])]

    return Outcome(_OWN, [replace_statement(site.file, site.node, build)], Level.REVIEW)  # type: ignore[arg-type]


def _shown_as_wrappers(site: Site, migration: Migration) -> list[Change]:
    """DDP's wrapper has other names and attributes than its model, by which a library makes groups of parameters."""
    assert site.call is not None
    given = [*site.call.args, *(keyword.value for keyword in site.call.keywords)]
    wrappers = [one for one in given if is_wrapper(migration.sharding, site.file, one)]
    name = migration.helper(site, "in_wrapper") if wrappers else ""
    return [around(site.file, one, f"{name}({{it}})") for one in wrappers]


def _returned_alike(file: File, returned: ast.expr | None, migration: Migration) -> list[Site]:
    """The optimizers of libraries that a function makes, and gives by one ``return``."""
    made = (s for s in migration.sites.get(file.path, ()) if s.symbol == OPTIMIZER and s.call is not None)
    return [s for s in made if _returned(s.file, s.call) is returned] if returned is not None else []  # type: ignore[arg-type]


def _comes_from_factories(site: Site, migration: Migration) -> bool:
    """Whether all objects of an optimizer's class are made among many, by functions that show what they give whole parameters."""
    flow, owner = migration.program.flow, site.file.enclosing_class(site.node)
    if owner is None or computes_by_element(owner.name):
        return False
    classes = [v for v in site.file.values(owner) if isinstance(v, ClassValue)]
    made = [one for cls in classes for one in flow.instances.get(cls, ()) if isinstance(one, Instance)]
    if not made or not all(migration.program.is_written_as_call(one.site) for one in made):
        return False
    places = [migration.program.call_node(one.site) for one in made]
    return all(len(_returned_alike(file, _returned(file, call), migration)) >= _MANY for file, call in places)


def _returned(file: File, call: ast.Call) -> ast.expr | None:
    """What the only ``return`` of a function gives, if that is the name which a call's result is assigned to."""
    function, parent = file.function(call), file.parents[call]
    if not isinstance(function, ast.FunctionDef) or not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return None
    returns = file.returns_of(function)
    value = returns[0].value if len(returns) == 1 else None
    return value if isinstance(value, ast.Name) and ast.unparse(parent.targets[0]) == value.id else None


_MANY = 3
_IN_PARTS = "kernels of another library take no DTensors: they get each rank's own part as plain tensors, as under FSDP1"
_OF_FACTORY = "of some of these optimizers nobody sees what they compute: every rank steps with those on whole parameters"
_OF_LIBRARY = "nobody sees what this optimizer computes: every rank steps on whole parameters and keeps its state, as under DDP"
_OWN = "its steps may look at more than single elements: every rank steps on whole parameters and keeps their state, as under DDP"

RULE = Rule(
    id="FS416",
    title="optimizers that look at whole parameters",
    symbols=(OPTIMIZER, OPTIMIZER_STEP),
    roles=("call", "method"),
    why="Norms over a shard are a rank's own, views of it have other shapes, and kernels do not take DTensors.",
    fallback=on_whole,
    examples=(
        Example(
            before=(
                "from timm.optim import create_optimizer\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, args):\n"
                "    model = DDP(net, **options)\n"
                "    return create_optimizer(args, model)\n"
            ),
            after=(
                "from timm.optim import create_optimizer\n"
                "\n"
                "from fsdp2_helpers import in_wrapper, shard_like_ddp, step_on_whole\n"
                "\n"
                "\n"
                "def f(net, options, args):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    return step_on_whole(create_optimizer(args, in_wrapper(model)))\n"
            ),
            level=Level.REVIEW,
        ),
        Example(
            before=(
                "from apex.optimizers import FusedLAMB\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                "    return FusedLAMB(model.parameters(), lr=0.1)\n"
            ),
            after=(
                "from apex.optimizers import FusedLAMB\n"
                "from fsdp2_helpers import shard_like_ddp, step_on_whole\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    return step_on_whole(FusedLAMB(model.parameters(), lr=0.1))\n"
            ),
            level=Level.REVIEW,
        ),
        Example(
            before=(
                "from apex.optimizers import FusedAdam\n"
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = FSDP(net, **options)\n"
                "    return FusedAdam(model.parameters(), lr=0.1)\n"
            ),
            after=(
                "from apex.optimizers import FusedAdam\n"
                "from fsdp2_helpers import shard_like_fsdp1, step_on_parts\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_fsdp1(net, **options)\n"
                "    return step_on_parts(FusedAdam(model.parameters(), lr=0.1))\n"
            ),
            level=Level.REVIEW,
        ),
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "class Scaled(torch.optim.Optimizer):\n"
                "    @torch.no_grad()\n"
                "    def step(self):\n"
                "        for group in self.param_groups:\n"
                '            for p in group["params"]:\n'
                '                p.sub_(p.grad / p.grad.norm(), alpha=group["lr"])\n'
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                '    return Scaled(model.parameters(), {"lr": 0.1})\n'
            ),
            after=(
                "import torch\n"
                "\n"
                "from fsdp2_helpers import on_whole_parameters, shard_like_ddp\n"
                "\n"
                "\n"
                "class Scaled(torch.optim.Optimizer):\n"
                "    @on_whole_parameters\n"
                "    @torch.no_grad()\n"
                "    def step(self):\n"
                "        for group in self.param_groups:\n"
                '            for p in group["params"]:\n'
                '                p.sub_(p.grad / p.grad.norm(), alpha=group["lr"])\n'
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                '    return Scaled(model.parameters(), {"lr": 0.1})\n'
            ),
            level=Level.REVIEW,
        ),
    ),
)
