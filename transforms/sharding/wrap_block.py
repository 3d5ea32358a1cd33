"""``with enable_wrap(wrapper_cls=FSDP, …):`` becomes a function that shards, and each ``wrap(module)`` a call of it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from ..analysis.symbols import FSDP1, FSDP_MODULE, WRAP
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Outcome
from ..sites import Site
from ..text.dedent import can_unwrap, unwrapped
from ..text.patches import Part, Patch
from ..view import FileView
from .constructor import Constructor, constructor_of
from .placement import path_text, shard_function
from .plan import MODEL, Code, code, length, written
from .wrap_blocks import inner_wrap, model_of, outer_wrap, settings_of, wraps_in

_WHY = "wrap becomes fully_shard on the module itself"
_WIDTH = 100


@dataclass
class Way:
    """Calls that wrap alike: with the same arguments of their own, once or doubled."""

    constructor: Constructor
    calls: list[ast.Call] = field(default_factory=list)


def check_block(site: Site, migration: Migration) -> Outcome:
    """The finding of an ``enable_wrap`` call, which carries the rewrite of its whole block."""
    assert site.call is not None
    view, settings = site.view, site.call
    problem = _problem(view, settings) or _called_elsewhere(migration)
    if problem:
        return Outcome(
            Level.MANUAL,
            f"the wraps of this block cannot be told: {problem}",
            "Call fully_shard on the modules that wrap() is given, from the leaves up; "
            "wrap(wrap(x)) is one fully_shard(x, reshard_after_forward=True).",
            holds=True,
        )
    ways = _ways(migration, view, settings, site.group)
    outcome = Outcome(Level.SAFE, "the modules that are wrapped in this block are sharded where they are")
    notes: dict[str, None] = {}
    for way in ways:
        joined = way.constructor.together(list(way.constructor.outcomes), outcome.message)
        if joined.level is Level.MANUAL or way.constructor.spread:
            return joined
        outcome.level = max(outcome.level, joined.level, key=lambda level: level.rank)
        notes.update(dict.fromkeys(joined.message.split("; ")))
    given = _given_by_methods(view, ways)
    if len(given) > 1:
        outcome.level = max(outcome.level, Level.REVIEW, key=lambda level: level.rank)
        notes[f"what {' and '.join(given)} give may be one module (tied embeddings), which is sharded once"] = None
    outcome.message = "; ".join(notes)
    functions = _rewrite_calls(view, ways, outcome, len(given) > 1)
    outcome.patches.extend(_without_block(view, settings, functions))
    for way in ways:
        outcome.patches.extend(way.constructor.patches)
        outcome.needs.extend(way.constructor.plan.needs)
    return outcome


def check_wrap(site: Site, migration: Migration) -> Outcome:
    """The finding of a call of ``wrap``, or of any other mention of it."""
    if site.call is None or settings_of(site.view, site.call) is None:
        return Outcome(
            Level.MANUAL,
            "wrap takes its arguments from whichever enable_wrap block the program is in here, if any",
            "Call fully_shard on the module where the model is complete, from the leaves up.",
            holds=True,
        )
    inner = outer_wrap(site.view, site.call) is not None
    return Outcome(Level.SAFE, "the module is sharded where it is", silent=inner)


def check_keyword(site: Site, migration: Migration) -> Outcome:
    """The finding of one argument, of the block or of a single ``wrap``."""
    assert site.call is not None and site.keyword is not None
    name = site.keyword.arg
    wraps = [site.call] if site.symbol.startswith(f"{WRAP}(") else wraps_in(site.view, site.call)
    if not wraps or name in ("module", "wrapper_cls"):
        return Outcome(Level.SAFE, "part of the block", silent=True)
    if settings_of(site.view, wraps[0]) is None:
        return Outcome(Level.SAFE, "part of the wrap", silent=True)
    constructor = constructor_of(migration, site.view, wraps[0], site.group)
    if name is None:
        from .spread import spread_outcome

        return spread_outcome(site, constructor)
    return constructor.outcomes.get(name, Outcome(Level.SAFE, "part of the wrap", silent=True))


def is_wrapper_of_block(site: Site) -> bool:
    """Whether a mention of FSDP1 tells an ``enable_wrap`` call what to wrap with."""
    keyword = site.view.parents[site.node]
    return isinstance(keyword, ast.keyword) and keyword.arg == "wrapper_cls"


def _problem(view: FileView, settings: ast.Call) -> str:
    """Why a block cannot be taken apart; empty if it can."""
    item, statement = view.parents[settings], view.statement(settings)
    wrapper = next((k.value for k in settings.keywords if k.arg == "wrapper_cls"), None)
    if not isinstance(item, ast.withitem) or not isinstance(statement, ast.With) or item.optional_vars is not None:
        return "enable_wrap is not entered by a plain with statement"
    if wrapper is None or view.external(wrapper) != FSDP1:
        return "what it wraps with may be another class than FullyShardedDataParallel"
    wraps = wraps_in(view, settings)
    if not wraps:
        return "wrap is called in code that cannot be seen from here"
    if len(statement.items) == 1 and not can_unwrap(view, statement):
        return "its body cannot be moved to the left"
    for call in wraps:
        if len(call.args) > 1 or model_of(call) is None or any(k.arg is None for k in call.keywords):
            return "a call of wrap does not name its arguments"
        inner = inner_wrap(view, call)
        if inner is not None and (_own_text(view, inner) != _own_text(view, call) or inner_wrap(view, inner)):
            return "a module is wrapped twice, in different ways"
    return ""


def _called_elsewhere(migration: Migration) -> str:
    """A call of ``wrap`` outside all blocks would no longer wrap anything, without an error."""
    for sites in migration.sites.values():
        for site in sites:
            if site.symbol != WRAP or site.role == "import":
                continue
            if site.call is None or settings_of(site.view, site.call) is None:
                return f"wrap is used outside of it as well, at {site.view.path}:{site.view.line(site.node)}"
    return ""


def _ways(migration: Migration, view: FileView, settings: ast.Call, group: Group | None) -> list[Way]:
    found: dict[int, Way] = {}
    for call in wraps_in(view, settings):
        if outer_wrap(view, call) is None:
            constructor = constructor_of(migration, view, call, group)
            found.setdefault(id(constructor), Way(constructor)).calls.append(call)
    return list(found.values())


def _own_text(view: FileView, call: ast.Call) -> list[str]:
    return sorted(view.text(keyword) for keyword in call.keywords if keyword.arg != "module")


# --- text ---------------------------------------------------------------------------------------------------


def _given_by_methods(view: FileView, ways: list[Way]) -> list[str]:
    """Calls whose results are wrapped, each once: two of one object may give the same module."""
    models = [_innermost(view, call) for way in ways for call in way.calls]
    found = [
        model for model in models if isinstance(model, ast.Call) and isinstance(model.func, ast.Attribute) and not model.args
    ]
    owners = [view.text(model.func.value) for model in found if isinstance(model.func, ast.Attribute)]
    return [f"{view.text(m.func)}()" for m, owner in zip(found, owners, strict=True) if owners.count(owner) > 1]


def _rewrite_calls(view: FileView, ways: list[Way], outcome: Outcome, may_come_again: bool) -> list[Code]:
    """Puts a call in the place of every ``wrap``; returns the functions that they call, if they need any."""
    functions: list[Code] = []
    for way in ways:
        plan = way.constructor.plan
        statements = plan.statements()
        if may_come_again:
            module = plan.name(FSDP_MODULE)
            statements.insert(0, code("if isinstance(", MODEL, f", {module}):\n    return ", MODEL))
        tail = _one_call(view, way, statements)
        if tail is not None:
            for call in way.calls:
                outcome.patches.append(_in_place(view, call, plan.name(plan.function), tail))
            continue
        name = view.generated_name(way.calls[0], "shard")
        functions.append(shard_function(plan, name, "model", statements))
        for call in way.calls:
            outcome.patches.append(view.replace(call, (f"{name}(", view.keep(_innermost(view, call)), ")"), _WHY))
    return functions


def _one_call(view: FileView, way: Way, statements: list[Code]) -> Code | None:
    """What comes behind the module where ``fully_shard(module, …)`` alone does it, on lines that are not too long."""
    if len(statements) != 1 or way.constructor.plan.has_units:
        return None
    line = statements[0]
    tail = line[line.index(MODEL) + 1 :]
    texts = [part for part in tail if isinstance(part, str)]
    if len(texts) != len(tail) or any("\n" in text for text in texts):
        return None
    lines = [len(view.source.lines[call.lineno - 1].rstrip()) - len("wrap(model)") for call in way.calls]
    return tail if max(lines) + length(view, line) <= _WIDTH else None


def _in_place(view: FileView, call: ast.Call, function: str, tail: Code) -> Patch:
    model = _innermost(view, call)
    parts: list[Part] = [f"{function}(", view.keep(model), *(part for part in tail if isinstance(part, str))]
    statement = view.statement(call)
    if isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1:
        path = path_text(view, model)
        if path is not None and path == view.text(statement.targets[0]):
            return view.replace(statement, parts, _WHY)
    return view.replace(call, parts, _WHY)


def _innermost(view: FileView, call: ast.Call) -> ast.expr:
    model = model_of(inner_wrap(view, call) or call)
    assert model is not None
    return model


def _follows_code(view: FileView, statement: ast.stmt) -> bool:
    """Whether the line above a statement is one of the same block, so that a function wants space to it."""
    above = view.source.lines[statement.lineno - 2].strip()
    return bool(above) and not above.startswith("#") and view.block_of(statement)[1] > 0


def _without_block(view: FileView, settings: ast.Call, functions: list[Code]) -> list[Patch]:
    statement = view.statement(settings)
    assert isinstance(statement, ast.With)
    indent = view.indent(statement)
    before: list[Part] = []
    for function in functions:
        before.extend((indent, *written([function], "model", indent), "\n\n"))
    if functions and _follows_code(view, statement):
        before.insert(0, "\n")
    if len(statement.items) == 1:
        return [unwrapped(view, statement, _WHY, before)]
    kept = [item for item in statement.items if item.context_expr is not settings]
    parts: list[Part] = []
    for item in kept:
        last = item.optional_vars or item.context_expr
        begin, end = view.source.span(item.context_expr)[0], view.source.span(last)[1]
        parts.extend((", " if parts else "", view.source.text[begin:end]))
    first, final = statement.items[0], statement.items[-1]
    begin, end = view.source.span(first.context_expr)[0], view.source.span(final.optional_vars or final.context_expr)[1]
    return [view.insert_before(statement, before, _WHY), Patch(view.path, begin, end, tuple(parts), _WHY)]
