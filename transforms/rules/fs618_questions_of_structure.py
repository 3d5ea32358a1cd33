"""Members named by text for ``operator``, and questions that only the wrapper around a model answers with yes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Wrapped
from ..findings import Level
from ..members import MEMBERS, UNIQUE_MEMBERS
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.passes import outside_name
from ..view import FileView

_GETTERS = ("operator.methodcaller", "operator.attrgetter")
_STRUCTURE = "torch.nn.Module.structure"
_SAME = "torch.nn.Module.is"
_FUNCTION = "torch.nn.Module.function"


def find(migration: Migration) -> Iterator[Site]:
    """Getters of the wrappers' members, tests for a child called ``module``, and tests whether a model is wrapped by identity."""
    for view in migration.views():
        for call in view.nodes(ast.Call):
            name = outside_name(view, call.func)
            if name in _GETTERS and _names_a_member(call):
                for group in migration.groups.all:
                    yield Site(view, call, str(name), "hazard", group, ())
        for mention in view.nodes(ast.Attribute):
            if mention.attr == "state_dict" and outside_name(view, mention) == "torch.nn.Module.state_dict":
                yield from _function(migration, view, mention)
        for test in view.nodes(ast.Compare):
            if len(test.ops) == 1 and isinstance(test.ops[0], (ast.In, ast.NotIn)):
                yield from _child(migration, view, test)
            elif len(test.ops) == 1 and not isinstance(test.comparators[0], ast.Constant):
                yield from _identity(migration, view, test)


def _function(migration: Migration, view: FileView, mention: ast.Attribute) -> Iterator[Site]:
    """``map(nn.Module.state_dict, models)``, or a call of it with a model; an override calls it for its own class."""
    call = view.parents[mention]
    if not isinstance(call, ast.Call) or call.func is not mention:
        for group in migration.groups.all:
            yield Site(view, mention, _FUNCTION, "hazard", group, ())
        return
    function = view.function(call)
    if isinstance(function, ast.FunctionDef) and function.name == mention.attr:
        return
    values = tuple(view.values(call.args[0])) if call.args else ()
    group = migration.groups.of(values)
    if group is not None:
        yield Site(view, mention, _FUNCTION, "hazard", group, values)


def _names_a_member(call: ast.Call) -> bool:
    first = call.args[0] if call.args else None
    text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
    name = text.partition(".")[0]
    return name in ("module", "state_dict", "load_state_dict", "no_sync") or name in UNIQUE_MEMBERS & MEMBERS


def _child(migration: Migration, view: FileView, test: ast.Compare) -> Iterator[Site]:
    """``"module" in dir(model)``, ``in model._modules``, ``in dict(model.named_children())``."""
    text, place = test.left, test.comparators[0]
    if not isinstance(text, ast.Constant) or text.value not in ("module", "_fsdp_wrapped_module"):
        return
    for node in ast.walk(place):
        if isinstance(node, (ast.Name, ast.Attribute)):
            values = tuple(view.values(node))
            group = migration.groups.of([v for v in values if isinstance(v, Wrapped)])
            if group is not None:
                yield Site(view, test, _STRUCTURE, "hazard", group, values)
                return


def _identity(migration: Migration, view: FileView, test: ast.Compare) -> Iterator[Site]:
    """``model is net`` or ``unwrap(model) is model``: a model and what wraps it, which become one object."""
    if not isinstance(test.ops[0], (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
        return
    sides = [_identified(view, side) for side in (test.left, test.comparators[0])]
    for wrapped, other in (sides, sides[::-1]):
        own, others = tuple(view.values(wrapped)), tuple(view.values(other))
        of_wrapper = [value for value in own if isinstance(value, Wrapped)]
        group = migration.groups.of(of_wrapper)
        if group is None or not any(value in group.raw for value in others):
            continue
        surely = len(of_wrapper) == len(own) and all(value in group.raw for value in others)
        if surely or _is_taken_from(view, other, view.text(wrapped)) or _is_taken_from(view, wrapped, view.text(other)):
            yield Site(view, test, _SAME, "hazard", group, own)
            return


def _identified(view: FileView, side: ast.expr) -> ast.expr:
    """What an operand stands for: the model for ``id(model)``."""
    of_identity = isinstance(side, ast.Call) and view.external(side.func) == "builtins.id" and len(side.args) == 1
    return side.args[0] if isinstance(side, ast.Call) and of_identity else side


def _is_taken_from(view: FileView, node: ast.expr, model: str) -> bool:
    """``unwrap(model)``, ``model.module``, ``getattr(model, "module", model)``, or a name that is bound to that alone."""
    if isinstance(node, ast.Name):
        stores = view.stores(view.function(node) or view.tree).get(node.id, [])
        bound = view.parents[stores[0]] if len(stores) == 1 else None
        return isinstance(bound, ast.Assign) and _is_taken_from(view, bound.value, model)
    if isinstance(node, ast.Attribute):
        return node.attr == "module" and view.text(node.value) == model
    if isinstance(node, ast.IfExp):
        return any(_is_taken_from(view, way, model) for way in (node.body, node.orelse))
    return isinstance(node, ast.Call) and any(view.text(argument) == model for argument in node.args)


def check(site: Site, migration: Migration) -> Outcome:
    if site.symbol in _GETTERS:
        message = f"{site.view.text(site.node)} reads a member of the wrapper by its name, out of sight of the migration"
        advice = "Write the attribute or the call out where the model is at hand."
    elif site.symbol == _FUNCTION:
        name = site.view.text(site.node)
        message = f"{name} takes the state of what it is handed, and of a sharded model this rank's shards only"
        advice = "Hand on a function that calls get_model_state_dict(model, options=…) instead."
    elif site.symbol == _SAME:
        message = "fully_shard shards a model in place, so that it and the wrapped model are one object: this is always the same"
        advice = "Ask isinstance(model, FSDPModule) instead."
    else:
        message = "a sharded model has no child for the model inside it: the answer becomes no, without an error"
        advice = "Ask isinstance(model, FSDPModule) instead."
    return Outcome(Level.MANUAL, message, advice, holds=True)


_HEAD = "import operator\n\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\nnet = build()\nmodel = DDP(net)\n"
_GETTER = _HEAD + 'state = operator.methodcaller("state_dict")(model)\n'
_METHOD = _HEAD.replace("import operator\n", "import torch\n") + "states = list(map(torch.nn.Module.state_dict, [model]))\n"
_IDENTITY = _HEAD.replace("import operator\n\n", "") + "rate = 0.2 if model is not net else 0.1\n"
_CHILD = _HEAD.replace("import operator\n\n", "") + 'rate = 0.2 if "module" in dir(model) else 0.1\n'

RULE = Rule(
    id="FS618",
    title="Questions of structure and identity",
    why=(
        "A wrapper is another object than its model and has it as a child; a sharded model is itself. Code that looks for "
        "the child, compares the two, or names members by text for operator gets another answer and goes on."
    ),
    symbols=(*_GETTERS, _STRUCTURE, _SAME, _FUNCTION),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",),
    examples=(
        Example(_GETTER, _GETTER, Level.MANUAL),
        Example(_METHOD, _METHOD, Level.MANUAL),
        Example(_IDENTITY, _IDENTITY, Level.MANUAL),
        Example(_CHILD, _CHILD, Level.MANUAL),
    ),
)
