"""FS414: work on sharded models that only some ranks come to."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

import libcst as cst

from ..findings import Form, Level
from ..flow.values import FunctionValue
from ..guarded import GUARD, LOAD, STATE_READS, is_initialization
from ..hidden import Hidden
from ..migration import Migration
from ..queries.backwards import (
    goes_backward,
    has_backward,
    is_in_training,
    is_trained_on_both,
    is_without_gradients,
)
from ..queries.cleanup import is_in_cleanup
from ..queries.divided_tests import beside_the_rank
from ..queries.early_leaves import leaves_of_some_ranks
from ..queries.file import File
from ..queries.guards import is_guarded_again
from ..queries.known_conditions import Needed, asked_about, known_conditions, may_be_missing, needed_for, unless_left
from ..queries.local_names import loop_of, spelled_out
from ..queries.message_guards import message_guards
from ..queries.only_written import is_only_written
from ..queries.rare_places import statements_to_ask_at
from ..queries.sure_names import is_surely_assigned, surely_there
from ..queries.uneven_loops import trains
from ..queries.unwrapping import is_unwrapped
from ..queries.worked_on import are_among, sharded_objects
from ..rewrites.changes import Change, Statement, insert_before, replace
from ..rewrites.held_blocks import between_lines, in_context, in_context_behind, moves_too_much
from ..rewrites.held_functions import decorated, function_to_decorate, with_arguments
from ..rewrites.templates import expression, statements
from ..rule import Example, Outcome, Rule
from ..sites import Site


def gathered_in_front(site: Site, migration: Migration) -> Outcome | None:
    """State that is only read behind the guard is gathered in front of it, by all ranks, and what is read for it."""
    all_hidden = migration.hidden[site.node]
    read_here = {item.node for item in all_hidden if not item.calls}
    hidden = [item for item in all_hidden if not (item.calls and item.calls[0][1] in read_here)]
    hidden = list({item.node: item for item in hidden}.values())
    statement = site.node
    assert isinstance(statement, ast.stmt)
    if message_guards(site.file, statement) or _both_train(site.file, statement):
        return None  # in front of it the state is that from before the training
    if _asking(site, hidden):
        return None
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) or not all(_can_move(h, statement) for h in hidden):
        return None
    reads: list[list[Hidden]] = []
    for item in hidden:
        alike = (same for same in reads if all(_is_same(site.file, item, other) for other in same))
        if (shared := next(alike, None)) is not None:
            shared.append(item)
        else:
            reads.append([item])
    if len(reads) > _VARIABLES:
        return None
    by_condition: dict[Needed | None, list[list[Hidden]]] = {}
    for same in reads:
        by_condition.setdefault(_needed_for(site, same), []).append(same)
    if len(by_condition) > 1 and any(needed is not None and needed.differing for needed in by_condition):
        return None  # ranks would agree for each of them
    changes: list[Change] = []
    for needed, together in by_condition.items():
        changes += _moved(site, migration, needed, together)
    message = "all ranks gather the state in front of the guard; what is done with it stays behind it"
    if is_in_cleanup(site.file, statement):
        return Outcome(message, changes, Level.REVIEW, advice=_AFTER_EXCEPTION)
    return Outcome(message, changes)


def whole_behind(site: Site, migration: Migration) -> Outcome:
    """Models and optimizers are held whole by every rank while some of them work on them alone.

    Those that the guarded code gets to in ways that cannot be written at the guard are among all that there are.
    """
    hidden = migration.hidden[site.node]
    statement = site.node
    assert isinstance(statement, ast.stmt)
    block, index = site.file.block_of(statement)
    together = message_guards(site.file, statement)
    end = block.index(together[-1]) + 1 if together else len(block)
    rest = block[index:end] if together or any(not _inside(_place(item), statement) for item in hidden) else []
    behind = rest or [statement]
    if (
        (rest and any(goes_backward(site.file, part) for part in rest))  # held whole, nothing would be averaged
        or any(_trains_model(site.file, part, hidden) for part in behind)
        or any(_is_trained(item, behind) for item in hidden)
        or any(_both_train(site.file, part) for part in behind)
    ):
        return Outcome("a backward behind a test of the rank takes all ranks: fully_shard gathers and reduces in it",
                       level=Level.MANUAL, form=Form.NOTE, advice="Let all ranks come to it, by the same path.")  # fmt: skip
    if any(is_initialization(item.file, item.node) for item in hidden):
        return Outcome("some ranks alone give a sharded parameter new values: none can hold what others then have",
                       level=Level.MANUAL, form=Form.NOTE,
                       advice="Let all ranks do it, with the same random numbers; no broadcast is needed then.")  # fmt: skip
    found = dict.fromkeys(_held(site, item, thing, behind) for item in hidden if item.thing for thing in _each(item.thing))
    things = _outermost(_one_name_each(site.file.function(statement) or site.file.tree, list(found)))
    worked_on = [item for item in hidden if item.is_held]
    unnamed = [item for item in worked_on if item.thing is None and not _is_named(item, hidden, migration)]
    if not things and not unnamed and any(item.is_kept for item in hidden):
        return Outcome(_OUT_OF_SIGHT, level=Level.MANUAL, form=Form.NOTE, advice=_BY_ALL)
    if not things and not unnamed:
        return Outcome("what only some ranks have is theirs alone: nothing is gathered for it", level=Level.OK)
    name, held = ("everything_whole_on_each_rank", _ALL_HELD) if unnamed else ("whole_on_each_rank", _HELD)
    given = [] if unnamed else things
    if isinstance(statement, ast.FunctionDef):
        if unnamed:
            decorator = expression(f"{migration.helper(site, name)}()")
        else:
            decorator = with_arguments(migration.helper(site, "holding_whole"), statement, things)
        return Outcome(held, [decorated(site.file, statement, decorator)], level=Level.REVIEW)
    needed = unless_left(site.file, statement, _needed(site, rest, worked_on))
    asking = _asking(site, worked_on) if needed is None and not rest else []
    advice = _AFTER_EXCEPTION if is_in_cleanup(site.file, statement) else ""
    if any(item.site is not None and item.site.symbol == LOAD for item in hidden):
        advice = _ALL_GET
    statements_held = rest or [statement]
    asked_first = needed.text if needed is not None else ""
    if not unnamed and not asking and not (needed is not None and needed.differing):
        function = function_to_decorate(site.file, statements_held, things, asked_first)
        if function is not None:
            decorator = with_arguments(migration.helper(site, "holding_whole"), function, things, asked_first)
            return Outcome(held, [decorated(site.file, function, decorator)], level=Level.REVIEW, advice=advice)
    name = migration.helper(site, "whole_when_asked" if asking else name)
    if needed is not None:
        given = [*given, f"needed={_answer(site, migration, needed)}"]
    is_alike = needed is not None and not needed.differing and not rest and not moves_too_much(site.file, [statement])
    tests = beside_the_rank(site.file, statement, needed.text) if is_alike and needed is not None else None
    if tests is not None and isinstance(statement, ast.If):
        changes = in_context_behind(site.file, statement, tests, name, given[:-1])
    elif moves_too_much(site.file, statements_held):
        local = migration.names(site.file).local("held", statement, statements_held[-1])
        changes = between_lines(site.file, statements_held, local, migration.helper(site, "entered"), name, given)
    else:
        changes = in_context(site.file, statements_held, name, given)
    changes += _buffers_first(site, migration, hidden)
    changes += [_ask(migration, *place) for place in asking if migration.asked_by.setdefault(place[1], site) is site]
    return Outcome(_ASKED if asking else held, changes, level=Level.REVIEW, advice=advice)


def _is_named(item: Hidden, hidden: Sequence[Hidden], migration: Migration) -> bool:
    """Whether others behind the same guard, which can be named there, are all that a thing can be."""
    sharding = migration.sharding
    named = [(other.file, other.model) for other in hidden if other.thing is not None and other.model is not None]
    objects = {o for file, model in named for o in sharded_objects(sharding, file.values(model))}
    return are_among(sharding, item.objects, objects)


def _needed(site: Site, rest: Sequence[ast.stmt], hidden: Sequence[Hidden]) -> Needed | None:
    """The condition under which some ranks come alone to what is hidden, as far as it is known in front."""
    assert isinstance(site.node, ast.stmt)
    needed = needed_for(site.file, rest or [site.node], [_place(item) for item in hidden])
    if not rest or any(item.many or is_guarded_again(item.file, item.node, item.calls, rest) for item in hidden):
        return needed
    found = leaves_of_some_ranks(site.file)
    left = needed_for(site.file, rest, [leave for statement in rest for leave in found.get(statement, ())])
    if left is None or needed is None or " or " in left.text + needed.text:
        return left or needed
    return Needed(f"{left.text} and {needed.text}", left.differing or needed.differing)


def _needed_for(site: Site, reads: Sequence[Hidden]) -> Needed | None:
    assert isinstance(site.node, ast.stmt)
    return unless_left(site.file, site.node, needed_for(site.file, [site.node], [item.node for item in reads]))


def _answer(site: Site, migration: Migration, needed: Needed) -> str:
    """A condition as all ranks answer it alike."""
    return f"{migration.helper(site, 'true_on_any_rank')}({needed.text})" if needed.differing else needed.text


def _asking(site: Site, hidden: Sequence[Hidden]) -> list[tuple[File, ast.stmt]]:
    """Where what is hidden comes rarely, and only the rank behind the guard knows: the statements to ask in front of."""
    assert isinstance(site.node, ast.stmt)
    if any(item.many for item in hidden) or needed_for(site.file, [site.node], [_place(item) for item in hidden]) is not None:
        return []
    return statements_to_ask_at(site.file, site.node, [[*item.calls, (item.file, item.node)] for item in hidden])


def _buffers_first(site: Site, migration: Migration, hidden: Sequence[Hidden]) -> list[Change]:
    """DDP's first forward of an evaluation took the first rank's buffers: so does entering a loop of unequal length."""
    if not isinstance(site.node, (ast.For, ast.AsyncFor)) or not migration.has_changing_buffers:
        return []
    called = [item for item in hidden if item.thing is not None and isinstance(item.node, ast.Call)]
    models = {str(i.thing): None for i in called if migration.sharding.of_called(i.file, i.node).wrapped_in}  # type: ignore[arg-type]
    name = migration.helper(site, "sync_buffers") if models else ""
    return [insert_before(site.file, site.node, lambda: statements(f"{name}({', '.join(models)})\n"))] if models else []


def _ask(migration: Migration, file: File, statement: ast.stmt) -> Change:
    ask = migration.names(file).helper("ask_for_whole")
    return insert_before(file, statement, lambda: statements(f"{ask}()\n"))


def _trains_model(file: File, statement: ast.stmt, hidden: list[Hidden]) -> bool:
    """Whether a function that is handed on behind a guard, as LBFGS gets its closure, calls a hidden model and goes backward."""
    for call in (n for n in ast.walk(statement) if isinstance(n, ast.Call)):
        if (file.external(call.func) or "").startswith("builtins."):
            continue  # `hasattr(save, "best")` of a function that keeps the best number
        for value in (v for a in call.args for v in file.values(a) if isinstance(v, FunctionValue)):
            owner, function = file.program.function_node(value)
            inside = {id(n) for n in ast.walk(function)}
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


def _one_name_each(scope: ast.AST, things: list[str]) -> list[str]:
    """Without second names of the same thing: ``raw`` beside ``model``, after ``raw = model.module``."""
    meant = {thing: ast.unparse(spelled_out(scope, ast.parse(thing, mode="eval").body)) for thing in things}
    return [thing for thing in things if meant[thing] == thing or meant[thing] not in things]


def _outermost(things: list[str]) -> list[str]:
    """Without what others among them hold: attributes of ``self``, parts of a model, the optimizer inside of another."""
    return [thing for thing in things if not any(thing.startswith(f"{holder}.") for holder in things)]


def _place(item: Hidden) -> ast.AST:
    """Where the way to a thing begins, in the guard's own function."""
    return item.calls[0][1] if item.calls else item.node


def _each(thing: str) -> list[str]:
    """The things that one text names: of ``[model, optimizer]`` both."""
    node = ast.parse(thing, mode="eval").body
    return [ast.unparse(one) for one in node.elts] if isinstance(node, ast.List) else [thing]


def _held(site: Site, item: Hidden, thing: str, behind: list[ast.stmt]) -> str:
    """What is held for a thing: where the way to it asks for what has it, or it may not be there, what has it.

    What a loop runs over, of which nothing is known, may be parameters that a property collects: they are held with what
    they are read off, which may have none on other ranks.
    """
    if not item.known and isinstance(item.model, ast.Name) and loop_of(item.file, item.model) and thing.count(".") > 1:
        thing = thing.rpartition(".")[0]
    asked = asked_about(site.file, behind, _place(item), thing)
    asked = re.split(r"\.module(?=\.|$)", asked)[0]  # what lies inside of a wrapper is held with the model
    held: ast.expr = ast.parse(asked, mode="eval").body
    while isinstance(held, (ast.Attribute, ast.Subscript, ast.Call)) and may_be_missing(site.file, behind, _place(item), held):
        held = held.func if isinstance(held, ast.Call) else held.value
    thing = surely_there(site.file, site.node, ast.unparse(held))
    base = next(n.id for n in ast.walk(ast.parse(thing)) if isinstance(n, ast.Name))
    if is_surely_assigned(site.file, site.node, base):
        return thing
    conditions = known_conditions(site.file, behind, _place(item))
    return f"{thing} if {' and '.join(conditions)} else None" if conditions else thing


_VARIABLES = 2
"""How many states are kept in variables: more are easier to read where they are, and all would stay in memory."""
_HELD = "every rank holds the model whole while some of them work on it alone, as the old wrapper did"
_ASKED = "only ranks behind the guard know whether it comes to that: they ask, and every rank holds the model whole from then on"
_OUT_OF_SIGHT = "code out of sight gets what keeps a sharded model, on some ranks alone: where it saves or runs that, they hang"
_BY_ALL = "Let every rank take the state dict, and one of them write the file."
_AFTER_EXCEPTION = "Save at steps too: after an exception of its own a rank waits here for the others; it used to save alone."
_ALL_GET = "What these ranks load, all have afterwards; the others went on with weights of their own."
_ALL_HELD = "which model some ranks work on alone cannot be written here: every rank holds all sharded ones whole for it"


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
    return bool(tests) and sum(any(_inside(i.node, part) for part in branch) for i in (item, other)) == 1


def _moved(site: Site, migration: Migration, needed: Needed | None, reads: Sequence[Sequence[Hidden]]) -> list[Change]:
    """One variable in front of the guard for each state that is read, once or in several branches, where it is needed."""
    guard = site.node
    assert isinstance(guard, ast.stmt)
    cells: dict[str, list[cst.BaseExpression]] = {}
    changes: list[Change] = []
    for same in reads:
        name = migration.names(site.file).local(_name_for(same[0]), guard)
        cell = cells[name] = []
        changes += [replace(site.file, item.node, _taken(name, cell), late=True) for item in same]

    def put() -> Sequence[Statement]:
        found = [(name, cell[-1]) for name, cell in cells.items()]
        if needed is not None and len(found) == 1:
            name, value = found[0]
            return statements(f"{name} = {{it}} if {_answer(site, migration, needed)} else None\n", it=value)
        lines = [line for name, value in found for line in statements(f"{name} = {{it}}\n", it=value)]
        if needed is None:
            return lines
        (block,) = statements(f"if {_answer(site, migration, needed)}:\n    pass\n")
        return [block.with_changes(body=cst.IndentedBlock(lines))]

    return [*changes, insert_before(site.file, guard, put)]


def _taken(name: str, cell: list[cst.BaseExpression]) -> Callable[[cst.CSTNode], cst.CSTNode]:
    """Puts a name in the place of an expression, which goes into ``cell``."""

    def take(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.BaseExpression)
        cell.append(node)
        return cst.Name(name)

    return take


def _inside(node: ast.AST, statement: ast.AST) -> bool:
    return any(inner is node for inner in ast.walk(statement))


def _name_for(item: Hidden) -> str:
    assert item.thing is not None
    word = _word_for(ast.parse(item.thing, mode="eval").body)
    return f"{'optimizer' if word == 'optim' else word}_state_dict"  # a helper has the name optim_state_dict


def _word_for(thing: ast.expr) -> str:
    """What a model is called: `nets["student"]` student, `optimizers[0]` optimizers_0, `unwrap(model)` model."""
    if isinstance(thing, ast.Attribute):
        return _word_for(thing.value) if thing.attr == "module" else thing.attr
    if isinstance(thing, ast.Subscript):
        key = thing.slice.value if isinstance(thing.slice, ast.Constant) else None
        if isinstance(key, str) and key.isidentifier():
            return key
        return _word_for(thing.value) + (f"_{key}" if isinstance(key, int) else "")
    if isinstance(thing, ast.Call) and thing.args:
        return _word_for(thing.args[0])
    return thing.id if isinstance(thing, ast.Name) else "model"


RULE = Rule(
    id="FS414",
    title="rank guards",
    symbols=(GUARD,),
    roles=("guard",),
    why="Gathers and forwards of sharded models are collective: behind a test of the rank, or in a loop over a rank's own part "
    "of a list, they hang or meet the wrong call.",
    idiom=gathered_in_front,
    fallback=whole_behind,
    examples=(
        Example(
            before=(
                "import torch\n"
                "import torch.distributed as dist\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, path):\n"
                "    model = DDP(net, **options)\n"
                "    if dist.get_rank() == 0:\n"
                "        torch.save(model.state_dict(), path)\n"
            ),
            after=(
                "import torch\n"
                "import torch.distributed as dist\n"
                "from fsdp2_helpers import model_state, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, path):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    model_state_dict = model_state(model)\n"
                "    if dist.get_rank() == 0:\n"
                "        torch.save(model_state_dict, path)\n"
            ),
            level=Level.SAFE,
        ),
    ),
    proof=("rank0_average",),
)
