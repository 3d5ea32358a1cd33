"""FS604: members of wrapped models that are named in quotes: `hasattr(model, "no_sync")` and its kin."""

from __future__ import annotations

import ast

import libcst as cst

from ..facts.symbols import FSDP_MODULE
from ..facts.wrapper_members import MEMBERS
from ..findings import Form, Level
from ..migration import Migration
from ..queries.unwrapping import INNER, unwrapping_choice
from ..rewrites.changes import replace
from ..rewrites.helper_calls import around, as_method, call_instead, wrapper_method
from ..rewrites.templates import call_of, expression
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state_functions import loader_of_state, taker_of_state

_STATES = {"state_dict": taker_of_state, "load_state_dict": loader_of_state}
_FUNCTIONS = {
    "no_sync": "no_gradient_sync",
    "clip_grad_norm_": "clip_model_grad_norm",
    "summon_full_params": "full_parameters",
    "register_comm_hook": "register_comm_hook",
}
"""Helpers that take the model first, in the place of methods."""
_VALUES = {"process_group": "group_of", "rank": "rank_of", "world_size": "world_size_of", "_handles": "unit_handles",
           "require_backward_grad_sync": "gradient_sync"}  # fmt: skip
_OF_FSDP1 = frozenset({"clip_grad_norm_", "summon_full_params", "_fsdp_wrapped_module", "_handles"})


def on_sharded(site: Site, migration: Migration) -> Outcome | None:
    """What ``getattr`` gives is used at once, of a model that is always sharded: the helper itself is called."""
    call = site.call
    assert call is not None and site.receiver is not None and site.sharding is not None
    member, parent = _member(site), site.file.parents[call]
    is_read = (site.file.external(call.func) or "") == "builtins.getattr"
    bilingual = member in _STATES and len(call.args) == 2 and _has_sharded_state(site, migration)
    function = _STATES[member](site, migration) if member in _STATES else _FUNCTIONS.get(member)
    if not is_read or function is None or not (bilingual or migration.is_sharded_here(site)):
        return None
    if not isinstance(parent, ast.Call) or parent.func is not call or migration.is_before_wrap(site):
        return None
    name = migration.helper(site, function)

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call) and isinstance(node.func, cst.Call)
        return call_of(name, node.func.args[0].value, node)

    return Outcome(f"a function of sharded models takes the place of `{member}`", [replace(site.file, parent, build)])


def _has_sharded_state(site: Site, migration: Migration) -> bool:
    """Whether state is read off, or loaded into, what may be sharded, or the optimizer of what may be."""
    assert site.sharding is not None and site.receiver is not None
    return site.sharding.possible or migration.sharding.of_optimizer(site.file, site.receiver).possible


def answered(site: Site, migration: Migration) -> Outcome | None:
    """What the wrapper would have answered, where the model is sharded."""
    call = site.call
    assert call is not None and site.sharding is not None and site.receiver is not None
    has_state = _member(site) in _STATES and _has_sharded_state(site, migration)
    if (not site.sharding.possible and not has_state) or migration.is_before_wrap(site):
        return None
    function = (site.file.external(call.func) or "").rpartition(".")[2]
    if function == "hasattr":
        return _asked(site, migration)
    if function == "getattr":
        return _read(site, migration)
    if function == "setattr" and _member(site) == "require_backward_grad_sync" and len(call.args) == 3:
        name = migration.helper(site, "set_gradient_sync")
        return Outcome("the switch of FSDP2 says whether the coming backward reduces gradients",
                       [_as_call(site, name, [0, 2])])  # fmt: skip
    return Outcome("it changes nothing on a sharded model", level=Level.REVIEW, form=Form.NOTE,
                   advice="See what reads it, and say it to fully_shard.")  # fmt: skip


def _asked(site: Site, migration: Migration) -> Outcome:
    """``hasattr``: yes for sharded models as for wrapped ones, but where code takes the wrapper off."""
    member = _member(site)
    if member in _STATES:
        return Outcome("every module has it", level=Level.OK)
    if member in INNER and _takes_wrapper_off(site):
        return Outcome("it answers no for models of FSDP2, and the branch for plain models is right", level=Level.OK)
    if member not in INNER and member not in _FUNCTIONS and member not in _VALUES:
        return Outcome("it answers no for models of FSDP2: there is nothing to set or to ask", level=Level.OK)
    if member in _OF_FSDP1 and "fsdp1" not in migration.wrapper_kinds:
        return Outcome("it answers no, as it did for DDP", level=Level.OK)
    if not _is_path(site.receiver):
        return _by_hand(f"it answers no for models of FSDP2, where the wrapper has `{member}`")
    if member not in INNER and not migration.is_sharded_here(site):
        assert site.call is not None
        change = call_instead(site.file, site.call, migration.helper(site, "has_member"))
        return Outcome(f"sharded models answer yes, as wrapped ones did; `{member}` is replaced where it is used", [change])
    sharded = migration.torch(site, FSDP_MODULE)
    model = site.file.text(site.receiver)  # type: ignore[arg-type]
    parent = site.file.parents[site.node]
    if _is_or(parent) and any(f"isinstance({model}, {sharded})" == ast.unparse(v) for v in parent.values):  # type: ignore[attr-defined]
        return Outcome("sharded models answer yes here already", level=Level.OK)
    joined = f"isinstance({model}, {sharded}) or {{it}}"
    template = joined if _stands_alone(site) or _is_or(site.file.parents[site.node]) else f"({joined})"
    return Outcome(f"sharded models answer yes, as wrapped ones did; `{member}` is replaced where it is used",
                   [around(site.file, site.node, template)])  # type: ignore[arg-type]  # fmt: skip


def _read(site: Site, migration: Migration) -> Outcome:
    member, call = _member(site), site.call
    assert call is not None and site.receiver is not None
    default = call.args[2] if len(call.args) > 2 else None
    if member in INNER:
        if default is not None and ast.dump(default) == ast.dump(site.receiver):
            return Outcome("it falls back to the model itself, which is right", level=Level.OK)
        if _takes_wrapper_off(site):
            return Outcome("models of FSDP2 take the branch for plain models, which is right", level=Level.OK)
        if default is None:
            return Outcome("a sharded model is its own module", [_as_call(site, migration.helper(site, "unwrap"), [0])])
    if member in _STATES:
        return _bound(site, migration, default)
    if member in _FUNCTIONS:
        method, function = migration.helper(site, "wrapper_method"), migration.helper(site, _FUNCTIONS[member])
        return Outcome(f"sharded models have no `{member}`: what takes its place is given",
                       [wrapper_method(site.file, call, method, function)])  # fmt: skip
    value = _value(site, migration)
    if value is None and default is None and _is_called_untested(site):
        return Outcome(f"sharded models have no `{member}`: calling it raises AttributeError", level=Level.MANUAL, form=Form.NOTE,
                       advice=f"Write `.{member}()`: what it does is rewritten, where there is a way to.")  # fmt: skip
    if value is None:
        return Outcome("sharded models have no such member", level=Level.OK if default is not None else Level.REVIEW,
                       form=Form.NOTE)  # fmt: skip
    if not _is_path(site.receiver):
        return _by_hand(f"sharded models have no `{member}`")
    template = f"{value} if {_is_sharded(site, migration)} else {{it}}"
    if not _stands_alone(site):
        template = f"({template})"
    return Outcome(f"sharded models have no `{member}`: what takes its place is given", [around(site.file, call, template)])


def _is_called_untested(site: Site) -> bool:
    """Whether what ``getattr`` gives is called at once, and no test around asks whether it is there."""
    file, call = site.file, site.call
    parent = file.parents[call] if call is not None else None
    if not isinstance(parent, ast.Call) or parent.func is not call:
        return False
    tests = (around.test for around in file.ancestors(parent) if isinstance(around, (ast.If, ast.IfExp)))
    return not any(isinstance(n, ast.Name) and n.id in ("hasattr", "isinstance") for test in tests for n in ast.walk(test))


def _is_sharded(site: Site, migration: Migration) -> str:
    """The test for a sharded model, which what is not sure to be one may hand on to."""
    assert site.receiver is not None
    model, member = site.file.text(site.receiver), _member(site)
    if member in INNER or migration.is_sharded_here(site):
        return f"isinstance({model}, {migration.torch(site, FSDP_MODULE)})"
    return f'{migration.helper(site, "sharded_behind")}({model}, "{member}") is not None'


def _bound(site: Site, migration: Migration, default: ast.expr | None) -> Outcome:
    """``getattr(x, "state_dict")`` as a function, for whatever has a state."""
    assert site.receiver is not None and site.call is not None
    named = _STATES[_member(site)](site, migration)
    if named is None:
        return Outcome("its state dicts stay whole: the sharded model sees to it, and to its optimizers", level=Level.OK)
    helper, function = migration.helper(site, "as_method"), migration.helper(site, named)
    change = as_method(site.file, site.call, helper, function)
    if default is not None:
        if not _is_path(site.receiver):
            return _by_hand("the state of a sharded model has to be gathered")
        member, model = _member(site), site.file.text(site.receiver)
        made = f'({helper}({model}, "{member}", {function}) if hasattr({model}, "{member}") else {site.file.text(default)})'
        change = replace(site.file, site.call, lambda _: expression(made))
    return Outcome("state is gathered, or distributed, if it is a sharded model's or its optimizer's", [change])


def _value(site: Site, migration: Migration) -> str | None:
    """What stands for a member of a sharded model."""
    member, model = _member(site), site.file.text(site.receiver)  # type: ignore[arg-type]
    if member in INNER:
        return model
    if member in _VALUES:
        return f"{migration.helper(site, _VALUES[member])}({model})"
    return None


def _as_call(site: Site, name: str, kept: list[int]):
    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        *first, last = [node.args[place] for place in kept]
        return node.with_changes(func=expression(name), args=[*first, last.with_changes(comma=node.args[-1].comma)])

    assert site.call is not None
    return replace(site.file, site.call, build)


def _member(site: Site) -> str:
    assert site.call is not None
    key = site.call.args[1]
    assert isinstance(key, ast.Constant)
    return key.value  # type: ignore[return-value]


def _takes_wrapper_off(site: Site) -> bool:
    """Whether the answer decides only between ``x.module`` and ``x``; so it does where it ends a loop or a recursion."""
    if unwrapping_choice(site.file, site.node) is not None:
        return True
    inside: ast.AST = site.node
    for node in site.file.ancestors(site.node):
        if isinstance(node, ast.While) and inside is node.test:
            return True
        if isinstance(node, ast.Assert) and inside is node.test:
            return False
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return any(_calls_itself(n, node.name) for n in ast.walk(node))
        inside = node
    return False


def _calls_itself(node: ast.AST, name: str) -> bool:
    """Whether a node calls the function of this name that it stands in: `model.train()` in a `train` is no such call."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        return node.func.attr == name and node.func.value.id in ("self", "cls")
    return isinstance(node.func, ast.Name) and node.func.id == name


def _is_path(node: ast.expr | None) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _stands_alone(site: Site) -> bool:
    return isinstance(site.file.parents[site.node], (ast.If, ast.Assert, ast.Assign, ast.Return, ast.keyword))


def _is_or(node: ast.AST) -> bool:
    return isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)


def _by_hand(message: str) -> Outcome:
    advice = "Give the model a name, and ask isinstance(model, FSDPModule)."
    return Outcome(message, level=Level.REVIEW, form=Form.NOTE, advice=advice)


RULE = Rule(
    id="FS604",
    title="members named in quotes",
    symbols=tuple(dict.fromkeys(symbol for name, symbol in MEMBERS.items() if name != "_fsdp_flattened")),  # of parameters
    roles=("dynamic",),
    why="Models of FSDP2 lack the wrappers' members: hasattr silently answers no, and getattr gives its default.",
    idiom=on_sharded,
    fallback=answered,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                '    return hasattr(model, "no_sync")\n'
            ),
            after=(
                "from fsdp2_helpers import shard_like_ddp\n"
                "from torch.distributed.fsdp import FSDPModule\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                '    return isinstance(model, FSDPModule) or hasattr(model, "no_sync")\n'
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
                '    return getattr(model, "module", model)\n'
            ),
            after=(
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                '    return getattr(model, "module", model)\n'
            ),
            level=Level.OK,
        ),
        Example(
            before=(
                "import contextlib\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                '    return getattr(model, "no_sync", contextlib.nullcontext)\n'
            ),
            after=(
                "import contextlib\n"
                "\n"
                "from fsdp2_helpers import no_gradient_sync, shard_like_ddp, wrapper_method\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                '    return wrapper_method(model, "no_sync", no_gradient_sync, contextlib.nullcontext)\n'
            ),
            level=Level.REVIEW,
        ),
    ),
)
