"""``with FSDP.summon_full_params(model):``, by what its body does."""

from __future__ import annotations

import ast

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..migration import Migration
from ..ranks.evaluation import is_evaluated, reshard_lines
from ..ranks.guards import GuardFinder
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.summoned import uses_of_parameters
from ..text.dedent import can_unwrap, unwrapped
from ..text.patches import Part

_WHY = "FSDP2 has no context with whole parameters"


def check(site: Site, migration: Migration) -> Outcome:
    """Reads become full_tensor(), calls of the model stay, everything else is left to a person."""
    view, call = site.view, site.call
    if site.role == "keyword":
        return Outcome(Level.SAFE, "part of its call", silent=True)
    statement = view.statement(site.node)
    is_entered = call is not None and isinstance(view.parents[call], ast.withitem)
    if call is None or not is_entered or not isinstance(statement, (ast.With, ast.AsyncWith)):
        return _manual("the context is not entered where it is made")
    if len(statement.items) != 1 or statement.items[0].optional_vars is not None or not can_unwrap(view, statement):
        return _manual("the context shares its statement with others")
    if any(k.arg == "with_grads" and not _is_false(k.value) for k in call.keywords):
        return _manual("the body sees whole gradients, too")
    found = uses_of_parameters(migration.groups, view, statement.body, site.group)
    if found.writes:
        return _manual(f"the body changes parameters (line {view.line(found.writes[0])})")
    if found.unclear:
        return _manual(f"what line {view.line(found.unclear[0])} does with the parameters is not known")
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    for node in found.tensors:
        inside = [g for g in finder.around(view, node) if view.line(g.statement) >= statement.lineno]
        if inside:
            line = view.line(node)
            return _manual(f"a parameter is read on some ranks only (line {line}), and gathering it is collective")
    outcome = Outcome(Level.SAFE, "the context goes: " + _message(len(found.tensors)))
    if site.maybe_plain and found.tensors:
        return _manual("the model may be unsharded here, and full_tensor() exists on sharded parameters only")
    before: list[Part] = []
    if found.tensors and call.args and is_evaluated(migration, site.group):
        before = reshard_lines(migration, outcome, view, view.keep(call.args[0]), view.indent(statement), call)
        outcome.message += "; an evaluation may have come before, so the model goes back to its shards first"
        outcome.level = Level.REVIEW
    outcome.patches.append(unwrapped(view, statement, _WHY, before))
    for node in found.tensors:
        parts = (view.keep(node), ".full_tensor()")
        outcome.patches.append(view.replace(node, parts, "the whole parameter, gathered from its shards"))
    return outcome


def _message(tensors: int) -> str:
    if tensors:
        return "each parameter is gathered by full_tensor() where its values are read; all ranks have to get there"
    return "what it holds runs on the sharded model, on all ranks"


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _manual(what: str) -> Outcome:
    return Outcome(
        Level.MANUAL,
        f"{what}; under FSDP2 a parameter holds this rank's shard there",
        "Read with parameter.full_tensor() or get_model_state_dict(model, options=…) "
        "on all ranks (after an evaluation call model.reshard() first); write with set_model_state_dict or "
        "distribute_tensor; call generate and forward as they are, on all ranks.",
        holds=True,
    )


RULE = Rule(
    id="FS413",
    title="summon_full_params",
    why=(
        "Reads of a sharded parameter give this rank's rows without an error: a norm came out as 0.80 instead of 1.29. "
        "full_tensor() gathers the whole; generate and forward gather by themselves; writes to gathered tensors are "
        "lost."
    ),
    symbols=(f"{FSDP1}.summon_full_params", f"{FSDP1}.summon_full_params(*"),
    roles=("call", "keyword", "use"),
    check=check,
    sources=("https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",),
    examples=(
        Example(
            before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(model):
    model = FSDP(model)
    with FSDP.summon_full_params(model, writeback=False):
        norms = [param.norm().item() for param in model.parameters()]
    with FSDP.summon_full_params(model):
        tokens = model.generate()
    return norms, tokens
""",
            after="""\
import torch
from torch.distributed.fsdp import fully_shard


def main(model):
    fully_shard(model)
    norms = [param.full_tensor().norm().item() for param in model.parameters()]
    tokens = model.generate()
    return norms, tokens
""",
        ),
        Example(
            before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(model):
    model = FSDP(model)
    with FSDP.summon_full_params(model):
        for param in model.parameters():
            param.data.clamp_(-1, 1)
""",
            after="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(model):
    model = FSDP(model)
    with FSDP.summon_full_params(model):
        for param in model.parameters():
            param.data.clamp_(-1, 1)
""",
            level=Level.MANUAL,
            note="what is written to gathered parameters would be lost",
        ),
    ),
    proof=("summon_full_params",),
)
