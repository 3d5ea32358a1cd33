"""What becomes of a rank guard: state reads that go in front of it, or models that are held whole behind it."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .flow.values import FunctionValue
from .guarded import STATE_READS, is_initialization
from .hidden import Hidden
from .queries.backwards import (
    goes_backward,
    has_backward,
    is_in_training,
    is_trained_on_both,
    is_without_gradients,
)
from .queries.file import File
from .queries.followed_arguments import is_seen_whole
from .queries.known_conditions import Needed, may_be_missing, needed_for, unless_left
from .queries.message_guards import message_guards
from .queries.only_written import is_only_written
from .queries.rare_places import statements_to_ask_at
from .queries.uneven_loops import trains
from .queries.unwrapping import is_unwrapped

MovedReads = dict[Needed | None, list[list[Hidden]]]
_VARIABLES = 2
"""How many states are kept in variables: more are easier to read where they are, and all would stay in memory."""


def is_held_behind(file: File, guard: ast.stmt, hidden: Sequence[Hidden]) -> bool:
    """Whether models are held whole behind a guard, so that what is read off them there is whole by itself."""
    rest, behind = statements_behind(file, guard, hidden)
    if learns_behind(file, rest, behind, hidden) or gives_new_values(hidden):
        return False
    return reads_to_move(file, guard, hidden) is None


def reads_to_move(file: File, guard: ast.stmt, hidden: Sequence[Hidden]) -> MovedReads | None:
    """The state reads behind a guard that can be made in front of it, those of one state together, by when they are needed.

    None where something else is behind it, or what is read there is another state than in front.
    """
    read_here = {item.node for item in hidden if not item.calls}
    hidden = [item for item in hidden if not (item.calls and item.calls[0][1] in read_here)]
    hidden = list({item.node: item for item in hidden}.values())
    if message_guards(file, guard) or _both_train(file, guard):
        return None  # in front of it the state is that from before the training
    if asked_at(file, guard, hidden):
        return None
    if isinstance(guard, (ast.FunctionDef, ast.AsyncFunctionDef)) or not all(_can_move(item, guard) for item in hidden):
        return None
    reads: list[list[Hidden]] = []
    for item in hidden:
        alike = (same for same in reads if all(_is_same(file, item, other) for other in same))
        if (shared := next(alike, None)) is not None:
            shared.append(item)
        else:
            reads.append([item])
    if len(reads) > _VARIABLES:
        return None
    found: MovedReads = {}
    for same in reads:
        needed = unless_left(file, guard, needed_for(file, [guard], [item.node for item in same]))
        found.setdefault(needed, []).append(same)
    if len(found) > 1 and any(needed is not None and needed.differing for needed in found):
        return None  # ranks would agree for each of them
    return found


def statements_behind(file: File, guard: ast.stmt, hidden: Sequence[Hidden]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statements from a guard on that only some ranks come to, where others have left, and all that are guarded."""
    block, index = file.block_of(guard)
    together = message_guards(file, guard)
    end = block.index(together[-1]) + 1 if together else len(block)
    rest = block[index:end] if together or any(not _is_inside(place_of(item), guard) for item in hidden) else []
    return list(rest), list(rest) or [guard]


def learns_behind(file: File, rest: Sequence[ast.stmt], behind: Sequence[ast.stmt], hidden: Sequence[Hidden]) -> bool:
    """Whether a backward runs behind a guard: of what is held whole nothing would be averaged."""
    return (
        (bool(rest) and any(goes_backward(file, part) for part in rest))
        or any(_trains_model(file, part, hidden) for part in behind)
        or any(_is_trained(item, behind) for item in hidden)
        or any(_both_train(file, part) for part in behind)
    )


def gives_new_values(hidden: Sequence[Hidden]) -> bool:
    """Whether some ranks alone initialize parameters."""
    return any(is_initialization(item.file, item.node) for item in hidden)


def asked_at(file: File, guard: ast.stmt, hidden: Sequence[Hidden]) -> list[tuple[File, ast.stmt]]:
    """Where what is hidden comes rarely, and only the rank behind the guard knows: the statements to ask in front of."""
    hidden = followed_further(hidden)
    if any(item.many for item in hidden) or needed_for(file, [guard], [place_of(item) for item in hidden]) is not None:
        return []
    return statements_to_ask_at(file, guard, [[*item.calls, (item.file, item.node)] for item in hidden])


def followed_further(hidden: Sequence[Hidden]) -> list[Hidden]:
    """What guards hide, but for models that are handed to functions in which all that becomes of them is among it too."""
    led_to = {(item.calls[0][1], item.thing) for item in hidden if item.calls}
    return [item for item in hidden if (_call_of_handed(item), item.thing) not in led_to or not _is_followed(item)]


def _call_of_handed(item: Hidden) -> ast.Call | None:
    """The call that a model is handed to as it is, where nothing else is done with it."""
    parent = item.file.parents[item.node]
    parent = item.file.parents[parent] if isinstance(parent, ast.keyword) else parent
    return parent if not item.calls and isinstance(parent, ast.Call) and parent.func is not item.node else None


def _is_followed(item: Hidden) -> bool:
    assert isinstance(item.node, ast.expr)
    call = _call_of_handed(item)
    return call is not None and is_seen_whole(item.file, call, item.node)


def place_of(item: Hidden) -> ast.AST:
    """Where the way to a thing begins, in the guard's own function."""
    return item.calls[0][1] if item.calls else item.node


def _trains_model(file: File, statement: ast.stmt, hidden: Sequence[Hidden]) -> bool:
    """Whether a function that is handed on behind a guard, as LBFGS gets its closure, calls a hidden model and goes backward."""
    for call in (n for n in ast.walk(statement) if isinstance(n, ast.Call)):
        if (file.external(call.func) or "").startswith("builtins."):
            continue  # `hasattr(save, "best")` of a function that keeps the best number
        for value in (v for a in call.args for v in file.values(a) if isinstance(v, FunctionValue)):
            owner, function = file.program.function_node(value)
            inside = {id(n) for n in ast.walk(function)}
            if id(statement) in inside:
                continue  # a configuration may hold the function that it stands in
            if trains(owner, function) and any(id(item.node) in inside for item in hidden):
                return True
    return False


def _both_train(file: File, statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and any(is_trained_on_both(file, statement, call) for call in ast.walk(statement))


def _is_trained(item: Hidden, behind: Sequence[ast.stmt]) -> bool:
    """Whether a hidden model surely trains behind a guard: where it is called, or in the functions on the way there."""
    places = [(item.file, item.node), *item.calls]
    if any(is_without_gradients(file, node) for file, node in places):
        return False
    if isinstance(item.node, ast.Call) and item.file.external(item.node.func) == "copy.deepcopy":
        places = []  # what trains there is the copy
    if item.calls:
        return any(is_in_training(file, node) for file, node in [*places[:1], *item.calls[1:]])
    parent = item.file.parents[item.node]
    call = parent if isinstance(parent, ast.Call) and parent.func is item.node else item.node
    is_called = item.site is None and isinstance(call, ast.Call) and item.file.external(call.func) is None
    return is_called and any(has_backward(statement) for statement in behind)


def _can_move(item: Hidden, guard: ast.stmt) -> bool:
    """Whether a state read can be made in front of a guard: nothing between the two changes what it reads."""
    if item.site is None or item.site.symbol not in STATE_READS or item.calls or not item.thing:
        return False
    if item.site.call is None or (item.site.role == "dynamic" and item.node is item.site.node):
        return False  # a method that is called later
    file = item.file
    for around in file.ancestors(item.node):
        if around is guard:
            break
        if isinstance(around, (ast.For, ast.While, ast.Lambda, ast.FunctionDef, ast.comprehension, ast.ListComp, ast.DictComp,
                               ast.GeneratorExp, ast.SetComp, ast.AsyncFor)):  # fmt: skip
            return False
    if any(isinstance(n, ast.Call) and n is not item.site.call and not is_unwrapped(file, n) for n in ast.walk(item.site.node)):
        return False  # it may do more than to give a model: make one
    read = {n.id for n in ast.walk(item.node) if isinstance(n, ast.Name)}
    written = {n.id for n in ast.walk(guard) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    assert isinstance(item.node, ast.expr)
    return not read & written and not may_be_missing(file, [guard], item.node, item.node)


def _is_same(file: File, item: Hidden, other: Hidden) -> bool:
    """Whether two reads of one state may share it: one of the two is made, or both only write it to files."""
    if ast.unparse(item.node) != ast.unparse(other.node):
        return False
    return _excludes(file, item, other) or (is_only_written(file, item.node) and is_only_written(file, other.node))


def _excludes(file: File, item: Hidden, other: Hidden) -> bool:
    """Whether two reads stand in the two branches of a test."""
    around_other = set(file.ancestors(other.node))
    tests = [a for a in file.ancestors(item.node) if isinstance(a, (ast.If, ast.IfExp)) and a in around_other]
    body = tests[0].body if tests else []
    branch = body if isinstance(body, list) else [body]
    return bool(tests) and sum(any(_is_inside(i.node, part) for part in branch) for i in (item, other)) == 1


def _is_inside(node: ast.AST, statement: ast.AST) -> bool:
    return any(inner is node for inner in ast.walk(statement))
