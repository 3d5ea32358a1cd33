"""FS306: `Join`, for ranks with unequal numbers of batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from ..facts.symbols import DDP
from ..findings import Level
from ..migration import Migration
from ..queries.answers import Answer
from ..queries.arguments import handed_in
from ..queries.file import File
from ..queries.training_loops import TrainingLoop, batches_of, does_more, last_shared_statement, training_loops
from ..rewrites.changes import Change, insert_after, replace
from ..rewrites.helper_calls import around, attribute_as_call, call_instead
from ..rewrites.templates import expression, statements, with_first_argument
from ..rule import Example, Outcome, Rule
from ..sites import Site

_DEEPEST = 3
_JOIN = "torch.distributed.algorithms.join.Join"


def joined(site: Site, migration: Migration) -> Outcome | None:
    """The context knows sharded models, and the loop inside it keeps finished ranks company for the others."""
    call = site.call
    if site.sharding is not None and site.sharding.answer is Answer.NO:
        return None
    models = _models(site, migration)
    if call is None and models is not None and site.role == "read":
        assert isinstance(site.node, ast.Attribute)
        context = f"(lambda **options: {migration.helper(site, 'join')}([{{receiver}}], **options))"
        migration.names(site.file).offer(_IN_LOOPS)
        migration.names(site.file).offer("repeats_batch")
        return Outcome(_CHOSEN, [attribute_as_call(site.file, site.node, context)], Level.MANUAL, advice=_ADVICE)
    if call is None or models is None:
        return Outcome(_BY_HAND, level=Level.MANUAL, advice=_ADVICE)
    entered = list(_entered(site.file, call, models))
    changes = [_context(site, migration)]
    if not entered:
        migration.names(site.file).offer(_IN_LOOPS)
        migration.names(site.file).offer("repeats_batch")
        return Outcome(_ELSEWHERE, changes, Level.MANUAL, advice=_ADVICE)
    loops = [(loop, named) for loop, named in entered if not _is_answered_for(site, migration, loop)]
    repeats_all = False
    for loop, named in loops:
        asked = _until_all_finish(migration, loop, _models_in(migration, loop) if loop.is_called else named)
        repeats_all = repeats_all or (len(asked) == 1 and does_more(loop.node))
        changes += asked
    if repeats_all:
        migration.names(loops[0][0].file).offer("repeats_batch")
        return Outcome(_COUNTS, changes, Level.MANUAL, advice=_ASK)
    if _joins_more(call, models):
        return Outcome("a ZeroRedundancyOptimizer went on with old gradients on finished ranks; now all ranks step with new ones",
                       changes, Level.REVIEW)  # fmt: skip
    if any(loop.in_epochs for loop, _ in loops):
        return Outcome("ranks wait for each other at the end of each epoch, not only of the last", changes, Level.REVIEW)
    return Outcome(
        "finished ranks repeat their last batch without gradients; their optimizers step on, where DDP's momentum stood still",
        changes,
        Level.REVIEW,
    )


def _entered(file: File, call: ast.Call, models: str, depth: int = 0) -> Iterator[tuple[TrainingLoop, str]]:
    """The loops that train in a context, and what it joins as it is named there: also where a function returns the context."""
    loops = training_loops(file, call)
    yield from ((loop, models) for loop in loops)
    function = file.function(call)
    if loops or depth == _DEEPEST or not isinstance(file.parents[call], ast.Return) or not isinstance(function, ast.FunctionDef):
        return
    for caller, outer in file.program.callers(file, function):
        named = [_as_handed_in(file, call, model, outer) for model in models.split(", ")]
        if all(named):
            yield from _entered(caller, outer, ", ".join(filter(None, named)), depth + 1)


def _as_handed_in(file: File, place: ast.AST, model: str, call: ast.Call) -> str | None:
    """A model that a function names by its parameter, as whoever calls the function names it."""
    name, dot, rest = model.removeprefix("*").partition(".")
    given = handed_in(file, place, name, call)
    return f"{'*' * model.startswith('*')}{ast.unparse(given)}{dot}{rest}" if given is not None and _is_path(given) else None


def _context(site: Site, migration: Migration) -> Change:
    name = migration.helper(site, "join")
    assert site.call is not None
    if site.receiver is None:
        return call_instead(site.file, site.call, name)

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
        return with_first_argument(node.with_changes(func=cst.Name(name)), expression("[{model}]", model=node.func.value))

    return replace(site.file, site.call, build)


def _is_answered_for(site: Site, migration: Migration, loop: TrainingLoop) -> bool:
    """Whether another context, written further up, has the same loop in it."""
    sites = [s for s in migration.sites.get(site.file.path, ()) if s.member.lower() == "join" and s.call is not None]
    earlier = sites[: sites.index(site)] if site in sites else []
    return any(loop == other for before in earlier for other in training_loops(before.file, before.call))  # type: ignore[arg-type]


def _models_in(migration: Migration, loop: TrainingLoop) -> str:
    """The sharded models that a loop calls, as further arguments of a call."""
    called = [n.func for n in ast.walk(loop.node) if isinstance(n, ast.Call) and _is_path(n.func)]
    models = [function for function in called if migration.sharding.of(loop.file, function).wrappers]
    return ", ".join(dict.fromkeys(loop.file.text(model) for model in models))


def _until_all_finish(migration: Migration, loop: TrainingLoop, models: str) -> list[Change]:
    """The loop goes on until all ranks are done; what a rank counts and prints behind the step is for its own batches only."""
    helper = migration.names(loop.file).helper
    changes = [around(loop.file, batches_of(loop.node), f"{helper(_IN_LOOPS)}({{it}}, {models})")]
    last = last_shared_statement(loop.file, loop.node, [model.removeprefix("*") for model in models.split(", ")])
    first = models.split(", ")[0]
    model = f"{first[1:]}[0]" if first.startswith("*") else first
    if last is not None and model:
        skip = f"if {helper('repeats_batch')}({model}):\n    continue"
        changes.append(insert_after(loop.file, last, lambda: statements(skip)))
    return changes


def _models(site: Site, migration: Migration) -> str | None:
    """What is joined, as further arguments of a call; None where writing it twice could make it twice."""
    if site.receiver is not None:
        return site.file.text(site.receiver) if _is_path(site.receiver) else None
    if site.call is None:
        return None  # the class itself is handed on
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


_IN_LOOPS = "until_all_ranks_finish"
"""Imported where the advice speaks of it."""
_CHOSEN = "this context is entered under another name: the loop inside may have a way of its own to end on all ranks"
_ELSEWHERE = "the loop that trains stands elsewhere: its ranks would wait for each other"
_COUNTS = "finished ranks repeat their last batch: what this loop counts, logs or schedules they count once more"
_ASK = "Ask `repeats_batch(model)` where it counts and logs; what all ranks step with, as a schedule, has to run on all."
_BY_HAND = "what is joined is not written out here"
_ADVICE = ("Loop over until_all_ranks_finish(loader, model) inside of `with join([model]):`, "
           "and skip what counts or logs where repeats_batch(model).")  # fmt: skip

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
                "def f(net, options, loader, optimizer):\n"
                "    model = DDP(net, **options)\n"
                "    with Join([model]):\n"
                "        for i, batch in enumerate(loader):\n"
                "            model(batch).sum().backward()\n"
                "            optimizer.step()\n"
                "            print(i)\n"
            ),
            after=(
                "from fsdp2_helpers import join, repeats_batch, shard_like_ddp, until_all_ranks_finish\n"
                "\n"
                "\n"
                "def f(net, options, loader, optimizer):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    with join([model]):\n"
                "        for i, batch in enumerate(until_all_ranks_finish(loader, model)):\n"
                "            model(batch).sum().backward()\n"
                "            optimizer.step()\n"
                "            if repeats_batch(model):\n"
                "                continue\n"
                "            print(i)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
    proof=("uneven_shards",),
)
