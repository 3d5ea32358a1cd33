"""FS415: ZeroRedundancyOptimizer, and other optimizers that share out their state over ranks."""

from __future__ import annotations

import ast

import libcst as cst

from ..findings import Form, Level
from ..flow.values import Optimizer
from ..migration import Migration
from ..queries.whole_optimizers import looks_at_wholes
from ..rewrites.changes import remove_statement, replace
from ..rewrites.helper_calls import call_instead, function_instead, method_as_function
from ..rewrites.templates import expression
from ..rule import Example, Outcome, Rule
from ..sites import Site

_ZERO = "torch.distributed.optim.ZeroRedundancyOptimizer"
_OTHERS = ("fairscale.optim.oss.OSS", "fairscale.optim.OSS")
_OWN = frozenset({"process_group", "parameters_as_bucket_view", "overlap_with_ddp"})


def the_optimizer_itself(site: Site, migration: Migration) -> Outcome | None:
    """``C(params, **defaults)``, where the class and the arguments are written out."""
    call = site.call
    if call is None or _keeps_ddp(site, migration) or site.symbol in _OTHERS:
        return None
    if site.member == "consolidate_state_dict":
        return _needless(site)
    keywords = {k.arg: k.value for k in call.keywords}
    overlap = keywords.get("overlap_with_ddp")
    if len(call.args) > 1 or not isinstance(keywords.get("optimizer_class"), (ast.Name, ast.Attribute)):
        return None
    if None in keywords or (overlap is not None and not (isinstance(overlap, ast.Constant) and overlap.value is False)):
        return None

    is_of_wholes = looks_at_wholes(site.file.external(keywords["optimizer_class"]) or "torch.optim.Optimizer")
    whole = migration.helper(site, "step_on_whole") if is_of_wholes else ""

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        names = [None if a.keyword is None else a.keyword.value for a in node.args]
        optimizer = node.args[names.index("optimizer_class")].value
        kept = [a for a, name in zip(node.args, names, strict=True) if name not in _OWN and name != "optimizer_class"]
        last = node.args[-1].comma
        new = node.with_changes(func=optimizer, args=[*kept[:-1], kept[-1].with_changes(comma=last)] if kept else [])
        return expression(f"{whole}({{it}})", it=new) if whole else new

    if whole:
        return Outcome(_OF_WHOLES, [replace(site.file, call, build)], Level.REVIEW)
    return Outcome(_MESSAGE, [replace(site.file, call, build)])


def _keeps_ddp(site: Site, migration: Migration) -> bool:
    """Whether DDP stays in every program that a file is part of."""
    wraps = migration.wraps_near(site.file.path)
    return migration.options.ddp == "keep" or (bool(wraps) and all(map(migration.stays_wrapped, wraps)))


def _needless(site: Site) -> Outcome | None:
    """Consolidation as a statement of its own goes where the optimizer is one of these, or one that has none."""
    assert site.call is not None and site.receiver is not None
    statement = site.file.statement(site.node)
    optimizers = site.file.values(site.receiver)
    if not isinstance(statement, ast.Expr) or statement.value is not site.call:
        return None
    names = {value.name for value in optimizers if isinstance(value, Optimizer)}
    have_none = all(name.startswith("torch.optim.") for name in names - {_ZERO})
    if _ZERO not in names or len(names) < len(set(optimizers)) or not have_none:
        return None
    return Outcome("the state is gathered where it is read", [remove_statement(site.file, statement)])


def by_helper(site: Site, migration: Migration) -> Outcome | None:
    """A function of the same arguments that builds the plain optimizer."""
    if _keeps_ddp(site, migration):
        return Outcome("DDP stays, and its optimizer with it", level=Level.OK)
    if site.symbol in _OTHERS:
        return _of_other_library(site)
    if site.role in ("test", "annotation", "base"):
        return Outcome("the optimizer is no ZeroRedundancyOptimizer any more", level=Level.REVIEW, form=Form.NOTE,
                       advice="Write torch.optim.Optimizer, if any optimizer is meant.")  # fmt: skip
    if site.member == "consolidate_state_dict":
        if site.call is None:
            return None
        if migration.program.callees(site.file, site.call):
            return Outcome("a method of the repository's own", level=Level.OK)
        name = migration.helper(site, "consolidate_state_dict")
        change = method_as_function(site.file, site.call, name) if site.receiver else call_instead(site.file, site.call, name)
        return Outcome("an optimizer with nothing to consolidate is left as it is", [change])
    name = migration.helper(site, "zero_redundancy_optimizer")
    return Outcome(_MESSAGE, [function_instead(site.file, site.node, site.call, name)])


def _of_other_library(site: Site) -> Outcome | None:
    named = site.call.func if site.call is not None else site.node
    if site.role in ("test", "annotation", "base") or not ast.unparse(named).endswith(site.member):
        return None  # told where its name stands
    return Outcome(f"{site.member} hands each rank whole parameters to step, which sharded ones are not: it raises",
                   level=Level.MANUAL, form=Form.NOTE,
                   advice="Build the optimizer that it is given itself: fully_shard splits its state already.")  # fmt: skip


_OF_WHOLES = "nobody sees what this optimizer computes: it steps on whole parameters, all of them, also where it clips their norm"
_MESSAGE = "fully_shard splits the optimizer's state with its parameters: the optimizer itself does"

RULE = Rule(
    id="FS415",
    title="ZeroRedundancyOptimizer",
    symbols=(_ZERO, f"{_ZERO}.consolidate_state_dict", *_OTHERS),
    roles=("call", "value", "test", "annotation", "base"),
    why="It hands each rank some of the parameters: of sharded ones every rank has a part already, and has to step it.",
    idiom=the_optimizer_itself,
    fallback=by_helper,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "from torch.distributed.optim import ZeroRedundancyOptimizer\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                "    return ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.1)\n"
            ),
            after=(
                "import torch\n"
                "\n"
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    return torch.optim.AdamW(model.parameters(), lr=0.1)\n"
            ),
            level=Level.REVIEW,
        ),
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "from torch.distributed.optim import ZeroRedundancyOptimizer\n"
                "\n"
                "\n"
                "def f(net, kind, options):\n"
                "    model = DDP(net)\n"
                "    return ZeroRedundancyOptimizer(model.parameters(), kind, **options)\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_ddp, zero_redundancy_optimizer\n"
                "\n"
                "\n"
                "def f(net, kind, options):\n"
                "    model = shard_like_ddp(net)\n"
                "    return zero_redundancy_optimizer(model.parameters(), kind, **options)\n"
            ),
            level=Level.REVIEW,
            blind=True,
        ),
    ),
)
