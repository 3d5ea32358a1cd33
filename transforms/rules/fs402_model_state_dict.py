"""``model.state_dict()`` of a wrapped or sharded model."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.symbols import DDP, FSDP1
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.apart import apart_from_wraps
from ..state.compiled import is_compiled
from ..state.outcomes import optimizer_outcome, write_state
from ..state.plans import plan_of
from ..state.reads import before_wrap, hidden_uses, is_optimizer, of_another_program, read_of
from ..state.strangers import is_of_stranger, states_of_strangers
from ..state.unseen_savers import saver_outcome

_COMPILED = (
    "where the model went through torch.compile, its keys began with _orig_mod. before: they no longer do, and files that "
    "have them are refused when they are loaded"
)


def find(migration: Migration) -> Iterator[Site]:
    """Reads that no value shows to be of a wrapped model."""
    hidden = [site for site in hidden_uses(migration) if site.member == "state_dict"]
    yield from hidden
    known = {site.node for site in hidden}
    yield from (site for site in states_of_strangers(migration) if site.node not in known)


def check(site: Site, migration: Migration) -> Outcome:
    """A read of model state becomes get_model_state_dict, gathered on all ranks."""
    if is_of_stranger(migration, site):
        if _only_names(site, prefixed=False):
            return Outcome(Level.OK, "only the names are used, and they are the same for a sharded model")
        return saver_outcome(migration, site, "model")
    if not is_optimizer(site) and before_wrap(migration, site):
        return Outcome(Level.OK, "taken before the model is sharded")
    if of_another_program(migration, site):
        return Outcome(Level.OK, "made by the same factory as a model that is wrapped, but in a script of its own")
    apart = apart_from_wraps(migration, site)
    if apart:
        return Outcome(Level.OK, f"right as it is: {apart}")
    read = read_of(migration, site.call) if site.call is not None else None
    if read is None:
        return Outcome(
            Level.MANUAL,
            "state_dict is handed on as a function; called later, it would give this rank's shards only",
            "Hand on a function that calls get_model_state_dict(model, options=…) instead.",
            holds=True,
        )
    if _only_names(site, read.prefixed):
        return Outcome(Level.OK, "only the names are used, and they stay")
    plan = plan_of(migration, read)
    if plan.problem:
        return Outcome(Level.MANUAL, plan.problem, plan.advice, holds=True)
    if read.kind == "optimizer":
        return optimizer_outcome(migration, read)
    message = "the full state dict is gathered from the shards" if plan.options.full else "the sharded state dict"
    if plan.options.full_if is not None:
        message = "the state dict is full or sharded as the kind says that is chosen at run time"
    if plan.guard is not None:
        message += ", on all ranks in front of the rank guard"
    if plan.lift is not None:
        message += "; the callers do it on all ranks and hand it in"
    if read.prefixed:
        message += "; the keys keep DDP's module. prefix"
        if site.maybe_plain or not site.certain:
            message += ", and those of a model that was never wrapped would get it, too"
    outcome = Outcome(Level.SAFE, message)
    write_state(migration, read, plan, outcome)
    notes = [*plan.notes, *([_COMPILED] if is_compiled(migration, site.group) else [])]
    if notes or plan.lift is not None:
        outcome.level = Level.REVIEW
        outcome.message = "; ".join([message, *notes])
    return outcome


def _only_names(site: Site, prefixed: bool) -> bool:
    """``model.state_dict().keys()``: a sharded state dict has the same names."""
    if prefixed or site.call is None:
        return False
    parent = site.view.parents[site.call]
    if isinstance(parent, ast.Attribute) and parent.attr == "keys":
        return True
    if isinstance(parent, ast.Call) and site.view.external(parent.func) == "builtins.len":
        return True
    return isinstance(parent, ast.Compare) and any(isinstance(o, (ast.In, ast.NotIn)) for o in parent.ops)


RULE = Rule(
    id="FS402",
    title="Model state dicts",
    why=(
        "Under FSDP2 model.state_dict() holds this rank's shards and involves no communication: torch.save on rank 0 "
        "writes a fraction of the model and raises nothing. get_model_state_dict gathers the whole, and all ranks have "
        "to call it; with cpu_offload=True rank 0 alone receives it."
    ),
    symbols=(f"{FSDP1}.state_dict", f"{DDP}.state_dict", "torch.nn.Module.state_dict"),
    roles=("use", "hazard"),
    check=check,
    find=find,
    sources=(
        "https://docs.pytorch.org/docs/stable/distributed.checkpoint.html#torch.distributed.checkpoint.state_dict.get_model_state_dict",
    ),
    examples=(
        Example(
            before="""\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def save(model: DDP, rank, step):
    if step % 100 == 0 and rank == 0:
        torch.save(model.state_dict(), "model.pt")
""",
            after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule


def save(model: FSDPModule, rank, step):
    if step % 100 == 0:
        model_state_dict = get_model_state_dict(
            model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
        model_state_dict = {f"module.{name}": tensor for name, tensor in model_state_dict.items()}
    if step % 100 == 0 and rank == 0:
        torch.save(model_state_dict, "model.pt")
""",
            level=Level.REVIEW,
        ),
        Example(
            before="""\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def save_on_master(*args):
    if dist.get_rank() == 0:
        torch.save(*args)


def save(anything, path):
    save_on_master(anything.state_dict(), path)


def main():
    model = DDP(torch.nn.Linear(2, 2))
""",
            after="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only


def gather_to_rank_zero(shard):
    \"\"\"All ranks gather the whole tensor, and rank 0 alone keeps it.\"\"\"
    return shard.full_tensor().to("meta" if dist.get_rank() else "cpu")


def save_on_master(*args):
    if dist.get_rank() == 0:
        torch.save(*args)


def save(anything, path):
    anything_state_dict = tree_map_only(DTensor, gather_to_rank_zero, anything.state_dict())
    save_on_master(anything_state_dict, path)


def main():
    model = torch.nn.Linear(2, 2)
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
""",
            level=Level.REVIEW,
            note="whatever may come to a function: what is sharded is gathered",
        ),
    ),
    proof=("nanogpt_ddp", "finetuning_package", "trainer_class", "state_dict_kind_from_config"),
)
