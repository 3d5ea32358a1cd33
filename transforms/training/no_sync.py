"""``no_sync`` in the nine ways in which it is written, and what each becomes."""

from __future__ import annotations

import ast

from ..analysis.scopes import dotted_path
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Outcome
from ..sites import Site
from ..text.dedent import can_unwrap, unwrapped
from ..text.patches import Part, Patch
from ..view import FileView
from .conditions import is_known, may_meet_ddp, needs_guard, negated, negated_all, only_where_sharded, split_guard
from .gradient_sync import WHY, as_helper, in_try, stays_unsharded, switch, without_item
from .own_gradients import uses_own_gradients
from .passes import (
    BACKWARD,
    FORWARD,
    called_name,
    calls_in,
    gives_windows_up,
    has_switch,
    holds_no_sync,
    leaves_early,
    other_backward,
    outside_name,
    passes_in,
    reduces_by_hand,
)

_NO_BACKWARD = (
    "no backward of this forward alone is seen behind it, and FSDP2 reads the switch in the backward: where forwards "
    "outside of no_sync share that backward, DDP reduced its gradients"
)

_NULL = ("contextlib.nullcontext", "contextlib.ExitStack", "contextlib.suppress")


def rewritten(site: Site, migration: Migration) -> Outcome:
    """What a use of ``no_sync`` becomes; windows that are given up half-way are pointed out."""
    outcome = _rewritten(site, migration)
    if outcome.patches and reduces_by_hand(site.view, site.node):
        return _manual(
            "gradients are reduced by hand near it: behind a backward without sync FSDP2 keeps them to itself, p.grad stays "
            "None, and the loop would find nothing to reduce and raise nothing"
        )
    if outcome.patches and uses_own_gradients(site.view, site.node):
        return _manual(
            "each rank uses the gradients of this pass alone, or zeroes them, before a pass with sync adds to them: behind a "
            "backward without sync FSDP2 keeps them to itself, p.grad stays None, and zero_grad does not reach them",
            _OWN_GRADIENTS,
        )
    if outcome.patches and not site.certain and needs_guard(site, site.node) and not may_meet_ddp(site, site.node):
        outcome.message += "; a model that other code leaves under DDP would reduce its gradients in every micro-batch"
    if outcome.patches and gives_windows_up(site.view, site.node):
        outcome.level = Level.REVIEW
        outcome.message += (
            "; a window that is given up half-way (as by the branch near it) leaves its gradients in FSDP2, where "
            "zero_grad does not reach them: they would be added to the next window"
        )
    return outcome


def _rewritten(site: Site, migration: Migration) -> Outcome:
    """Finds the form and rewrites it; a form that nothing simpler fits gets a restoring context manager."""
    if not isinstance(site.node, ast.Attribute):
        return _manual("it is not read off a model")
    if not is_known(site, migration):
        return _manual("nothing in this code wraps the model, so whoever passes it decides what it is")
    view = site.view
    if may_meet_ddp(site, site.node):
        outcome = Outcome(Level.REVIEW, "a context manager over the switch takes the place of no_sync, which models of DDP keep")
        as_helper(site, migration, outcome, site.node.value)
        return outcome
    expression: ast.expr = site.call or site.node
    choice = view.parents[expression]
    subject = choice if isinstance(choice, ast.IfExp) and expression is not choice.test else expression
    if isinstance(subject, ast.IfExp) and not _is_null(view, _other_arm(subject, expression)):
        return _helper(site, migration)
    parent = view.parents[subject]
    if isinstance(parent, ast.withitem) and site.call is not None:
        statement = view.parents[parent]
        if isinstance(statement, ast.With) and parent.optional_vars is None:
            return _with(site, migration, statement, parent, subject)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        outcome = _assigned(site, migration, parent)
        if outcome is not None:
            return outcome
    return _helper(site, migration)


def _receiver(site: Site) -> ast.expr:
    assert isinstance(site.node, ast.Attribute)
    return site.node.value


def _other_arm(choice: ast.IfExp, expression: ast.expr) -> ast.expr:
    return choice.orelse if expression is choice.body else choice.body


def _is_null(view: FileView, node: ast.expr) -> bool:
    """``nullcontext()``, ``nullcontext`` or a function that gives one."""
    named = node.func if isinstance(node, ast.Call) else node
    return outside_name(view, named) in _NULL and not (isinstance(node, ast.Call) and node.args)


def _set_by(site: Site, migration: Migration, outcome: Outcome, value: ast.expr, at: ast.stmt) -> list[Part]:
    """The call that a context expression becomes: no_sync, a null context, or a choice between the two."""
    view = site.view
    indent = view.indent(at)
    if not isinstance(value, ast.IfExp):
        calls = _calls(site, ("False",) if _kind(view, value) == "off" else ("True",), indent)
        return only_where_sharded(site, migration, outcome, calls, indent, at)
    if _kind(view, value.orelse) == "off":
        return only_where_sharded(site, migration, outcome, _calls(site, (view.keep(value.test),), indent), indent, at)
    guards, rest = split_guard(site, value.test)
    if not guards or not needs_guard(site, at):
        calls = _calls(site, negated(view, value.test), indent)
        return only_where_sharded(site, migration, outcome, calls, indent, at)
    deeper = indent + "    "
    reduce = ("False",) if not rest else negated_all(view, rest)
    parts: list[Part] = ["if "]
    for number, guard in enumerate(guards):
        parts.extend((" and ",) if number else ())
        parts.append(view.keep(guard))
    return [*parts, f":\n{deeper}", *_calls(site, reduce, deeper)]


def _calls(site: Site, value: tuple[Part, ...], indent: str) -> list[Part]:
    """The switch, and under SHARD_GRAD_OP the one that keeps parameters gathered over the window with it."""
    keep = site.view.keep(_receiver(site))
    calls = switch(keep, value)
    if stays_unsharded(site):
        calls.extend((f"\n{indent}", keep, ".set_reshard_after_backward(", *value, ")"))
    return calls


# --- with model.no_sync(): ----------------------------------------------------------------------------------


def _with(
    site: Site, migration: Migration, statement: ast.With, item: ast.withitem, subject: ast.expr
) -> Outcome:
    view = site.view
    passes = passes_in(migration, view, statement.body, site.group)
    if FORWARD in passes and BACKWARD not in passes:
        return _forward_only(site, migration, statement, subject)
    if isinstance(subject, ast.IfExp):
        if not split_guard(site, subject.test)[1] or other_backward(migration, view, statement, site.group):
            return _helper(site, migration)
        return _conditional(site, migration, statement, item, subject)
    outcome = Outcome(Level.SAFE, "gradient synchronisation is switched off before the block and on behind it")
    indent = view.indent(statement)
    off, on = _calls(site, ("False",), indent), _calls(site, ("True",), indent)
    if leaves_early(statement.body) or _exception_is_caught(view, statement):
        if len(statement.items) > 1 or not view.stands_alone(statement):
            return _helper(site, migration)
        outcome.patches.extend(in_try(view, statement, off, on))
        outcome.message += ", also when the block is left early"
        return _yielding(site, migration, statement, outcome)
    if len(statement.items) == 1 and can_unwrap(view, statement):
        outcome.patches.append(unwrapped(view, statement, WHY, (indent, *off, "\n"), (indent, *on, "\n")))
    elif len(statement.items) > 1 and view.stands_alone(statement):
        outcome.patches.append(view.insert_before(statement, (indent, *off, "\n"), WHY))
        outcome.patches.append(without_item(view, statement, item))
        outcome.patches.append(view.insert_after(statement, (indent, *on, "\n"), WHY))
    else:
        return _helper(site, migration)
    return outcome


def _conditional(
    site: Site, migration: Migration, statement: ast.With, item: ast.withitem, subject: ast.IfExp
) -> Outcome:
    view = site.view
    outcome = Outcome(Level.SAFE, "one call sets whether the coming backward reduces gradients")
    indent = view.indent(statement)
    line = [indent, *_set_by(site, migration, outcome, subject, statement), "\n"]
    if len(statement.items) == 1 and can_unwrap(view, statement):
        outcome.patches.append(unwrapped(view, statement, WHY, line))
    elif len(statement.items) > 1 and view.stands_alone(statement):
        outcome.patches.append(view.insert_before(statement, line, WHY))
        outcome.patches.append(without_item(view, statement, item))
    else:
        return _helper(site, migration)
    return outcome


def _forward_only(site: Site, migration: Migration, statement: ast.With, subject: ast.expr) -> Outcome:
    """DDP reads its flag in the forward, FSDP1 in the backward: which of them is it?"""
    view = site.view
    kinds = site.group.kinds if site.group else set()
    if len(statement.items) > 1 or not can_unwrap(view, statement):
        return _manual("the backward runs outside this block, where FSDP2 reads the switch", holds=True)
    outcome = Outcome(Level.REVIEW, "")
    indent = view.indent(statement)
    if kinds == {"FSDP1"}:
        outcome.message = (
            "the backward runs outside, where FSDP1 has reduced gradients all the same: the block goes, the effect "
            "stays; call set_requires_gradient_sync around the backward if it was to be skipped"
        )
        outcome.patches.append(unwrapped(view, statement, WHY))
        return outcome
    outcome.message = "DDP read its flag in the forward, FSDP2 reads it in the backward, which now lies inside"
    behind = _backward_behind(migration, view, statement, site.group)
    if isinstance(subject, ast.IfExp):
        if not behind:
            return _manual(_NO_BACKWARD, holds=True)
        line = [indent, *_set_by(site, migration, outcome, subject, statement), "\n"]
        outcome.patches.append(unwrapped(view, statement, WHY, line))
        return outcome
    if not behind:
        return _manual(_NO_BACKWARD, holds=True)
    off, on = _calls(site, ("False",), indent), _calls(site, ("True",), indent)
    outcome.patches.append(unwrapped(view, statement, WHY, (indent, *off, "\n")))
    outcome.patches.append(view.insert_after(behind[-1], (indent, *on, "\n"), WHY))
    return outcome


def _backward_behind(
    migration: Migration, view: FileView, statement: ast.stmt, group: Group | None
) -> list[ast.stmt]:
    """Statements behind this one in its block that run a backward themselves, up to the next forward.

    A backward behind another forward also belongs to that one, and DDP reduced gradients there.
    """
    block, place = view.block_of(statement)
    found: list[ast.stmt] = []
    for other in block[place + 1 :]:
        if has_switch(view, other):
            continue
        if FORWARD in passes_in(migration, view, [other], group):
            break
        if any(called_name(call) == "backward" for call in calls_in([other])):
            found.append(other)
    return found



def _exception_is_caught(view: FileView, statement: ast.stmt) -> bool:
    """Whether the function goes on after an exception in the block, so that the switch would stay off."""
    child: ast.AST = statement
    for ancestor in view.ancestors(statement):
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        if isinstance(ancestor, ast.Try) and ancestor.handlers and child in ancestor.body:
            return True
        child = ancestor
    return False


# --- context = model.no_sync() if … -------------------------------------------------------------------------


def _assigned(site: Site, migration: Migration, assignment: ast.Assign) -> Outcome | None:
    """Assignments of a context and the one ``with`` over it; None where they do not fit together so simply."""
    view, target = site.view, assignment.targets[0]
    path = dotted_path(target)
    scope = view.function(assignment) or view.tree
    if path is None:
        return None
    names = [
        n for n in ast.walk(scope)
        if isinstance(n, (ast.Name, ast.Attribute)) and dotted_path(n) == path
    ]  # fmt: skip
    stores = [view.parents[n] for n in names if not isinstance(n.ctx, ast.Load)]
    loads = [n for n in names if isinstance(n.ctx, ast.Load)]
    withs = {id(w): w for w in (_with_over(view, load) for load in loads)}
    statement = next(iter(withs.values()), None)
    if len(withs) != 1 or statement is None or len(loads) != 1 or not can_unwrap(view, statement):
        return None
    if any(not isinstance(s, ast.Assign) or not _switches(view, s.value) for s in stores):
        return None
    if any(_loop(view, s) is not _loop(view, statement) or s.lineno > statement.lineno for s in stores):  # pyright: ignore[reportAttributeAccessIssue]
        return None
    if any(_runs_backward_between(view, s, statement) for s in stores):  # pyright: ignore[reportArgumentType]
        return None
    if other_backward(migration, view, statement, site.group):
        return None
    if BACKWARD not in passes_in(migration, view, statement.body, site.group):
        return None
    outcome = Outcome(Level.SAFE, "one call sets whether the coming backward reduces gradients")
    assignments = [store for store in stores if isinstance(store, ast.Assign)]
    if len(assignments) > 1 and isinstance(target, ast.Name) and needs_guard(site, statement):
        _by_flag(site, migration, outcome, assignments, statement)
        return outcome
    for store in assignments:
        parts = _set_by(site, migration, outcome, store.value, store)
        outcome.patches.append(view.replace(store, parts, WHY))
    outcome.patches.append(unwrapped(view, statement, WHY))
    return outcome


def _by_flag(
    site: Site, migration: Migration, outcome: Outcome, assignments: list[ast.Assign], statement: ast.With
) -> None:
    """A flag in the place of the context: where plain models come by, the one call alone has to ask for them."""
    view, indent = site.view, site.view.indent(statement)
    flag = view.free_name(statement, "sync_gradients")
    for assignment in assignments:
        outcome.patches.append(view.replace(assignment, [f"{flag} = ", *_reduces(view, assignment.value)], WHY))
    line = only_where_sharded(site, migration, outcome, _calls(site, (flag,), indent), indent, statement)
    outcome.patches.append(unwrapped(view, statement, WHY, (indent, *line, "\n")))


def _reduces(view: FileView, value: ast.expr) -> tuple[Part, ...]:
    """Whether gradients are reduced under a context: no_sync, a null context, or a choice between the two."""
    if not isinstance(value, ast.IfExp):
        return (str(_kind(view, value) != "off"),)
    return (view.keep(value.test),) if _kind(view, value.orelse) == "off" else negated(view, value.test)


def _with_over(view: FileView, load: ast.AST) -> ast.With | None:
    """The ``with`` that has nothing but this name (or a call of it) as its context."""
    parent = view.parents[load]
    if isinstance(parent, ast.Call) and parent.func is load and not parent.args and not parent.keywords:
        parent = view.parents[parent]
    if not isinstance(parent, ast.withitem) or parent.optional_vars is not None:
        return None
    statement = view.parents[parent]
    return statement if isinstance(statement, ast.With) and len(statement.items) == 1 else None


def _switches(view: FileView, value: ast.expr) -> bool:
    """Whether a value is ``no_sync``, a null context, or a choice between the two."""
    if isinstance(value, ast.IfExp):
        return {_kind(view, value.body), _kind(view, value.orelse)} == {"off", "on"}
    return _kind(view, value) != ""


def _kind(view: FileView, value: ast.expr) -> str:
    node = value.func if isinstance(value, ast.Call) else value
    if isinstance(node, ast.Attribute) and node.attr == "no_sync":
        return "off"
    return "on" if _is_null(view, value) else ""


def _loop(view: FileView, node: ast.AST) -> ast.AST | None:
    return next((a for a in view.ancestors(node) if isinstance(a, (ast.For, ast.AsyncFor, ast.While))), None)


def _runs_backward_between(view: FileView, first: ast.stmt, statement: ast.stmt) -> bool:
    scope = view.function(statement) or view.tree
    return any(
        first.lineno < call.lineno < statement.lineno and called_name(call) == "backward"
        for call in calls_in(getattr(scope, "body", []))
    )


# --- everything else ----------------------------------------------------------------------------------------


def _context_function(site: Site, migration: Migration, outcome: Outcome) -> bool:
    """A function that does nothing but choose between ``no_sync`` and a null context becomes a context itself."""
    view = site.view
    function = view.function(site.node)
    if not isinstance(function, ast.FunctionDef) or function.decorator_list or needs_guard(site, function):
        return False
    documented = ast.get_docstring(function) is not None
    body = function.body[1:] if documented else function.body
    if len(body) != 1 or not isinstance(body[0], ast.Return) or not isinstance(body[0].value, ast.IfExp):
        return False
    callers = migration.program.callers(view, function)
    if not callers or not all(isinstance(caller.parents[call], ast.withitem) for caller, call in callers):
        return False
    if not _switches(view, body[0].value) or not view.stands_alone(body[0]):
        return False
    manager = migration.use(outcome, view, "contextlib.contextmanager", function)
    indent = view.indent(body[0])
    begin = view.source.span(function)[0]
    restore = _calls(site, ("True",), indent + "    ")
    parts = [
        *_set_by(site, migration, outcome, body[0].value, body[0]),
        f"\n{indent}try:\n{indent}    yield\n{indent}finally:\n{indent}    ", *restore,
    ]  # fmt: skip
    outcome.patches.append(view.replace(body[0], parts, WHY))
    outcome.patches.append(Patch(view.path, begin, begin, (f"@{manager}\n{view.indent(function)}",), WHY))
    outcome.level = Level.SAFE
    outcome.message = "the function becomes a context manager over the switch, which it restores"
    return True


def _helper(site: Site, migration: Migration) -> Outcome:
    """A restoring context manager in the place of ``no_sync``: right wherever its block holds the backward."""
    view = site.view
    function = view.function(site.node)
    outcome = Outcome(Level.REVIEW, "a context manager that restores the switch takes the place of no_sync")
    for user, statement in _blocks_over(migration, view, function):
        passes = passes_in(migration, user, statement.body, site.group)
        if FORWARD in passes and BACKWARD not in passes:
            return _manual(
                f"the block at {user.path}:{statement.lineno} holds the forward, but not the backward, "
                "where FSDP2 reads the switch",
                holds=True,
            )
    if not _context_function(site, migration, outcome):
        as_helper(site, migration, outcome, _receiver(site))
    return outcome


def _blocks_over(
    migration: Migration, view: FileView, function: ast.AST | None
) -> list[tuple[FileView, ast.With]]:
    """The ``with`` blocks over what a helper returns, and those of this function over such a context."""
    found: list[tuple[FileView, ast.With]] = []
    scope = function or view.tree
    for node in ast.walk(scope):
        if isinstance(node, ast.With) and any(_named_context(view, item.context_expr) for item in node.items):
            found.append((view, node))
    if function is not None:
        for caller, call in migration.program.callers(view, function):
            parent = caller.parents[call]
            statement = caller.parents.get(parent)
            if isinstance(parent, ast.withitem) and isinstance(statement, ast.With):
                found.append((caller, statement))
    return found


def _named_context(view: FileView, node: ast.expr) -> bool:
    """Whether a ``with`` is over a name that may hold ``no_sync``."""
    named = node.func if isinstance(node, ast.Call) else node
    return isinstance(named, ast.Name) and holds_no_sync(view, node)


def _yielding(site: Site, migration: Migration, statement: ast.With, outcome: Outcome) -> Outcome:
    """A block that yields is a context manager of its own: its users have to hold the backward."""
    if not any(isinstance(n, (ast.Yield, ast.YieldFrom)) for child in statement.body for n in ast.walk(child)):
        return outcome
    for user, block in _blocks_over(migration, site.view, site.view.function(statement)):
        if block is statement:
            continue
        passes = passes_in(migration, user, block.body, site.group)
        if FORWARD in passes and BACKWARD not in passes:
            return _manual(
                f"the block at {user.path}:{block.lineno} over this context manager holds the forward, but not the "
                "backward, where FSDP2 reads the switch",
                holds=True,
            )
    outcome.level = Level.REVIEW
    return outcome


_ACCUMULATE = (
    "Call model.set_requires_gradient_sync(False) before the backward passes that only accumulate, and True "
    "before the one that has to reduce; the setting stays until it is changed."
)
_OWN_GRADIENTS = (
    "Let this pass sync as well: every rank then works with the gradients of the whole batch (sharpness-aware training takes "
    "one step for all ranks instead of one for each). To keep them apart, keep DDP for this model (--ddp keep)."
)


def _manual(reason: str, advice: str = _ACCUMULATE, holds: bool = False) -> Outcome:
    return Outcome(Level.MANUAL, f"no_sync is left alone: {reason}", advice, holds=holds)
