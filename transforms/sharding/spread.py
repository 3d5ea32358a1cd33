"""Keyword dictionaries: ``FSDP(model, **kwargs)`` is read where the dictionary is written out."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from ..findings import Level
from ..migration import Migration
from ..rule import Outcome
from ..sites import Site
from ..text.patches import Part, Patch
from ..text.spelling import quoted
from ..view import FileView
from .constructor import Constructor, check_keyword, constructor_of
from .plan import Code, Name, code

_WHY = "the arguments of fully_shard in place of those of FSDP1"
BECOMES = {
    "process_group": ("mesh",),
    "device_mesh": ("mesh",),
    "sharding_strategy": ("reshard_after_forward", "mesh"),
    "mixed_precision": ("mp_policy",),
    "cpu_offload": ("offload_policy",),
}
"""Arguments of FSDP1 that are arguments of ``fully_shard`` under other names."""
NEEDS_STATEMENTS = frozenset(
    {"auto_wrap_policy", "param_init_fn", "ignored_modules", "ignored_states", "ignored_parameters"}
)
"""Arguments that become statements about the model."""


@dataclass
class Dictionary:
    """A dictionary of arguments: where it is made, what it holds, and how many wraps take it."""

    display: ast.expr
    entries: dict[str, ast.expr]
    statements: list[ast.stmt] = field(default_factory=list)
    """The assignment and the additions; empty where the dictionary stands in the call itself."""
    wraps: int = 1


def dictionary_of(
    view: FileView, keyword: ast.keyword, is_wrap: Callable[[ast.AST], bool]
) -> Dictionary | None:
    """The dictionary behind a ``**``; None where it cannot be read.

    Read are ``**{…}``, ``**dict(…)``, and a local name that is bound once, filled in the same block, and used
    for nothing but wraps.
    """
    direct = entries_of(view, keyword.value)
    if direct is not None:
        return Dictionary(keyword.value, direct)
    if not isinstance(keyword.value, ast.Name):
        return None
    return local_dictionary(view, keyword.value, lambda mention: is_spread(view, mention, is_wrap))


def entries_of(view: FileView, node: ast.expr) -> dict[str, ast.expr] | None:
    """The entries of a dictionary that an expression writes out, by name."""
    if isinstance(node, ast.Dict):
        keys = [k.value if isinstance(k, ast.Constant) else None for k in node.keys]
        if all(isinstance(key, str) for key in keys):
            return {str(key): value for key, value in zip(keys, node.values, strict=True)}
    if isinstance(node, ast.Call) and view.external(node.func) == "builtins.dict" and not node.args:
        named = {k.arg: k.value for k in node.keywords if k.arg is not None}
        return named if len(named) == len(node.keywords) else None
    return None


def local_dictionary(view: FileView, use: ast.Name, is_use: Callable[[ast.Name], bool]) -> Dictionary | None:
    """The dictionary behind a local name that is bound once, filled in the same block, and otherwise only put to use."""
    scope = view.function(use) or view.tree
    found: Dictionary | None = None
    block: list[ast.stmt] = []
    names = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == use.id]
    for name in sorted(names, key=lambda n: (n.lineno, n.col_offset)):
        statement = view.statement(name)
        if view.function(name) is not view.function(use):
            return None
        if found is None:
            entries = entries_of(view, statement.value) if isinstance(statement, ast.Assign) else None
            if entries is None or not isinstance(statement, ast.Assign) or statement.targets != [name]:
                return None
            found = Dictionary(statement.value, entries, [statement], 0)
            block, _ = view.block_of(statement)
        elif is_use(name):
            found.wraps += 1
        elif statement in block and not found.wraps and (item := _item(statement, name)) is not None:
            found.entries[item[0]] = item[1]
            found.statements.append(statement)
        else:
            return None
    whole = found is not None and all(view.stands_alone(statement) for statement in found.statements)
    return found if whole and any(a in block for a in [view.statement(use), *view.ancestors(use)]) else None


def is_spread(view: FileView, name: ast.Name, is_wrap: Callable[[ast.AST], bool]) -> bool:
    """Whether a mention of a name is ``**name`` in a wrap."""
    parent = view.parents[name]
    return isinstance(parent, ast.keyword) and parent.arg is None and is_wrap(view.parents[parent])


def _item(statement: ast.stmt, mention: ast.Name) -> tuple[str, ast.expr] | None:
    """``kwargs["name"] = value``."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    if (
        isinstance(target, ast.Subscript)
        and target.value is mention
        and isinstance(target.slice, ast.Constant)
    ):
        return (target.slice.value, statement.value) if isinstance(target.slice.value, str) else None
    return None


def mesh_items(view: FileView, keyword: ast.keyword, is_wrap: Callable[[ast.AST], bool]) -> list[ast.Assign]:
    """The statements that put a mesh into a local dictionary which starts empty and holds nothing else."""
    use = keyword.value
    if not isinstance(use, ast.Name):
        return []
    scope = view.function(use) or view.tree
    names = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == use.id]
    found: list[ast.Assign] = []
    starts = 0
    for name in names:
        statement = view.statement(name)
        item = _item(statement, name)
        if view.function(name) is not view.function(use):
            return []
        if isinstance(statement, ast.Assign) and statement.targets == [name] and entries_of(view, statement.value) == {}:
            starts += 1
        elif isinstance(statement, ast.Assign) and item is not None and item[0] == "device_mesh":
            found.append(statement)
        elif not is_spread(view, name, is_wrap):
            return []
    return found if starts == 1 else []


def keep_mesh(constructor: Constructor, keyword: ast.keyword, items: list[ast.Assign]) -> None:
    """The dictionary goes on to ``fully_shard``, with the mesh under its new name and any other mesh in its place."""
    from .meshes import name_mesh_dimensions

    view, plan = constructor.view, constructor.plan
    for statement in items:
        target = statement.targets[0]
        assert isinstance(target, ast.Subscript)
        constructor.patches.append(view.replace(target.slice, quoted(view, "mesh"), _WHY))
        name_mesh_dimensions(constructor, view.values(statement.value))
    other = plan.arguments.pop("mesh", None)
    if other is not None:
        plan.before.append(code(view.keep(keyword.value), f".setdefault({quoted(view, 'mesh')}, ", other, ")"))
    plan.extras.append(code("**", view.keep(keyword.value)))


def settle(constructor: Constructor, keyword: ast.keyword, dictionary: Dictionary) -> None:
    """Decides where the arguments of a dictionary go: into the calls, or, for several wraps, back into it."""
    view, plan = constructor.view, constructor.plan
    if dictionary.wraps < 2 or not _fits(constructor, dictionary):
        constructor.patches.extend(
            view.delete(s, "its entries go into the calls") for s in dictionary.statements
        )
        return
    keys = [key for name in dictionary.entries for key in BECOMES.get(name, ()) if key in plan.arguments]
    entries = [(key, plan.arguments.pop(key)) for key in dict.fromkeys(keys)]
    plan.extras.append(code("**", view.keep(keyword.value)))
    constructor.patches.append(rewritten(view, dictionary, entries))


def _fits(constructor: Constructor, dictionary: Dictionary) -> bool:
    """Whether each entry becomes at most an entry, with no statement of its own."""
    plan = constructor.plan
    prepared = plan.before or plan.unit_arguments or plan.root_arguments or len(dictionary.statements) > 1
    return not prepared and not NEEDS_STATEMENTS & dictionary.entries.keys()


def rewritten(view: FileView, dictionary: Dictionary, entries: list[tuple[str, Code]]) -> Patch:
    """The dictionary with other entries, written as it was."""
    display = dictionary.display
    opening, mark, closing = ("{", '"', "}") if isinstance(display, ast.Dict) else ("dict(", "", ")")
    joint = ": " if isinstance(display, ast.Dict) else "="
    lines = "\n" in view.text(display)
    indent = view.indent(display)
    before, between = (f"\n{indent}    ", f",\n{indent}    ") if lines else ("", ", ")
    parts: list[Part] = [opening]
    for number, (key, value) in enumerate(entries):
        parts.append(f"{between if number else before}{mark}{key}{mark}{joint}")
        parts.extend(part for part in value if not isinstance(part, Name))
    parts.append((f",\n{indent}" if lines and entries else "") + closing)
    return view.replace(display, parts, _WHY)


def check_spread(site: Site, migration: Migration) -> Outcome:
    """A dictionary that could be read is part of the wrap; any other holds the wrap back."""
    assert site.call is not None and site.keyword is not None
    if site.keyword.arg is not None:
        return check_keyword(site, migration)
    return spread_outcome(site, constructor_of(migration, site.view, site.call, site.group))


def spread_outcome(site: Site, constructor: Constructor) -> Outcome:
    """The outcome of a ``**`` in a constructor call."""
    assert site.keyword is not None
    text = site.view.text(site.keyword.value)
    if site.keyword in constructor.spread:
        return Outcome(
            Level.MANUAL,
            f"what **{text} holds is not written out where the tool can read it",
            "Give the arguments by name: sharding_strategy, mixed_precision and auto_wrap_policy decide how the "
            "model trains.",
            holds=True,
        )
    if any(site.keyword is keyword for keyword, _ in constructor.with_mesh):
        message = f"**{text} goes to fully_shard, with the mesh under its new name"
        group = constructor.arguments.get("process_group")
        if group is not None and not group.is_none:
            message += "; where process_group is given as well, FSDP1 raised, and now the mesh counts without a word"
        return Outcome(Level.REVIEW, message)
    if site.keyword in constructor.opened:
        return Outcome(
            Level.REVIEW,
            f"**{text} comes from outside these files and goes to fully_shard as it is: arguments of FSDP1 in it raise a "
            "TypeError there",
            "Write fully_shard's arguments into the configuration (mesh, reshard_after_forward, mp_policy, "
            "offload_policy), and what has none into the code: units in a loop that calls fully_shard on each, the "
            "broadcast of sync_module_states before it.",
        )
    if site.keyword in constructor.unused:
        return Outcome(
            Level.REVIEW,
            f"nothing in this repository passes anything in **{text}; what others pass is refused now",
        )
    return constructor.together(
        constructor.from_dictionaries, f"the arguments in **{text} become those of fully_shard"
    )
