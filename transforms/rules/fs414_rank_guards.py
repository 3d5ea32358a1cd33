"""FS414: work on sharded models that only some ranks come to."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

import libcst as cst

from ..behind_guards import (
    asked_at,
    gives_new_values,
    learns_behind,
    place_of,
    reads_to_move,
    statements_behind,
)
from ..findings import Form, Level
from ..guarded import GUARD, LOAD
from ..hidden import Hidden
from ..migration import Migration
from ..queries.cleanup import is_in_cleanup
from ..queries.divided_tests import beside_the_rank
from ..queries.early_leaves import leaves_of_some_ranks
from ..queries.file import File
from ..queries.guards import is_guarded_again
from ..queries.known_conditions import Needed, asked_about, known_conditions, may_be_missing, needed_for, unless_left
from ..queries.local_names import loop_of, spelled_out
from ..queries.past_ddp import runs_through_ddp
from ..queries.sure_names import is_surely_assigned, surely_there
from ..queries.worked_on import are_among, is_one, sharded_objects
from ..rewrites.changes import Change, Statement, insert_before, replace
from ..rewrites.held_blocks import between_lines, in_context, in_context_behind, moves_too_much, parted
from ..rewrites.held_functions import decorated, function_to_decorate, with_arguments
from ..rewrites.templates import expression, statements
from ..rule import Example, Outcome, Rule
from ..sites import Site


def gathered_in_front(site: Site, migration: Migration) -> Outcome | None:
    """State that is only read behind the guard is gathered in front of it, by all ranks, and what is read for it."""
    statement = site.node
    assert isinstance(statement, ast.stmt)
    by_condition = reads_to_move(site.file, statement, migration.hidden[statement])
    if by_condition is None:
        return None
    changes: list[Change] = []
    for needed, together in by_condition.items():
        changes += _moved(site, migration, needed, together, is_all=len(by_condition) == 1)
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
    rest, behind = statements_behind(site.file, statement, hidden)
    if learns_behind(site.file, rest, behind, hidden):
        return Outcome("a backward behind a test of the rank takes all ranks: fully_shard gathers and reduces in it",
                       level=Level.MANUAL, form=Form.NOTE, advice="Let all ranks come to it, by the same path.")  # fmt: skip
    if gives_new_values(hidden):
        return Outcome("some ranks alone give a sharded parameter new values: none can hold what others then have",
                       level=Level.MANUAL, form=Form.NOTE,
                       advice="Let all ranks do it, with the same random numbers; no broadcast is needed then.")  # fmt: skip
    things = _all_held(site, hidden, behind)
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
    asking = asked_at(site.file, statement, worked_on) if needed is None and not rest else []
    advice = _advice(site, migration, hidden)
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
    """Whether others behind the same guard, which can be named there, are all that a thing can be.

    A name that may stand for several, as `self.module` in a class of which there are some, stands for one of them at a time.
    """
    sharding = migration.sharding
    named = [(other.file, other.model) for other in hidden if other.thing is not None and other.model is not None]
    found = [sharded_objects(sharding, file.values(model)) for file, model in named]
    return are_among(sharding, item.objects, {o for one in found if is_one(sharding, one) for o in one})


def _needed(site: Site, rest: Sequence[ast.stmt], hidden: Sequence[Hidden]) -> Needed | None:
    """The condition under which some ranks come alone to what is hidden, as far as it is known in front."""
    assert isinstance(site.node, ast.stmt)
    needed = needed_for(site.file, rest or [site.node], [place_of(item) for item in hidden])
    if not rest or any(item.many or is_guarded_again(item.file, item.node, item.calls, rest) for item in hidden):
        return needed
    found = leaves_of_some_ranks(site.file)
    left = needed_for(site.file, rest, [leave for statement in rest for leave in found.get(statement, ())])
    if left is None or needed is None or " or " in left.text + needed.text:
        return left or needed
    return Needed(f"{left.text} and {needed.text}", left.differing or needed.differing)


def _answer(site: Site, migration: Migration, needed: Needed) -> str:
    """A condition as all ranks answer it alike."""
    return f"{migration.helper(site, 'true_on_any_rank')}({needed.text})" if needed.differing else needed.text


def _buffers_first(site: Site, migration: Migration, hidden: Sequence[Hidden]) -> list[Change]:
    """DDP's first forward of an evaluation took the first rank's buffers: so does entering a loop of unequal length."""
    assert isinstance(site.node, ast.stmt)
    models = _called_alone(site, migration, hidden)
    name = migration.helper(site, "sync_buffers") if models else ""
    return [insert_before(site.file, site.node, lambda: statements(f"{name}({', '.join(models)})\n"))] if models else []


def _called_alone(site: Site, migration: Migration, hidden: Sequence[Hidden]) -> list[str]:
    """The models that ranks call alone in a loop, some more often than others, where that took the first rank's buffers."""
    if not isinstance(site.node, (ast.For, ast.AsyncFor)) or not migration.has_changing_buffers:
        return []
    called = [item for item in hidden if item.thing is not None and isinstance(item.node, ast.Call)]
    called = [item for item in called if migration.sharding.of_called(item.file, item.node).wrapped_in]  # type: ignore[arg-type]
    return _all_held(site, called, statements_behind(site.file, site.node, hidden)[1])


def _advice(site: Site, migration: Migration, hidden: Sequence[Hidden]) -> str:
    assert isinstance(site.node, ast.stmt)
    told = [_ALL_GET] if any(item.site is not None and item.site.symbol == LOAD for item in hidden) else []
    is_come_to_by_all = isinstance(site.node, (ast.For, ast.AsyncFor, ast.With)) and migration.has_changing_buffers
    if is_come_to_by_all and not _called_alone(site, migration, hidden):
        told += [_OWN_BUFFERS] if runs_through_ddp(site.file, migration.sharding, site.node) else []
    if not told and is_in_cleanup(site.file, site.node):
        told.append(_AFTER_EXCEPTION)
    return " ".join(told)


def _ask(migration: Migration, file: File, statement: ast.stmt) -> Change:
    ask = migration.names(file).helper("ask_for_whole")
    return insert_before(file, statement, lambda: statements(f"{ask}()\n"))


def _all_held(site: Site, hidden: Sequence[Hidden], behind: list[ast.stmt]) -> list[str]:
    """What is held for hidden things that can be named at the guard, each once."""
    assert isinstance(site.node, ast.stmt)
    found = dict.fromkeys(_held(site, item, thing, behind) for item in hidden if item.thing for thing in _each(item.thing))
    return _outermost(_one_name_each(site.file.function(site.node) or site.file.tree, list(found)))


def _one_name_each(scope: ast.AST, things: list[str]) -> list[str]:
    """Without second names of the same thing: ``raw`` beside ``model``, after ``raw = model.module``."""
    meant = {thing: ast.unparse(spelled_out(scope, ast.parse(thing, mode="eval").body)) for thing in things}
    return [thing for thing in things if meant[thing] == thing or meant[thing] not in things]


def _outermost(things: list[str]) -> list[str]:
    """Without what others among them hold: attributes of ``self``, parts of a model, the optimizer inside of another."""
    return [thing for thing in things if not any(thing.startswith(f"{holder}.") for holder in things)]


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
    asked = asked_about(site.file, behind, place_of(item), thing)
    asked = re.split(r"\.module(?=\.|$)", asked)[0]  # what lies inside of a wrapper is held with the model
    held: ast.expr = ast.parse(asked, mode="eval").body
    while isinstance(held, (ast.Attribute, ast.Subscript, ast.Call)) and may_be_missing(site.file, behind, place_of(item), held):
        held = held.func if isinstance(held, ast.Call) else held.value
    thing = surely_there(site.file, site.node, ast.unparse(held))
    base = next(n.id for n in ast.walk(ast.parse(thing)) if isinstance(n, ast.Name))
    if is_surely_assigned(site.file, site.node, base):
        return thing
    conditions = known_conditions(site.file, behind, place_of(item))
    return f"{thing} if {' and '.join(conditions)} else None" if conditions else thing


_HELD = "every rank holds the model whole while some of them work on it alone, as the old wrapper did"
_ASKED = "only ranks behind the guard know whether it comes to that: they ask, and every rank holds the model whole from then on"
_OUT_OF_SIGHT = "code out of sight gets what keeps a sharded model, on some ranks alone: where it saves or runs that, they hang"
_BY_ALL = "Let every rank take the state dict, and one of them write the file."
_AFTER_EXCEPTION = "Save at steps too: after an exception of its own a rank waits here for the others; it used to save alone."
_ALL_GET = "What these ranks load, all have afterwards; the others went on with weights of their own."
_OWN_BUFFERS = "Evaluations in here go on with own buffers, where DDP's first forward took the first rank's."
_ALL_HELD = "which model some ranks work on alone cannot be written here: every rank holds all sharded ones whole for it"


def _moved(
    site: Site, migration: Migration, needed: Needed | None, reads: Sequence[Sequence[Hidden]], is_all: bool
) -> list[Change]:
    """One variable in front of the guard for each state that is read, once or in several branches, where it is needed.

    A short guard that asks for the rank beside what all ranks answer alike is parted, if the reads are ``all``.
    """
    guard = site.node
    assert isinstance(guard, ast.stmt)
    cells: dict[str, list[cst.BaseExpression]] = {}
    changes: list[Change] = []
    for same in reads:
        name = migration.names(site.file).local(_name_for(same[0]), guard)
        cell = cells[name] = []
        changes += [replace(site.file, item.node, _taken(name, cell), late=True) for item in same]

    def lines() -> Sequence[Statement]:
        return [line for name, cell in cells.items() for line in statements(f"{name} = {{it}}\n", it=cell[-1])]

    def put() -> Sequence[Statement]:
        if needed is None:
            return lines()
        if len(cells) == 1:
            ((name, cell),) = cells.items()
            return statements(f"{name} = {{it}} if {_answer(site, migration, needed)} else None\n", it=cell[-1])
        (block,) = statements(f"if {_answer(site, migration, needed)}:\n    pass\n")
        return [block.with_changes(body=cst.IndentedBlock(lines()))]

    is_alike = is_all and needed is not None and not needed.differing and not moves_too_much(site.file, [guard])
    tests = beside_the_rank(site.file, guard, needed.text) if is_alike and needed is not None else None
    if tests is not None and isinstance(guard, ast.If):
        return [*changes, parted(site.file, guard, tests, lines)]
    return [*changes, insert_before(site.file, guard, put)]


def _taken(name: str, cell: list[cst.BaseExpression]) -> Callable[[cst.CSTNode], cst.CSTNode]:
    """Puts a name in the place of an expression, which goes into ``cell``."""

    def take(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.BaseExpression)
        cell.append(node)
        return cst.Name(name)

    return take


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
                "\n"
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
