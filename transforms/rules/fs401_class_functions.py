"""FS401: FSDP1's functions on its class: kinds of state dicts, optimizer state, full parameters, units."""

from __future__ import annotations

import ast

import libcst as cst

from ..facts.symbols import FSDP1
from ..findings import Level
from ..migration import Migration
from ..queries.answers import Answer
from ..queries.full_state import full_state_around
from ..rewrites.changes import Statement, remove_statement, replace, replace_statement
from ..rewrites.helper_calls import function_instead, method_as_function
from ..rewrites.templates import argument, expression, with_argument
from ..rule import Example, Outcome, Rule
from ..sites import Site

HELPERS = {
    "state_dict_type": "state_dict_type",
    "set_state_dict_type": "set_state_dict_type",
    "get_state_dict_type": "get_state_dict_type",
    "optim_state_dict": "optim_state_dict",
    "full_optim_state_dict": "full_optim_state_dict",
    "sharded_optim_state_dict": "sharded_optim_state_dict",
    "optim_state_dict_to_load": "optim_state_dict_to_load",
    "scatter_full_optim_state_dict": "scatter_full_optim_state_dict",
    "shard_full_optim_state_dict": "shard_full_optim_state_dict",
    "flatten_sharded_optim_state_dict": "flatten_sharded_optim_state_dict",
    "rekey_optim_state_dict": "rekey_optim_state_dict",
    "summon_full_params": "full_parameters",
    "fsdp_modules": "units",
}


def dissolved(site: Site, migration: Migration) -> Outcome | None:
    """A context in which only full state is taken goes: the call that takes it says what it wants (FS402)."""
    if site.member == "optim_state_dict":
        return of_optimizer(site, migration)
    found = migration.full_state(site) if site.member == "state_dict_type" and site.receiver is None else None
    if found is None:
        return None

    def build(node: Statement) -> list[Statement]:
        assert isinstance(node, cst.With) and isinstance(node.body, cst.IndentedBlock)
        first, *rest = node.body.body
        lines = [*node.leading_lines, *first.leading_lines]  # type: ignore[attr-defined]
        return [first.with_changes(leading_lines=lines), *rest]  # type: ignore[list-item]

    changes = [replace_statement(site.file, found.block, build)]
    needless = [*found.needless, *migration.assignments_absorbed(site.file, found.settings)]
    changes += [remove_statement(site.file, statement) for statement in needless]
    return Outcome("the call that takes the state says which kind it wants", changes)


def of_optimizer(site: Site, migration: Migration) -> Outcome | None:
    """Full state of an optimizer that a context asked for, taken by the function that needs none."""
    if site.call is None or not migration.options.idioms:
        return None
    found = full_state_around(migration.program, site.file, site.call)
    if found is None:
        return None
    function = migration.helper(site, "full_optim_state_dict")

    def build(node: cst.CSTNode) -> cst.CSTNode:
        call = cst.ensure_type(node, cst.Call).with_changes(func=expression(function))
        return call if found.optimizer_on_one_rank else with_argument(call, argument("False", "rank0_only"))

    where = "on the first rank's CPU" if found.optimizer_on_one_rank else "on every rank's CPU"
    return Outcome(f"the full state of the optimizer, {where}", [replace(site.file, site.call, build)])


def by_helper(site: Site, migration: Migration) -> Outcome | None:
    """A function of the same parameters that knows models of FSDP2, and leaves all others to FSDP1."""
    name = migration.helper(site, HELPERS[site.member])
    if site.receiver is not None:
        assert site.sharding is not None
        if site.sharding.answer is Answer.NO:
            return None
        if site.call is not None and not _names_model(site.call):
            return Outcome(_MESSAGE, [method_as_function(site.file, site.call, name)])
    changes = [function_instead(site.file, site.node, site.call, name)]
    if site.receiver is None and "fsdp1" not in migration.wrapper_kinds:
        return Outcome(_MADE_ELSEWHERE, changes, level=Level.REVIEW, advice=_WHERE)
    return Outcome(_MESSAGE, changes)


def _names_model(call: ast.Call) -> bool:
    """Whether a static function that is read off a model is handed the model as well."""
    if any(keyword.arg in ("module", "model") for keyword in call.keywords):
        return True
    return bool(call.args) and not isinstance(call.args[0], ast.Constant)


_MADE_ELSEWHERE = "nothing here makes models of FSDP1: this serves those that are made elsewhere, before and after they move"
_WHERE = "Switch what wraps them to FSDP2: accelerate and Trainer by `fsdp_version: 2` in their configuration."
_MESSAGE = "a function that knows models of FSDP2 takes the place of FSDP1's"

RULE = Rule(
    id="FS401",
    title="functions of FSDP1's class",
    symbols=tuple(f"{FSDP1}.{name}" for name in HELPERS),
    roles=("call", "value", "read"),
    why="FSDP1's functions find nothing to do in a model of FSDP2: contexts do not apply, full parameters stay shards.",
    idiom=dissolved,
    fallback=by_helper,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType\n"
                "\n"
                "\n"
                "def save(model, rank, path):\n"
                "    policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)\n"
                "    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):\n"
                "        state = model.state_dict()\n"
                "    if rank == 0:\n"
                "        torch.save(state, path)\n"
                "\n"
                "\n"
                "def main(net, rank):\n"
                "    save(FSDP(net), rank, 'model.pt')\n"
            ),
            after=(
                "import torch\n"
                "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict\n"
                "\n"
                "from fsdp2_helpers import shard_like_fsdp1\n"
                "\n"
                "\n"
                "def save(model, rank, path):\n"
                "    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))\n"
                "    if rank == 0:\n"
                "        torch.save(state, path)\n"
                "\n"
                "\n"
                "def main(net, rank):\n"
                "    save(shard_like_fsdp1(net), rank, 'model.pt')\n"
            ),
            level=Level.SAFE,
        ),
        Example(
            before=(
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "from torch.distributed.fsdp import StateDictType\n"
                "\n"
                "\n"
                "def f(net, options, kind):\n"
                "    model = FSDP(net, **options)\n"
                "    with FSDP.state_dict_type(model, StateDictType[kind]):\n"
                "        return model.state_dict()\n"
            ),
            after=(
                "from torch.distributed.fsdp import StateDictType\n"
                "\n"
                "from fsdp2_helpers import model_state, shard_like_fsdp1, state_dict_type\n"
                "\n"
                "\n"
                "def f(net, options, kind):\n"
                "    model = shard_like_fsdp1(net, **options)\n"
                "    with state_dict_type(model, StateDictType[kind]):\n"
                "        return model_state(model)\n"
            ),
            level=Level.SAFE,
        ),
    ),
    proof=("state_dict_kind_from_config", "summon_full_params", "legacy_optimizer_state"),
)
