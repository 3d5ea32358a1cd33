"""Functions that take the state of whatever they are handed or come upon, where nothing shows what that is.

A saver that is registered by class or name gets its models at run time: whether a sharded one is among them cannot
be seen, and of such a one it would save this rank's shards.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.facts import NOTHING
from ..analysis.values import Annotated, Constant, Opaque, Unknown, Value, Wrapped
from ..groups import Group
from ..introspection.plain import is_plain, like
from ..migration import Migration, files_holding
from ..sites import Site
from ..view import FileView
from .out_of_sight import asked_names, is_out_of_sight
from .reads import NOT_A_MODEL, hidden_uses, last_name, reads

_WRITES = frozenset({"save", "save_file", "save_model", "dump", "async_save"})


def states_of_strangers(migration: Migration) -> list[Site]:
    """Every ``argument.state_dict()`` of which nothing shows whose it is, also of objects that come from out of sight."""
    return migration.once("states of strangers", None, lambda: list(_find(migration)))


def optimizers_of_strangers(migration: Migration, method: str) -> list[Site]:
    """The same for optimizers: calls of ``state_dict`` or ``load_state_dict``."""
    return migration.once("optimizers of strangers", method, lambda: list(_find_optimizers(migration, method)))


def is_of_stranger(migration: Migration, site: Site) -> bool:
    """Whether a read or a load of state is one of them."""
    known = loads_of_strangers(migration) if site.member == "load_state_dict" else states_of_strangers(migration)
    return site in known or site in optimizers_of_strangers(migration, site.member)


def loads_of_strangers(migration: Migration) -> list[Site]:
    """Every ``argument.load_state_dict(…)`` of which nothing shows whose it is, beside a read of that kind in its file."""
    return migration.once("loads of strangers", None, lambda: list(_find_loads(migration)))


def is_read(migration: Migration, group: Group, *kinds: str) -> bool:
    """Whether a read of the group's own state is seen anywhere."""
    return any(read.kind in kinds and (read.group is group or read.group is None) for read in reads(migration))


def _find(migration: Migration) -> Iterator[Site]:
    kinds = {kind for group in migration.groups.all for kind in group.kinds}
    for view, function, call in _handed_over(migration, "state_dict"):
        names = (last_name(function.value), *asked_names(view, function.value))
        if any(map(NOT_A_MODEL.search, names)) or is_plain(view, call, like(function.value), kinds):
            continue
        if not _is_plain_fixture(migration, view, function.value):
            yield Site(view, function, "torch.nn.Module.state_dict", "hazard", None, (), call)


def _find_loads(migration: Migration) -> Iterator[Site]:
    hidden = {site.node for site in hidden_uses(migration)}
    files = {site.view for site in states_of_strangers(migration) if site.node not in hidden and is_written(site)}
    for view, function, call in _handed_over(migration, "load_state_dict"):
        if view in files and len(call.args) == 1 and not NOT_A_MODEL.search(last_name(function.value)):
            yield Site(view, function, "torch.nn.Module.load_state_dict", "hazard", None, (), call)


def _find_optimizers(migration: Migration, method: str) -> Iterator[Site]:
    for view, function, call in _handed_over(migration, method):
        if "optim" in last_name(function.value).lower():
            yield Site(view, call, f"torch.optim.Optimizer.{method}", "hazard", None, (), call)


def _handed_over(migration: Migration, method: str) -> Iterator[tuple[FileView, ast.Attribute, ast.Call]]:
    """Calls of a method of an argument, or of an object from out of sight, of which nothing is known."""
    if not migration.groups.all:
        return
    known = {site.node for sites in migration.sites.values() for site in sites}
    for number, call in enumerate(migration.program.flow.calls):
        if call.method != method or not all(_is_anything(v) for v in migration.program.flow.values_of(call.function)):
            continue
        view, node = migration.program.call_node(number)
        function = node.func
        if not isinstance(function, ast.Attribute) or function in known:
            continue
        is_made_outside = any(isinstance(v, Opaque) for v in migration.program.flow.values_of(call.function))
        if is_out_of_sight(view, function.value) or (_is_argument(view, function.value) and not is_made_outside):
            yield view, function, node


def _is_anything(value: Value) -> bool:
    """Whether a value says nothing of what an object is; code outside that is no part of torch may give back anything."""
    return isinstance(value, (Constant, Unknown)) or (isinstance(value, Opaque) and not value.name.startswith("torch."))


def _is_argument(view: FileView, receiver: ast.expr) -> bool:
    """Whether a receiver is a parameter of its function that gets no other value there."""
    function = view.function(receiver)
    if not isinstance(receiver, ast.Name) or function is None:
        return False
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    if receiver.id not in names or receiver.id in ("self", "cls"):
        return False
    return not any(
        isinstance(n, ast.Name) and n.id == receiver.id and isinstance(n.ctx, ast.Store) for n in ast.walk(function)
    )


def _is_plain_fixture(migration: Migration, view: FileView, receiver: ast.expr) -> bool:
    """Whether pytest passes the model, and no fixture of that name wraps one."""
    function = view.function(receiver)
    files, flow = migration.program.files, migration.program.flow
    if not isinstance(receiver, ast.Name) or not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    if not any(item.module.partition(".")[0] == "pytest" for item in files[view.index].imports):
        return False
    decorators = [d.func if isinstance(d, ast.Call) else d for d in function.decorator_list]
    if not function.name.startswith("test_") and not any(view.external(d) == "pytest.fixture" for d in decorators):
        return False
    given = [
        value
        for file, facts in enumerate(files)
        for fixture in facts.functions
        if fixture.name == receiver.id and fixture.returns != NOTHING
        for value in flow.values_of(fixture.returns + flow.variable_offsets[file])
    ]
    return not any(isinstance(value, (Wrapped, Annotated)) for value in migration.program.elements(given))


def is_registered_for_plain(migration: Migration, site: Site) -> bool:
    """Whether a function is nothing but a value in dictionaries, under types that hold no sharded tensors.

    ``SAVERS[torch.optim.lr_scheduler.CyclicLR] = save`` says what comes to it.
    """
    function = site.view.function(site.node)
    value = migration.program.function_value(site.view, function) if function is not None else None
    if value is None:
        return False
    number = migration.program.flow.ids[value]
    mentions = [
        (view, node)
        for index in sorted(files_holding(migration.program, {number}))
        for view in (migration.program.view(index),)
        for node in view.nodes(ast.Name, ast.Attribute)
        if isinstance(node.ctx, ast.Load) and view.values(node) == [value]
    ]
    return bool(mentions) and all(_is_under_plain_type(view, node) for view, node in mentions)


def _is_under_plain_type(view: FileView, node: ast.expr) -> bool:
    parent, key = view.parents[node], None
    if isinstance(parent, ast.Assign) and parent.value is node and isinstance(parent.targets[0], ast.Subscript):
        key = parent.targets[0].slice if len(parent.targets) == 1 else None
    elif isinstance(parent, ast.Dict) and node in parent.values:
        key = parent.keys[parent.values.index(node)]
    name = view.external(key) or "" if key is not None else ""
    return name.startswith("torch.optim.lr_scheduler.") or name.endswith(".GradScaler")


def is_returned(view: FileView, call: ast.Call) -> bool:
    """Whether a read is what its function returns, perhaps on one side of a choice."""
    node: ast.AST = call
    while isinstance(view.parents[node], ast.IfExp):
        node = view.parents[node]
    around = view.parents[node]
    return isinstance(around, ast.Return) or (isinstance(around, ast.Lambda) and around.body is node)


def is_written(site: Site) -> bool:
    """Whether the function of a read also writes something to disk, or returns what it read to one that may."""
    view, call = site.view, site.call
    scope = view.function(site.node) or view.tree
    called = [last_name(node.func) for node in ast.walk(scope) if isinstance(node, ast.Call)]
    if any(name in _WRITES or name.startswith("save_") for name in called):
        return True
    if isinstance(site.node, ast.Attribute) and is_out_of_sight(view, site.node.value):
        # the states of many objects go into a container, which is returned when it is full
        return any(isinstance(node, (ast.Return, ast.Yield)) and node.value is not None for node in ast.walk(scope))
    return call is not None and is_returned(view, call)
