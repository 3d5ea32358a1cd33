"""size_based_auto_wrap_policy as a short function that shards what the policy would have wrapped."""

from __future__ import annotations

import ast

from ..findings import Level
from ..migration import Migration
from ..rule import Need, Outcome
from ..text.definitions import defined_before
from ..text.imports import spelling
from ..text.patches import Patch
from ..view import FileView
from .constructor import Argument, Constructor
from .plan import FULLY_SHARD, MODEL, Code, Name, code
from .policy_definitions import NO_POLICIES, Definition

HELPER = '''\
def shard_large_modules(module, min_num_params, **kwargs):
    """Shards submodules of at least this many parameters, innermost first; returns how many are in units."""
    sharded = 0
    for child in module.children():
        num_params = sum(parameter.numel() for parameter in child.parameters())
        if num_params < min_num_params or isinstance(child, {attention}):
            continue
        inner = shard_large_modules(child, min_num_params, **kwargs)
        if num_params - inner >= min_num_params and not isinstance(child, ({list}, {dict})):
            {shard}(child, **kwargs)
            inner = num_params
        sharded += inner
    return sharded
'''
_SYMBOLS = {
    "attention": "torch.nn.MultiheadAttention",
    "list": "torch.nn.ModuleList",
    "dict": "torch.nn.ModuleDict",
    "shard": FULLY_SHARD,
}
_PICKS = (
    "shard_large_modules picks the same modules as the policy did: children first, containers and the inside of "
    "MultiheadAttention left out"
)


def by_size(constructor: Constructor, argument: Argument, found: list[Definition], optional: bool) -> Outcome:
    """The units of a wrap whose policies all go by size."""
    if any(_names_own_classes(definition) for definition in found):
        return Outcome(
            Level.MANUAL,
            "this size-based policy names its own leaf or container classes",
            "Write the recursion as a function, and call fully_shard where the policy would have wrapped.",
            holds=True,
        )
    definition = found[0] if len(found) == 1 and not optional else None
    if definition is not None and definition.node is argument.node:
        constructor.plan.sharding_call = _call(argument.view, definition)
    elif definition is not None and (statement := _only_for(argument, definition)) is not None:
        constructor.plan.sharding_call = _call(argument.view, definition)
        constructor.patches.append(argument.view.delete(statement, "the policy goes into the call"))
    else:
        policy = argument.keep()
        constructor.plan.sharding_call = code(policy, "(", MODEL)
        constructor.plan.sharding_condition = code(policy, " is not None") if optional else None
        return Outcome(Level.REVIEW, _PICKS)
    patch, needs = size_helper(constructor.migration, argument.view, constructor.call)
    constructor.patches.append(patch)
    constructor.plan.needs.extend(needs)
    return Outcome(Level.SAFE, _PICKS)


def _call(view: FileView, definition: Definition) -> Code:
    """``shard_large_modules(model, min_num_params=…``, still open for the arguments of fully_shard."""
    return code("shard_large_modules(", MODEL, ", min_num_params=", _size(view, definition))


def _size(view: FileView, definition: Definition) -> Code:
    return (view.keep(definition.argument),) if definition.argument is not None else ("100_000_000",)


def _names_own_classes(definition: Definition) -> bool:
    call = definition.node
    return isinstance(call, ast.Call) and any(
        k.arg in ("force_leaf_modules", "exclude_wrap_modules") for k in call.keywords
    )


def _only_for(argument: Argument, definition: Definition) -> ast.stmt | None:
    """The assignment of a local policy that nothing but this wrap uses."""
    view = argument.view
    if definition.view is not view or not isinstance(argument.node, ast.Name):
        return None
    statement = view.statement(definition.node)
    scope = view.function(argument.node) or view.tree
    if scope is not (view.function(statement) or view.tree) or not isinstance(statement, ast.Assign):
        return None
    name = argument.node.id
    uses = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name]
    plain = (
        statement.value is definition.node and len(statement.targets) == 1 and view.stands_alone(statement)
    )
    return statement if plain and len(uses) == 2 else None


def only_for_a_wrap(migration: Migration, definition: Definition) -> bool:
    """Whether a definition goes into the call that takes the place of its wrap."""
    for group in migration.groups.all:
        for wrap in group.wraps:
            for keyword in wrap.node.keywords:
                argument = Argument("auto_wrap_policy", wrap.view, keyword.value)
                if (
                    keyword.arg == argument.name
                    and definition.view is wrap.view
                    and _only_for(argument, definition)
                ):
                    return True
    return False


def size_definition(migration: Migration, definition: Definition) -> Outcome:
    """The finding of a size-based policy that is made apart from its wrap."""
    view, node = definition.view, definition.node
    if only_for_a_wrap(migration, definition):
        return Outcome(Level.SAFE, "the policy goes into the call at the wrap")
    patch, needs = size_helper(migration, view, node)
    outcome = Outcome(Level.REVIEW, _PICKS, patches=[patch], needs=needs)
    call = isinstance(node, ast.Call)
    partial = (
        view.text(node.func) if isinstance(node, ast.Call) else spelling(view, "functools.partial", node)
    )
    if not call:
        outcome.needs.append(Need(view, "functools.partial", node))
    parts = code(f"{partial}(shard_large_modules, min_num_params=", _size(view, definition), ")")
    texts = [part for part in parts if not isinstance(part, Name)]
    outcome.patches.append(view.replace(node, texts, NO_POLICIES))
    return outcome


def size_helper(migration: Migration, view: FileView, node: ast.AST) -> tuple[Patch, list[Need]]:
    """The function, put once into a file: before the definition, or the code, that uses it first."""
    return migration.once("size helper", view.path, lambda: _size_helper(view, node))


def _size_helper(view: FileView, node: ast.AST) -> tuple[Patch, list[Need]]:
    top = next(a for a in [node, *view.ancestors(node)] if view.parents[a] is view.tree)
    assert isinstance(top, ast.stmt)
    names = {name: spelling(view, symbol, top) for name, symbol in _SYMBOLS.items()}
    return defined_before(view, top, (HELPER.format(**names),), "what the size-based policy did"), [
        Need(view, s, top) for s in _SYMBOLS.values()
    ]
