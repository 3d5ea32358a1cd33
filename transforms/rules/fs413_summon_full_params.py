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
from ..state.summoned import Summoned, uses_of_parameters
from ..state.summoned_blocks import blocks_under, what_stops
from ..state.whole_parameters import helper_text, what_is_asked, write_whole_parameters
from ..text.dedent import can_unwrap, unwrapped
from ..text.patches import Part
from ..training.generating import generating_calls

_WHY = "FSDP2 has no context with whole parameters"


def check(site: Site, migration: Migration) -> Outcome:
    """Reads become full_tensor() and calls of the model stay; for what else a body does, a context of its own is made."""
    view, call = site.view, site.call
    if site.role == "keyword":
        return Outcome(Level.SAFE, "part of its call", silent=True)
    if call is None:
        return _manual("the function is handed on, and where the context is entered is not known")
    statement = view.statement(site.node)
    if not isinstance(view.parents[call], ast.withitem) or not isinstance(statement, ast.With):
        return _as_context(site, migration, call, "the context is not entered where it is made")
    found = uses_of_parameters(migration.groups, view, statement, site.group)
    what = _why_it_stays(site, migration, call, statement, found)
    if what:
        return _as_context(site, migration, call, what)
    outcome = Outcome(Level.SAFE, "the context goes: " + _message(len(found.tensors)))
    before: list[Part] = []
    if found.tensors and call.args and is_evaluated(migration, site.group):
        before = reshard_lines(migration, outcome, view, view.keep(call.args[0]), view.indent(statement), call)
        outcome.message += "; an evaluation may have come before, so the model goes back to its shards first"
        outcome.level = Level.REVIEW
    if any(view is user and statement in view.ancestors(call) for user, call in generating_calls(migration, site.group)):
        outcome.level = Level.REVIEW
        outcome.message += "; generate is registered where the model is sharded, so that it gathers what it computes with"
    outcome.patches.append(unwrapped(view, statement, _WHY, before))
    for node in found.tensors:
        parts = (view.keep(node), ".full_tensor()")
        outcome.patches.append(view.replace(node, parts, "the whole parameter, gathered from its shards"))
    return outcome


def _why_it_stays(site: Site, migration: Migration, call: ast.Call, statement: ast.With, found: Summoned) -> str:
    """Why a body needs whole parameters in their places; empty where it only reads them."""
    view = site.view
    if any(k.arg == "with_grads" and not _is_false(k.value) for k in call.keywords):
        return "the body sees whole gradients, too"
    if len(statement.items) != 1 or statement.items[0].optional_vars is not None or not can_unwrap(view, statement):
        return "the context shares its statement with others"
    if found.writes:
        return f"the body changes parameters (line {view.line(found.writes[0])})"
    if found.unclear:
        return f"what line {view.line(found.unclear[0])} does with the parameters is not known"
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    for node in found.tensors:
        if any(view.line(guard.statement) >= statement.lineno for guard in finder.around(view, node)):
            return f"a parameter is read on some ranks only (line {view.line(node)}), and gathering it is collective"
    if site.maybe_plain and found.tensors:
        return "the model may be unsharded here, and full_tensor() exists on sharded parameters only"
    return ""


def _as_context(site: Site, migration: Migration, call: ast.Call, what: str) -> Outcome:
    """A context manager that gives whole parameters takes the place of the call, wherever it is entered."""
    asked = what_is_asked(call)
    if asked:
        return _manual(f"{what}, and {asked}")
    blocks = blocks_under(migration, site.view, call)
    if not blocks:
        return _manual(f"{what}, and where it is entered cannot be seen")
    for block in blocks:
        stopping = what_stops(migration, block, site.group)
        if stopping:
            return _manual(f"{what}, and {stopping}")
    outcome = Outcome(Level.REVIEW, f"{what}: {_WHOLE}", _LOOK)
    write_whole_parameters(migration, site.view, call, outcome)
    return outcome


_WHOLE = (
    "a context manager in this file puts whole parameters in the place of the shards and, unless writeback is False, "
    "writes back what the block leaves in them; they are other objects than the shards that the optimizer holds, and "
    "have no gradients; names of parameters have no _fsdp_wrapped_module in them any more, which those read off a module "
    "around the units had: what was saved by such names has to lose it when it is loaded"
)
_LOOK = (
    "See that nothing looks parameters up by identity in the blocks, or keeps them beyond; a forward inside raises when "
    "the block ends, so move it out."
)


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


_SPELLED = {"torch.nn.Parameter": "torch.nn.Parameter", "torch.no_grad": "torch.no_grad"}
_HELPER = helper_text("whole_parameters", lambda symbol: _SPELLED.get(symbol, symbol.rpartition(".")[2]))
_FORWARD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(model, batch):
    model = FSDP(model)
    with FSDP.summon_full_params(model):
        for param in model.parameters():
            param.data.clamp_(-1, 1)
        return model(batch)
"""

RULE = Rule(
    id="FS413",
    title="summon_full_params",
    why=(
        "Reads of a sharded parameter give this rank's rows without an error: a norm came out as 0.80 instead of 1.29. "
        "full_tensor() gathers the whole; forward gathers by itself, and so does a registered generate; writes to gathered "
        "tensors are lost, unless they are taken back into the shards."
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
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method


def main(model):
    fully_shard(model)
    register_fsdp_forward_method(model, "generate")
    norms = [param.full_tensor().norm().item() for param in model.parameters()]
    tokens = model.generate()
    return norms, tokens
""",
            level=Level.REVIEW,
            note="generate, whose code is not seen here, is registered: what it computes besides calling the model needs that",
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
            after=f"""\
import torch
from contextlib import contextmanager
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate


{_HELPER}

def main(model):
    fully_shard(model)
    with whole_parameters(model):
        for param in model.parameters():
            param.data.clamp_(-1, 1)
""",
            level=Level.REVIEW,
            note="what the body writes goes back to the shards when it ends",
        ),
        Example(
            before=_FORWARD,
            after=_FORWARD,
            level=Level.MANUAL,
            note="a forward gathers and shards its units itself, and what was written before would be lost",
        ),
    ),
    proof=("summon_full_params", "summon_helper"),
)
