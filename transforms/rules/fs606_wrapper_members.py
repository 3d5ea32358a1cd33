"""FS606: what else wrappers have: settings, groups, and the machinery of DDP."""

from __future__ import annotations

import ast

import libcst as cst

from ..facts.symbols import DDP, FSDP1, FSDP_MODULE
from ..facts.wrapper_members import DDP_ONLY, FSDP1_ONLY, STATE_HOOKS
from ..findings import Form, Level
from ..migration import Migration
from ..queries.answers import Answer
from ..queries.unwrapping import unwrapping_choice
from ..rewrites.changes import Statement, remove_statement, replace_statement
from ..rewrites.helper_calls import attribute_as_call, method_as_function
from ..rewrites.templates import statements
from ..rule import Example, Outcome, Rule
from ..sites import Site

_MACHINERY = frozenset({"reducer", "_set_static_graph"})
_LOGS = "_get_ddp_logging_data"
_SETTINGS = {"find_unused_parameters": "False", "broadcast_buffers": "True", "require_forward_param_sync": "True"}
_FUNCTIONS = {
    "process_group": "group_of", "rank": "rank_of", "world_size": "world_size_of", "sharding_strategy": "strategy_of",
    "params": "unit_parameters", "compute_device": "compute_device_of",
    "mixed_precision": "mixed_precision_of",
}  # fmt: skip


def removed(site: Site, migration: Migration) -> Outcome | None:
    """Statements that only work on DDP's machinery go where the model is surely sharded."""
    statement = _own_statement(site)
    if statement is None or not migration.is_sharded_here(site):
        return None
    return Outcome(_NOTHING, [remove_statement(site.file, statement)])


def bilingual(site: Site, migration: Migration) -> Outcome | None:
    """Left to models that are not sharded, or answered for sharded ones."""
    assert site.sharding is not None and site.receiver is not None
    if site.sharding.answer is Answer.NO:
        return None
    if unwrapping_choice(site.file, site.node) is not None:
        return Outcome("the other branch says the same of a module", level=Level.OK)
    if site.member in STATE_HOOKS:
        return Outcome(_OTHER_KEYS, level=Level.MANUAL, form=Form.NOTE, advice=_TO_HOOK) if site.role == "call" else None
    statement = _own_statement(site)
    if statement is not None:
        return _guarded(site, migration, statement)
    if site.member == "check_is_root" and site.call is not None:
        name = migration.helper(site, "is_root")
        return Outcome("a unit of FSDP2 knows whether it is the root", [method_as_function(site.file, site.call, name)])
    node = site.call.func if site.call is not None else site.node
    assert isinstance(node, ast.Attribute)
    if site.role == "store":
        return Outcome(f"{site.member} is read by nobody on a sharded model", level=Level.REVIEW, form=Form.NOTE,
                       advice="Say it where the model is sharded, as an argument of the wrapper's call.")  # fmt: skip
    template = _template(site, migration)
    if template is None:
        message = f"sharded models have no `{site.member}`: reading it raises AttributeError"
        advice = "Ask whoever built the model, or leave it out: fully_shard has no such thing."
        return Outcome(message, level=Level.MANUAL, form=Form.NOTE, advice=advice)
    return Outcome(f"a sharded model has no `{site.member}`: what takes its place is given",
                   [attribute_as_call(site.file, node, template)])  # fmt: skip


def _template(site: Site, migration: Migration) -> str | None:
    member = site.member
    if member in _FUNCTIONS:
        return migration.helper(site, _FUNCTIONS[member]) + "({receiver})"
    if member == "_has_params":
        return f'bool({migration.helper(site, "unit_parameters")}({{receiver}}))'
    if member == "_is_root":
        return f'{migration.helper(site, "is_root")}({{receiver}})'
    if member in _SETTINGS:
        return f'getattr({{receiver}}, "{member}", {_SETTINGS[member]})'
    if member == "device":
        first = "next({receiver}.parameters()).device"
        return first if site.sharding and site.sharding.certain else f'(getattr({{receiver}}, "device", None) or {first})'
    if member == "device_ids":
        return 'getattr({receiver}, "device_ids", [next({receiver}.parameters()).device.index])'
    if member == _LOGS:
        return f'getattr({{receiver}}, "{_LOGS}", dict)'
    if member == "will_sync_module_buffers":  # buffers are synchronized by a hook of the model
        return 'getattr({receiver}, "will_sync_module_buffers", lambda: False)'
    return None


def _own_statement(site: Site) -> ast.Expr | None:
    """A statement that is nothing but a call on DDP's machinery."""
    statement = site.file.statement(site.node)
    if site.member not in _MACHINERY or not isinstance(statement, ast.Expr):
        return None
    current: ast.AST = statement.value
    while current is not site.node and isinstance(current, (ast.Call, ast.Attribute)):
        current = current.func if isinstance(current, ast.Call) else current.value
    return statement if current is site.node else None


def _guarded(site: Site, migration: Migration, statement: ast.Expr) -> Outcome:
    sharded, model = migration.torch(site, FSDP_MODULE), site.file.text(site.receiver)  # type: ignore[arg-type]

    def build(node: Statement):
        (guard,) = statements(f"if not isinstance({model}, {sharded}):\n    pass\n")
        body = cst.IndentedBlock([node.with_changes(leading_lines=[])])
        return [guard.with_changes(leading_lines=node.leading_lines, body=body)]

    return Outcome(_NOTHING, [replace_statement(site.file, statement, build)])


_OTHER_KEYS = "a hook of a wrapper's states saw keys that begin with module.: on the sharded model it meets the module's own keys"
_TO_HOOK = "Leave out a hook that takes `module.` off or puts it on, and the helpers model_state and load_state for this model."
_NOTHING = "fully_shard has no reducer to prepare: the graph may change from step to step"

RULE = Rule(
    id="FS606",
    title="members of wrappers",
    symbols=(*(f"{DDP}.{n}" for n in (*_MACHINERY, *_SETTINGS, "device_ids", "device", "will_sync_module_buffers", _LOGS)),
             *(f"{FSDP1}.{n}" for n in (*_FUNCTIONS, "check_is_root")),
             *(f"{DDP}.{n}" for n in sorted(DDP_ONLY | STATE_HOOKS)),
             *(f"{FSDP1}.{n}" for n in sorted(FSDP1_ONLY - _FUNCTIONS.keys()))),
    roles=("read", "call", "store"),
    why="A model of FSDP2 is the user's own module: it has none of the attributes that the wrapper's class brought.",
    idiom=removed,
    fallback=bilingual,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                "    model._set_static_graph()\n"
                "    return model\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    return model\n"
            ),
            level=Level.REVIEW,
        ),
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                "    return model.process_group\n"
            ),
            after=(
                "from fsdp2_helpers import group_of, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    return group_of(model)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
