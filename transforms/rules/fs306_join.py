"""FS306: `Join`, for ranks with unequal numbers of batches."""

from __future__ import annotations

import ast

import libcst as cst

from ..facts.symbols import DDP
from ..findings import Level
from ..migration import Migration
from ..queries.answers import Answer
from ..queries.training_loops import batches_of, last_shared_statement, training_loops
from ..rewrites.changes import Change, insert_after, replace
from ..rewrites.helper_calls import around, call_instead
from ..rewrites.templates import expression, statements, with_first_argument
from ..rule import Example, Outcome, Rule
from ..sites import Site

_JOIN = "torch.distributed.algorithms.join.Join"


def joined(site: Site, migration: Migration) -> Outcome | None:
    """The context knows sharded models, and the loop inside it keeps finished ranks company for the others."""
    call = site.call
    if site.sharding is not None and site.sharding.answer is Answer.NO:
        return None
    models = _models(site, migration)
    if call is None or models is None:
        return Outcome(_BY_HAND, level=Level.MANUAL, advice=_ADVICE)
    loops = training_loops(site.file, call)
    if not loops:
        return Outcome("the loop that trains stands elsewhere: its ranks would wait for each other", [_context(site, migration)],
                       Level.MANUAL, advice=_ADVICE)  # fmt: skip
    until = migration.helper(site, "until_all_ranks_finish")
    changes = [_context(site, migration)]
    changes += [around(site.file, batches_of(loop), f"{until}({{it}}, {models})") for loop, _ in loops]
    changes += [skip for loop, _ in loops for skip in _skip_local_rest(site, migration, loop, models)]
    if _joins_more(call, models):
        return Outcome("a ZeroRedundancyOptimizer went on with old gradients on finished ranks; now all ranks step with new ones",
                       changes, Level.REVIEW)  # fmt: skip
    if any(in_epochs for _, in_epochs in loops):
        return Outcome("ranks wait for each other at the end of each epoch, not only of the last", changes, Level.REVIEW)
    return Outcome(
        "finished ranks repeat their last batch without gradients; their optimizers step on, where DDP's momentum stood still",
        changes,
        Level.REVIEW,
    )


def _context(site: Site, migration: Migration) -> Change:
    name = migration.helper(site, "join")
    assert site.call is not None
    if site.receiver is None:
        return call_instead(site.file, site.call, name)

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
        return with_first_argument(node.with_changes(func=cst.Name(name)), expression("[{model}]", model=node.func.value))

    return replace(site.file, site.call, build)


def _skip_local_rest(site: Site, migration: Migration, loop: ast.For, models: str) -> list[Change]:
    """What the body counts and prints behind the step is done for own batches only, as in a finished rank of DDP's."""
    last = last_shared_statement(loop, [model.removeprefix("*") for model in models.split(", ")])
    if last is None:
        return []
    first = models.split(", ")[0]
    model = f"{first[1:]}[0]" if first.startswith("*") else first
    repeats = migration.helper(site, "repeats_batch")
    return [insert_after(site.file, last, lambda: statements(f"if {repeats}({model}):\n    continue"))]


def _models(site: Site, migration: Migration) -> str | None:
    """What is joined, as further arguments of a call; None where writing it twice could make it twice."""
    if site.receiver is not None:
        return site.file.text(site.receiver) if _is_path(site.receiver) else None
    assert site.call is not None
    given = [*site.call.args[:1], *(k.value for k in site.call.keywords if k.arg == "joinables")]
    if len(given) != 1:
        return None
    (what,) = given
    if isinstance(what, (ast.List, ast.Tuple)) and what.elts and all(map(_is_path, what.elts)):
        models = [e for e in what.elts if migration.sharding.of(site.file, e).possible]  # optimizers are joined as well
        return ", ".join(site.file.text(model) for model in models) or None
    return f"*{site.file.text(what)}" if _is_path(what) else None


def _joins_more(call: ast.Call, models: str) -> bool:
    """Whether optimizers are joined beside the models."""
    listed = call.args[0] if call.args else None
    return isinstance(listed, (ast.List, ast.Tuple)) and len(listed.elts) > len(models.split(", "))


def _is_path(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


_BY_HAND = "what is joined is not written out here"
_ADVICE = "Write `for batch in until_all_ranks_finish(loader, model):` in the loop, inside `with join([model]):`."

RULE = Rule(
    id="FS306",
    title="Join",
    symbols=(_JOIN, f"{DDP}.join"),
    roles=("call", "read", "value"),
    why="A rank that has run out of batches has to take part in the gathers of the others, or they hang.",
    fallback=joined,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "from torch.distributed.algorithms.join import Join\n"
                "\n"
                "\n"
                "def f(net, options, loader):\n"
                "    model = DDP(net, **options)\n"
                "    with Join([model]):\n"
                "        for i, batch in enumerate(loader):\n"
                "            model(batch).sum().backward()\n"
                "            print(i)\n"
            ),
            after=(
                "from fsdp2_helpers import join, repeats_batch, shard_like_ddp, until_all_ranks_finish\n"
                "\n"
                "\n"
                "def f(net, options, loader):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    with join([model]):\n"
                "        for i, batch in enumerate(until_all_ranks_finish(loader, model)):\n"
                "            model(batch).sum().backward()\n"
                "            if repeats_batch(model):\n"
                "                continue\n"
                "            print(i)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
    proof=("uneven_shards",),
)
