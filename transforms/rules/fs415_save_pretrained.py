"""``save_pretrained`` of a wrapped or sharded model."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.objects import is_anything
from ..findings import Level
from ..introspection.plain import is_plain, like
from ..migration import Migration
from ..ranks.conditions import last_name
from ..ranks.evaluation import of_group
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.outcomes import write_state
from ..state.plans import plan_of
from ..state.reads import StateRead
from ..training.in_scope import means_a_model

_SYMBOL = "transformers.PreTrainedModel.save_pretrained"


def find(migration: Migration) -> Iterator[Site]:
    """Every ``save_pretrained`` of a group's model, after it was wrapped."""
    program = migration.program
    for number, call in enumerate(program.flow.calls):
        if call.method != "save_pretrained":
            continue
        values = program.flow.values_of(call.function)
        group = next((g for g in migration.groups.all if any(of_group(g, value) for value in values)), None)
        if group is None:
            continue
        view, node = program.call_node(number)
        models = [value for value in values if of_group(group, value)]
        name = last_name(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if all(is_anything(value) for value in models) and not means_a_model(models, name):
            continue
        if isinstance(node.func, ast.Attribute) and is_plain(view, node, like(node.func.value), group.kinds):
            continue
        relations = {migration.order.relation((view, node), (wrap.view, wrap.node)) for wrap in group.wraps}
        if relations - {"unknown"} != {"before"}:
            yield Site(view, node, _SYMBOL, "hazard", group, (), node)


def check(site: Site, migration: Migration) -> Outcome:
    """The call is given the gathered state."""
    view, call = site.view, site.call
    assert call is not None
    if any(keyword.arg == "state_dict" for keyword in call.keywords):
        return Outcome(Level.OK, "the state dict is handed in")
    if any(keyword.arg is None for keyword in call.keywords) or not isinstance(call.func, ast.Attribute):
        return _manual("its keywords are unpacked, and a state dict may be among them")
    receiver = call.func.value
    read = migration.once(
        "save_pretrained", call, lambda: StateRead(view, call, site.group, "model", receiver, is_argument=True)
    )
    plan = plan_of(migration, read)
    if plan.problem or plan.lift is not None:
        return _manual(plan.problem or "this function runs on some ranks only")
    outcome = Outcome(Level.REVIEW, "; ".join(["the gathered state is handed in", *plan.notes]))
    write_state(migration, read, plan, outcome)
    return outcome


def _manual(what: str) -> Outcome:
    return Outcome(
        Level.MANUAL,
        f"{what}; save_pretrained by itself would write this rank's shards",
        "On all ranks: state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, "
        "cpu_offload=True)); on rank 0: model.save_pretrained(path, state_dict=state).",
        holds=True,
    )


RULE = Rule(
    id="FS415",
    title="save_pretrained",
    why=(
        "save_pretrained takes the model's own state dict, which holds shards under FSDP2; with state_dict= it writes "
        "what it is given."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("https://huggingface.co/docs/transformers/main_classes/model#transformers.PreTrainedModel.save_pretrained",),
    examples=(
        Example(
            before="""\
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import AutoModelForCausalLM


def main(rank, path):
    model = AutoModelForCausalLM.from_pretrained(path)
    model = DDP(model)
    if rank == 0:
        model.module.save_pretrained("out", safe_serialization=True)
""",
            after="""\
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM


def main(rank, path):
    model = AutoModelForCausalLM.from_pretrained(path)
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
    model_state_dict = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if rank == 0:
        model.save_pretrained("out", safe_serialization=True, state_dict=model_state_dict)
""",
            level=Level.REVIEW,
        ),
    ),
)
