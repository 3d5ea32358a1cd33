"""What is known in front of some statements about the conditions under which a place in them is reached."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..flow.values import Derived
from .answers import Answer
from .arguments import given_for_parameter
from .conditions import is_own_object, is_rank_condition
from .early_leaves import left_in_front
from .file import File
from .guards import guard_of
from .measured import answered_alike
from .program import Program
from .stored_attributes import may_assign

_IMPURE = (ast.Call, ast.Await, ast.NamedExpr, ast.Yield, ast.YieldFrom)
_OF_NUMBERS = frozenset({"builtins.round", "builtins.abs", "math.floor", "math.ceil"})
_SCOPES = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In
}  # fmt: skip
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_DIVISIONS = (ast.Mod, ast.FloorDiv, ast.Div)
_DEEPEST = 3
_MOST_ALTERNATIVES = 3


def known_conditions(file: File, block: Sequence[ast.stmt], place: ast.AST, differing: bool = False) -> list[str]:
    """What has to hold for a place in a block to be reached, as far as it may be asked in front of the block.

    That is what costs nothing, what nothing in the block changes, what raises nowhere, and what all ranks answer alike;
    with ``differing``, also what ranks may answer differently.
    """
    tests, _ = _divided(file, block, place, differing)
    kept: dict[str, str] = {}
    for test in tests:
        text = ast.unparse(test) if _is_made(test) else file.text(test)
        kept.setdefault(ast.dump(test), f"({text})" if isinstance(test, (ast.BoolOp, ast.IfExp, ast.Lambda)) else text)
    return list(kept.values())


def may_be_missing(file: File, block: Sequence[ast.stmt], place: ast.AST, read: ast.expr) -> bool:
    """Whether what is read at a place may raise in front of a block: tests that cannot be made there ask for something in it.

    Behind ``if rank == 0 and ckpt.get("ema"):`` that is ``ckpt["ema"]``.
    """
    _, left_out = _divided(file, block, place, False)
    parts = {ast.unparse(n.value): n for n in ast.walk(read) if isinstance(n, (ast.Attribute, ast.Subscript))}
    for test in left_out:
        methods = (n.func for n in ast.walk(test) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
        of_methods = {_chain(method.value) for method in methods}
        for chain in _chains(test):
            part = parts.get(chain)
            if isinstance(part, ast.Subscript) or (isinstance(part, ast.Attribute) and chain not in of_methods):
                return True
    return False


def _divided(
    file: File, block: Sequence[ast.stmt], place: ast.AST, differing: bool
) -> tuple[list[ast.expr], list[ast.expr]]:
    """The tests on the way to a place: those that may be made in front of the block, and those that may not."""
    stores = [_chain(n) for s in block for n in ast.walk(s) if isinstance(getattr(n, "ctx", None), ast.Store)]
    written = {chain for chain in stores if chain is not None}
    kept: list[ast.expr] = []
    others: list[ast.expr] = []
    left_out: set[str] = set()
    first = _expressions(block[0].test) if isinstance(block[0], ast.If) else set()  # asked before the block writes anything

    def askable(test: ast.expr) -> ast.expr | None:
        """What of a test may be asked: all of it, or what it implies where parts of it may not; None for nothing."""
        if isinstance(test, ast.BoolOp) and _has_parts_of_ranks(file, test):
            parts = [askable(part) for part in test.values]
            known = [part for part in parts if part is not None]
            if not known or (isinstance(test.op, ast.Or) and len(known) < len(parts)):
                return None
            found = known[0] if len(known) == 1 else ast.BoolOp(test.op, known)
            return None if _is_always(found) else found
        chains = set(_chains(test))
        changed = left_out if first.intersection(_expressions(test)) else left_out | written
        if is_rank_condition(file, test):
            return None
        if (
            any(isinstance(n, _IMPURE) and not _is_pure(file, n) for n in ast.walk(test))
            or any(_is_part(chain, other) for chain in chains for other in changed)
            or _is_of_some_ranks(file, test, differing)
        ):
            left_out.update(chains)  # it may be what makes later tests possible: `isinstance(x, C)` in front of `x.flag`
            return None
        return test

    for test in _tests_on_the_way(file, block, place):
        found = askable(test)
        if found is not None:
            kept += [*(_divisors(found) if left_out else ()), found]
        if found is not test:
            others.append(test)
    return kept, others


def _divisors(test: ast.expr) -> list[ast.expr]:
    """What a test divides by: whether it is zero may be what a test in front of it tells, as ``log is not None``."""
    divided = (n.right for n in ast.walk(test) if isinstance(n, ast.BinOp) and isinstance(n.op, _DIVISIONS))
    return [divisor for divisor in divided if not isinstance(divisor, ast.Constant)]


def _expressions(test: ast.expr) -> set[ast.AST]:
    """A test and the expressions in it: of what else is below it, Python shares one for all."""
    return {node for node in ast.walk(test) if isinstance(node, ast.expr)}


def _has_parts_of_ranks(file: File, test: ast.BoolOp) -> bool:
    """Whether a test of several parts asks for the rank in one of them: what all ranks alike come to holds for the others."""
    return any(
        _has_parts_of_ranks(file, part) if isinstance(part, ast.BoolOp) else is_rank_condition(file, part) for part in test.values
    )


@dataclass(frozen=True)
class Needed:
    """The condition under which a block comes to places in it; ``differing`` where not all ranks may answer it alike."""

    text: str
    differing: bool


def needed_for(file: File, block: Sequence[ast.stmt], places: Sequence[ast.AST]) -> Needed | None:
    """The condition under which any of the places is reached, as far as it is known in front of the block."""
    sure, all_known = (_shared(file, block, places, differing) for differing in (False, True))
    if all_known is None:
        return None
    return Needed(all_known, differing=all_known != sure)


def unless_left(file: File, statement: ast.stmt, needed: Needed | None) -> Needed | None:
    """``needed`` without what ranks had left for in front of a statement: behind such a test one that it asks for is missed."""
    for test in left_in_front(file, statement):
        block, index = file.block_of(statement)
        left = needed_for(file, [test], [test.body[-1]])
        between = [n for part in block[block.index(test) + 1 : index] for n in ast.walk(part)]
        if left is None or left.differing or not _is_all_of(file, test, known_conditions(file, [test], test.body[-1])):
            continue  # of a test that is known in part, the contrary is not known
        asked = ast.parse(left.text, mode="eval").body
        names = {n.id for n in ast.walk(asked) if isinstance(n, ast.Name)}
        if any(isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id in names for n in between):
            continue
        stayed = ast.unparse(negated(asked))
        needed = Needed(f"({needed.text}) and {stayed}" if " or " in needed.text else f"{needed.text} and {stayed}",
                        needed.differing) if needed is not None else Needed(stayed, False)  # fmt: skip
    return needed


def _shared(file: File, block: Sequence[ast.stmt], places: Sequence[ast.AST], differing: bool) -> str | None:
    ways = [known_conditions(file, block, place, differing) for place in places]
    shared = _beginning(ways)
    ways = [way[len(shared) :] for way in ways]
    ending = _beginning([way[::-1] for way in ways])[::-1] if all(ways) else []
    ways = [way[: len(way) - len(ending)] for way in ways]
    rest = _without_implied(_alternatives(ways))
    if all(rest) and len(rest) > 1 and _is_always(ast.parse(" or ".join(f"({way})" for way in rest), mode="eval").body):
        rest = []
    if all(rest) and rest:
        either = " or ".join(f"({way})" if " and " in way and len(rest) > 1 else way for way in rest)
        shared.append(f"({either})" if (shared or ending) and len(rest) > 1 else either)
    shared += ending
    return _without_parentheses(shared[0]) if len(shared) == 1 else " and ".join(shared) or None


def _beginning(ways: list[list[str]]) -> list[str]:
    """The tests with which all ways begin."""
    found: list[str] = []
    while ways and all(len(way) > len(found) and way[len(found)] == ways[0][len(found)] for way in ways):
        found.append(ways[0][len(found)])
    return found


def _alternatives(ways: list[list[str]]) -> list[str]:
    """The conditions of each way, of as many tests as leave few alternatives: fewer tests hold more often."""
    longest = max(map(len, ways), default=0)
    by_length = (list(dict.fromkeys(" and ".join(way[:length]) for way in ways)) for length in range(longest, 0, -1))
    return next((found for found in by_length if len(found) <= _MOST_ALTERNATIVES), [])


def _without_implied(ways: list[str]) -> list[str]:
    """Without those that another one names as its own alternative: ``a`` beside ``(a or b)``."""
    parsed = {way: ast.parse(way, mode="eval").body for way in ways if way}
    choices = (test.values for test in parsed.values() if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or))
    implied = {ast.dump(value) for values in choices for value in values}
    return [way for way in ways if not way or ast.dump(parsed[way]) not in implied]


def _is_always(test: ast.expr) -> bool:
    """Whether a condition names one thing or its contrary."""
    choices = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else []
    return not {ast.dump(choice) for choice in choices}.isdisjoint(ast.dump(negated(choice)) for choice in choices)


def _without_parentheses(text: str) -> str:
    """A condition that stands alone, which needs none around all of it."""
    inner = text[1:-1]
    try:
        is_wrapped = text.startswith("(") and ast.dump(ast.parse(inner, mode="eval")) == ast.dump(ast.parse(text, mode="eval"))
    except SyntaxError:
        return text
    return inner if is_wrapped else text


def asked_about(file: File, block: Sequence[ast.stmt], place: ast.AST, thing: str) -> str:
    """The first part of ``thing`` that is asked about on the way to a place: of ``ema.model`` behind ``if ema:`` the ``ema``.

    What lies behind it may not be there in front of the block.
    """
    asked = {ast.unparse(node) for test in _tests_on_the_way(file, block, place) for node in _operands(test)}
    node: ast.expr = ast.parse(thing, mode="eval").body
    found = thing
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
        if ast.unparse(node) in asked:
            found = ast.unparse(node)
    return found


def _operands(test: ast.expr) -> Iterator[ast.expr]:
    """What a test asks whether it is there."""
    if isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from _operands(part)
    elif isinstance(test, ast.UnaryOp):
        yield from _operands(test.operand)
    elif isinstance(test, ast.Compare):
        yield test.left
    elif isinstance(test, ast.Call) and test.args:
        yield test.args[0]  # isinstance, hasattr
    else:
        yield test


def _tests_on_the_way(file: File, block: Sequence[ast.stmt], place: ast.AST) -> list[ast.expr]:
    """The tests that lead from a block to a place in it, outermost first; negated where the place is in an else."""
    tests: list[ast.expr] = []
    inside: ast.AST = place
    for around in file.ancestors(place):
        if isinstance(inside, ast.stmt):
            siblings, index = file.block_of(inside)
            is_outermost = any(inside is other for other in block)
            passed = [s for s in siblings[:index] if not is_outermost or any(s is other for other in block)]
            tests = [*(part for s in passed for part in _left_unless(s)), *tests]
        if any(inside is statement for statement in block):
            return tests
        if isinstance(around, ast.If) and inside is not around.test:
            is_body = any(inside is statement for statement in around.body)
            tests = [*parts_that_hold(around.test, is_body), *tests]
        elif isinstance(around, ast.IfExp) and inside is not around.test:
            tests = [*parts_that_hold(around.test, inside is around.body), *tests]
        elif isinstance(around, ast.BoolOp):
            earlier = around.values[: around.values.index(inside)] if inside in around.values else []  # type: ignore[arg-type]
            tests = [*(p for value in earlier for p in parts_that_hold(value, isinstance(around.op, ast.And))), *tests]
        elif isinstance(around, _SCOPES):
            tests = []  # about names of its own
        inside = around
    return []


def _left_unless(statement: ast.stmt) -> list[ast.expr]:
    """What holds behind a statement that leaves the block in the other case: ``if step % 10: return``."""
    leaves = (ast.Return, ast.Continue, ast.Break, ast.Raise)
    if not isinstance(statement, ast.If) or statement.orelse or not isinstance(statement.body[-1], leaves):
        return []
    return parts_that_hold(statement.test, False)


def parts_that_hold(test: ast.expr, holds: bool) -> list[ast.expr]:
    """The conditions that hold where a test holds, or where it does not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and isinstance(test.operand, (ast.BoolOp, ast.UnaryOp)):
        return parts_that_hold(test.operand, not holds)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) == holds:
        return [part for value in test.values for part in parts_that_hold(value, holds)]
    return [test] if holds else [negated(test)]


def tests_in_front(file: File, node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is known to hold at a place in its function, each with the test that says so."""
    inside: ast.AST = node
    for around in file.ancestors(node):
        if isinstance(around, (ast.If, ast.IfExp)) and inside is not around.test:
            body = around.body if isinstance(around.body, list) else [around.body]
            yield from ((around.test, part) for part in parts_that_hold(around.test, any(inside is n for n in body)))
        if isinstance(inside, ast.stmt):
            block, index = file.block_of(inside)
            for earlier in block[:index]:
                if isinstance(earlier, ast.If) and isinstance(earlier.body[-1], _LEAVES):
                    yield from ((earlier.test, part) for part in parts_that_hold(earlier.test, False))
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return
        inside = around


def negated(test: ast.expr) -> ast.expr:
    """The opposite of a condition."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and (opposite := _OPPOSITE.get(type(test.ops[0]))):
        return ast.Compare(test.left, [opposite()], test.comparators)
    return ast.UnaryOp(ast.Not(), test)


def _is_pure(file: File, node: ast.AST) -> bool:
    """`round(steps * 0.1)`, and `len(loader)`: ranks that go through their data side by side have that in common."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return False
    name = file.external(node.func)
    return name in _OF_NUMBERS or (name == "builtins.len" and _chain(node.args[0]) is not None)


def _is_made(test: ast.expr) -> bool:
    return not hasattr(test, "lineno")


def _chain(node: ast.AST) -> str | None:
    base = node
    while isinstance(base, ast.Attribute):
        base = base.value
    return ast.unparse(node) if isinstance(base, ast.Name) else None


def _chains(node: ast.AST) -> Iterator[str]:
    """The longest names with dots in an expression; of a method that is called, what it is called on."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        children: list[ast.AST] = [node.func.value, *node.args, *node.keywords]
    elif (chain := _chain(node)) is not None:
        yield chain
        return
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _chains(child)


def _is_part(chain: str, other: str) -> bool:
    return chain == other or chain.startswith(f"{other}.")


def _is_all_of(file: File, test: ast.If, known: Sequence[str]) -> bool:
    """Whether conditions are all that a test asks for beside the rank."""
    is_both = isinstance(test.test, ast.BoolOp) and isinstance(test.test.op, ast.And)
    parts = test.test.values if is_both else [test.test]  # type: ignore[attr-defined]
    asked = [part for part in parts if not is_rank_condition(file, part)]
    return len(asked) == len(known) and len(parts) > len(asked)


class _OfSomeRanks:
    """Which expressions some ranks alone can ask: many tests lead back to the same arguments of the same callers."""

    def __init__(self, _: Program) -> None:
        self._found: dict[tuple[File, ast.expr, bool, int], bool] = {}

    def has(self, file: File, test: ast.expr, differing: bool, depth: int) -> bool:
        key = (file, test, differing, depth)
        if key not in self._found:
            self._found[key] = _may_differ(file, test, differing, depth)
        return self._found[key]


def _is_of_some_ranks(file: File, test: ast.expr, differing: bool, depth: int = 0) -> bool:
    """Whether only some ranks can ask a test or, unless they may be ``differing``, ranks may answer it differently."""
    return file.program.once(_OfSomeRanks).has(file, test, differing, depth)


def _may_differ(file: File, test: ast.expr, differing: bool, depth: int) -> bool:
    read = [n for n in ast.walk(test) if isinstance(n, (ast.Name, ast.Attribute))]
    if any(is_own_object(file, n) or _is_state(file, n) for n in read):
        return True
    if any(_is_assigned_by_some(file, n) for n in read):
        return True
    if not differing and answered_alike(file, test) is not Answer.YES:
        return True
    given = (pair for n in read for pair in given_for_parameter(file, n)) if depth < _DEEPEST else ()
    return any(
        (not differing and is_rank_condition(owner, value)) or _chooses(owner, value)
        or _is_of_some_ranks(owner, value, differing, depth + 1)
        for owner, value in given
    )  # fmt: skip


def _chooses(file: File, value: ast.expr) -> bool:
    return isinstance(value, ast.IfExp) and is_rank_condition(file, value.test)


def _is_state(file: File, node: ast.expr) -> bool:
    """Whether a state dict comes here: a full one is often empty, or None, on all ranks but the first."""
    return any(isinstance(v, Derived) and v.kind == "state_dict" for v in file.values(node))


def _is_assigned_by_some(file: File, name: ast.Name | ast.Attribute) -> bool:
    """Whether only some ranks assign a name, or change what it stands for: ``left.remove(key)``, ``seen[key] = 1``.

    ``self.save()`` leaves ``self.step`` alone where nothing that it runs assigns an attribute of that name.
    """
    scope, text = file.function(name), ast.unparse(name)
    parent = file.parents.get(name)
    read = parent.attr if isinstance(parent, ast.Attribute) else None
    if isinstance(name, ast.Attribute):
        scope = file.enclosing_class(name) or scope  # other methods may set what this one reads

    def is_of_some(change: ast.AST) -> bool:
        return (scope is None or scope in file.ancestors(change)) and guard_of(file, change) is not None

    if any(isinstance(node.ctx, ast.Store) and is_of_some(node) for node in file.bindings.get(text, ())):
        return True
    if isinstance(name, ast.Attribute) and file.program.once(_SetBySome).has(name):
        return True
    changes = (change for change in file.changes_of.get(text, ()) if is_of_some(change))
    return any(read is None or not isinstance(change, ast.Call) or may_assign(file, change, read) for change in changes)


class _SetBySome:
    """Settings that only some ranks assign, anywhere: ``args.save = False`` behind ``if rank != 0``, and ``self.args.save``."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[tuple[str, str], bool] = {}

    def has(self, read: ast.Attribute) -> bool:
        key = (ast.unparse(read.value).rpartition(".")[2], read.attr)
        if key[0] == "self":
            return False
        if key not in self._known:
            files = map(self._program.file, self._program.files_that_store(read.attr))
            named = ((f, n) for f in files for n in f.nodes(ast.Attribute) if n.attr == read.attr)
            stores = ((f, n) for f, n in named if isinstance(n.ctx, ast.Store))
            ours = ((f, n) for f, n in stores if ast.unparse(n.value).rpartition(".")[2] == key[0])
            self._known[key] = any(guard_of(f, n) is not None for f, n in ours)
        return self._known[key]
