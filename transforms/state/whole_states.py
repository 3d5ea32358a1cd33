"""Code for the state of objects of which it is only known at run time whether their tensors are sharded.

It keeps names and numbers as they are, so that files of old and of new programs serve both, and needs no model beside
an optimizer. Where nothing is sharded it changes nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..migration import Migration
from ..rule import Outcome
from ..text.definitions import defined_before
from ..text.generated import call_text, replaced_call
from ..text.patches import Part
from ..text.spelling import quoted
from ..view import FileView
from .plans import gathered_name

_DTENSOR = "torch.distributed.tensor.DTensor"
_MAP = "torch.utils._pytree.tree_map_only"

_GATHER = '''\
def {name}(shard):
    """All ranks gather the whole tensor, and rank 0 alone keeps it."""
    return shard.full_tensor().to({meta} if {rank}() else {cpu})
'''

_SHARD = '''\
def {name}(value, sharded):
    """This rank's part of a whole tensor, laid out like a sharded one that has its shape."""
    fits = isinstance(sharded, {dtensor}) and getattr(value, {shape}, None) == sharded.shape
    if not fits or isinstance(value, {dtensor}):
        return value
    mesh = sharded.device_mesh
    whole = {dtensor}.from_local(value, mesh, [{replicate}()] * mesh.ndim, run_check=False)
    return whole.redistribute(placements=sharded.placements)
'''

_OPTIMIZER_BODY = """\
parameters = [parameter for group in {owner}.param_groups for parameter in group[{params}]]
numbers = [number for group in state_dict[{param_groups}] for number in group[{params}]]
for number, parameter in zip(numbers, parameters):
    entries = state_dict[{state}].get(number, {{}})
    entries.update({{name: {shard}(value, parameter) for name, value in entries.items()}})
"""

_OPTIMIZER = '''\
def {name}(optimizer, state_dict):
    """Full state for an optimizer, with this rank's shards where its parameters are sharded."""
{optimizer_body}    return state_dict
'''

_MODEL = '''\
def {name}(model, state_dict):
    """Full state for a model, with this rank's shards where its tensors are sharded."""
    own = model.state_dict()
    state_dict.update({{name: {shard}(value, own.get(name)) for name, value in state_dict.items()}})
    return state_dict
'''

_NAMES = {"optimizer": "optimizer_shards", "model": "model_shards", "any": "state_shards"}

_ANY = '''\
def {name}(owner, state_dict):
    """Full state for a model or optimizer, with this rank's shards where its tensors are sharded."""
    if isinstance(owner, {optimizer}):
{optimizer_body}    elif isinstance(owner, {module}):
        own = owner.state_dict()
        state_dict.update({{name: {shard}(value, own.get(name)) for name, value in state_dict.items()}})
    return state_dict
'''


def is_gathered(view: FileView, call: ast.Call) -> bool:
    """Whether a read of state stands in the code that is written here: it is right already."""
    parent = view.parents[call]
    if not isinstance(parent, ast.Call) or call not in parent.args:
        return False
    return view.external(parent.func) == _MAP and view.external(parent.args[0]) == _DTENSOR


def is_sharded_on_the_way(view: FileView, call: ast.Call) -> bool:
    """The same for a load: what is loaded comes from a function of the file that lays tensors out like its first argument."""
    state = call.args[0] if call.args else None
    if not isinstance(state, ast.Call) or not isinstance(state.func, ast.Name):
        return False
    name = state.func.id
    helper = next((f for f in view.nodes(ast.FunctionDef) if f.name == name), None)
    return helper is not None and "_shard(value, " in view.text(helper)


def gather_here(migration: Migration, view: FileView, call: ast.Call, alone: bool, outcome: Outcome) -> None:
    """Gathers state where it is read, or in front of a statement that it would not fit into; ``alone``: for rank 0 only."""
    statement = view.statement(call)
    if view.stands_alone(statement) and _is_inside(view, call, statement):
        assert isinstance(call.func, ast.Attribute)
        name = gathered_name(migration, view, call, "any", call.func.value)
        line = gather_into(migration, view, call, alone, name, view.indent(statement), outcome)
        outcome.patches.append(view.insert_before(statement, line, _GATHERED))
        return
    name, arguments = _gathering(migration, view, call, alone, outcome)
    outcome.patches.append(view.replace(call, replaced_call(view, call, name, arguments), _GATHERED))


def _is_inside(view: FileView, call: ast.Call, statement: ast.stmt) -> bool:
    """Whether a call is a part of a larger display or of an argument, always evaluated with its statement."""
    between: list[ast.AST] = []
    for ancestor in view.ancestors(call):
        if ancestor is statement:
            break
        between.append(ancestor)
    displays = (ast.Dict, ast.List, ast.Tuple, ast.Call, ast.keyword)
    is_simple = isinstance(statement, (ast.Expr, ast.Assign, ast.Return))
    return is_simple and bool(between) and all(isinstance(node, displays) for node in between)


def gather_into(
    migration: Migration, view: FileView, call: ast.Call, alone: bool, name: str, indent: str, outcome: Outcome
) -> tuple[Part, ...]:
    """A line that binds gathered state to a name, which takes the place of the read."""
    function, arguments = _gathering(migration, view, call, alone, outcome)
    outcome.patches.append(view.replace(call, name, _GATHERED))
    head = f"{indent}{name} = "
    return (head, *call_text(function, arguments, indent, len(head)), "\n")


def _gathering(
    migration: Migration, view: FileView, call: ast.Call, alone: bool, outcome: Outcome
) -> tuple[str, list[Sequence[Part]]]:
    mapped = migration.use(outcome, view, _MAP, call)
    dtensor = migration.use(outcome, view, _DTENSOR, call)
    how = _gather_helper(migration, view, outcome) if alone else "lambda shard: shard.full_tensor().cpu()"
    return mapped, [(dtensor,), (how,), (view.text(call),)]  # its receiver is an argument, which nothing rewrites


def shard_on_the_way(migration: Migration, view: FileView, call: ast.Call, kind: str, outcome: Outcome) -> None:
    """Hands a load this rank's shards of the state; ``kind``: ``optimizer``, ``model`` or ``any``."""
    assert isinstance(call.func, ast.Attribute)
    name = _shard_helper(migration, view, kind, outcome)
    state = call.args[0]
    arguments = [(view.keep(call.func.value),), (view.keep(state),)]
    outcome.patches.append(view.replace(state, replaced_call(view, state, name, arguments), _LOADED))


_GATHERED = "what may be sharded is gathered"
_LOADED = "each rank keeps its shards of what is loaded"


def _gather_helper(migration: Migration, view: FileView, outcome: Outcome) -> str:
    name = _free(view, "gather_to_rank_zero")
    rank = migration.use(outcome, view, "torch.distributed.get_rank", view.tree)
    text = _GATHER.format(name=name, rank=rank, meta=quoted(view, "meta"), cpu=quoted(view, "cpu"))
    _define(view, text, outcome)
    return name


def _shard_helper(migration: Migration, view: FileView, kind: str, outcome: Outcome) -> str:
    inner, name = _free(view, "local_shard"), _free(view, _NAMES[kind])
    words = {word: quoted(view, word) for word in ("params", "param_groups", "state", "shape")}
    dtensor = migration.use(outcome, view, _DTENSOR, view.tree)
    replicate = migration.use(outcome, view, "torch.distributed.tensor.Replicate", view.tree)
    shard = _SHARD.format(name=inner, dtensor=dtensor, replicate=replicate, **words)
    body = _OPTIMIZER_BODY.format(owner="optimizer" if kind == "optimizer" else "owner", shard=inner, **words)
    lines = "".join(("    " if kind == "optimizer" else "        ") + line for line in body.splitlines(keepends=True))
    if kind == "optimizer":
        text = _OPTIMIZER.format(name=name, optimizer_body=lines)
    elif kind == "model":
        text = _MODEL.format(name=name, shard=inner)
    else:
        optimizer = migration.use(outcome, view, "torch.optim.Optimizer", view.tree)
        module = migration.use(outcome, view, "torch.nn.Module", view.tree)
        text = _ANY.format(name=name, optimizer=optimizer, module=module, optimizer_body=lines, shard=inner)
    _define(view, f"{shard}\n\n{text}", outcome)
    return name


def _define(view: FileView, text: str, outcome: Outcome) -> None:
    """Defines a helper once in a file, in front of its first function or class."""
    place = next(s for s in view.tree.body if any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in ast.walk(s)))
    outcome.patches.append(defined_before(view, place, (text,), "a function that models of FSDP2 need here"))


def _free(view: FileView, wanted: str) -> str:
    taken = {n.name for n in view.nodes(ast.FunctionDef, ast.ClassDef)} | {n.id for n in view.nodes(ast.Name)}
    return next(name for name in (wanted, *(f"{wanted}_{n}" for n in range(2, 100))) if name not in taken)
