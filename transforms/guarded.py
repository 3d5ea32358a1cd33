"""Sites of rank guards: work on sharded models that every rank has to take part in, behind a test that only some pass."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence

from .facts.symbols import FSDP1
from .flow.values import (
    Bound,
    ClassValue,
    Derived,
    External,
    FunctionValue,
    ModuleValue,
    Value,
)
from .guarded_uses import handed_out_of_sight, kept_by_some, names_model, uses_behind, work_of_kept
from .hidden import Hidden
from .queries.answered_places import is_held
from .queries.arguments import is_left_out
from .queries.backwards import may_learn
from .queries.closed_ways import is_closed
from .queries.conditions import is_rank_condition
from .queries.early_leaves import behind_leaves
from .queries.effects import only_asks
from .queries.file import File
from .queries.group_reads import groups_read
from .queries.guards import Guard, Guards
from .queries.kept_models import is_of_model
from .queries.message_guards import message_guards
from .queries.parameter_math import states_read
from .queries.picked_parameters import parameters_picked
from .queries.program import Program
from .queries.reshaped_parameters import PARAMETERS_OF, model_taken_apart
from .queries.saved_models import given_to, is_writer, saved_models
from .queries.sharding import ShardingQueries
from .queries.spelling import Spelling, alternatives
from .queries.summoned import is_summoned
from .queries.sure_names import surely_there
from .queries.uneven_loops import is_uneven
from .queries.worked_on import objects_of
from .sites import IN_PLACE, MODULE_METHODS, NUMBER, PARAMETER, Site, parameters_in

GUARD = "torch.distributed.(rank guard)"
"""The symbol of guards."""
DEFERRED = "torch.distributed.(deferred call)"
"""The symbol of what hands functions to threads and signals."""
STATE_READS = frozenset({"torch.nn.Module.state_dict", f"{FSDP1}.optim_state_dict", f"{FSDP1}.full_optim_state_dict"})
LOAD = "torch.nn.Module.load_state_dict"
COLLECTIVE = STATE_READS | {MODULE_METHODS, LOAD, PARAMETER, f"{FSDP1}.summon_full_params",
                            f"{FSDP1}.scatter_full_optim_state_dict"}  # fmt: skip


def guarded_sites(
    program: Program, sharding: ShardingQueries, sites: Mapping[str, Sequence[Site]], is_early: Callable[[File, ast.AST], bool],
    is_plain: Callable[[Site], bool], is_fresh: Callable[[File, ast.AST, ast.expr], bool],
) -> tuple[list[Site], dict[ast.AST, list[Hidden]]]:
    """The sites of guards that hide something, and what each hides, by its statement.

    ``is_early`` says whether a place comes before all wraps, so that nothing there is collective, ``is_plain`` whether a
    site works on a model that is not sharded yet, ``is_fresh`` whether a model was made on the way to a place.
    """
    guards: dict[ast.AST, Guard] = {}
    hidden: dict[ast.AST, list[Hidden]] = {}
    for guard, found in _all_hidden(Guards(program, is_early), sharding, sites):
        known = hidden.get(guard.statement, [])
        if is_held(guard.file, guard.statement):
            continue
        if found.thing is not None and is_summoned(guard.file, guard.statement, ast.parse(found.thing, mode="eval").body):
            continue
        if (is_early(guard.file, _inside(guard.statement)) and not guard.deferred) or is_early(found.file, found.node):
            continue
        if found.site is not None and is_plain(found.site):
            continue
        if found.model is not None and is_fresh(found.file, found.node, found.model):
            continue
        if found.model is not None and found.calls and is_left_out(found.file, found.model, found.calls[-1][1]):
            continue
        if not found.many and is_closed([*found.calls, (found.file, found.node)]):
            continue
        if any(_is_of_plain(sharding, is_fresh, *place) for place in (() if found.known else found.calls)):
            continue
        given = _handed_on(found)
        if given is not None and is_fresh(guard.file, found.calls[0][1], given):
            continue
        if all((o.node, o.thing, o.calls) != (found.node, found.thing, found.calls) for o in known):
            guards[guard.statement] = guard
            hidden[guard.statement] = [*known, found]
    for guard in list(guards.values()):
        first = next(iter(message_guards(guard.file, guard.statement)), guard.statement)
        if first is not guard.statement:
            guards[first] = Guard(guard.file, first)
            hidden[first] = [*hidden.get(first, []), *hidden.pop(guard.statement)]
            del guards[guard.statement]
    for guard in list(guards.values()):
        around = _holds_the_same(guard, guards, hidden)
        if around is not None:
            hidden[around] = [*hidden[around], *hidden.pop(guard.statement)]
            del guards[guard.statement]
    return [Site(g.file, g.statement, DEFERRED if g.deferred else GUARD, "guard") for g in guards.values()], hidden


def _holds_the_same(
    guard: Guard, guards: Mapping[ast.AST, Guard], hidden: Mapping[ast.AST, Sequence[Hidden]]
) -> ast.AST | None:
    """The guard around another one that keeps the same models and optimizers from some ranks, all of the inner one's."""
    things = {item.thing for item in hidden[guard.statement]}
    for around in guard.file.ancestors(guard.statement):
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)) or guard.deferred or None in things:
            return None
        if around in guards and not guards[around].deferred and things <= {item.thing for item in hidden[around]}:
            return around
    return None


def _inside(guard: ast.stmt) -> ast.AST:
    """A guard's place: of a function that some ranks alone may call, one in it, which is reached when it is called."""
    return guard.body[0] if isinstance(guard, (ast.FunctionDef, ast.AsyncFunctionDef)) else guard


def _is_of_plain(
    sharding: ShardingQueries, is_fresh: Callable[[File, ast.AST, ast.expr], bool], file: File, call: ast.Call
) -> bool:
    """Whether a call is one of a plain model's, and gets nothing else that is seen to be sharded: what it works on is plain."""
    model = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    if any(isinstance(v, (FunctionValue, ClassValue, ModuleValue, External)) for v in file.values(model)):
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return is_fresh(file, call, model) and not any(sharding.of_owners(file.values(one), path=file.path).wrappers for one in given)


def _handed_on(hidden: Hidden) -> ast.expr | None:
    """What the call behind a guard is given, where that is what is worked on in the functions that it leads to."""
    call = hidden.calls[0][1] if hidden.calls else None
    given = [*call.args, *(keyword.value for keyword in call.keywords)] if call is not None else []
    return next((one for one in given if ast.unparse(one) == hidden.thing), None)


def _all_hidden(
    guards: Guards, sharding: ShardingQueries, sites: Mapping[str, Sequence[Site]]
) -> Iterator[tuple[Guard, Hidden]]:
    program = guards.program
    for file in map(program.file, program.relevant_files()):
        of_sites: set[ast.AST] = set()
        for site in sites.get(file.path, ()):
            if site.role == "call" and site.call is not None and is_writer(site.symbol):
                for thing in _saved_things(sharding, file, site.call):
                    yield from _guards_around(guards, sharding, file, site.call, thing, None)
            if site.receiver is not None and is_summoned(file, site.node, site.receiver):
                continue
            if groups_read(file, site.call) is not None:
                continue  # nothing is gathered for it
            for model, objects in _models_taken(sharding, site):
                found = _guards_around(guards, sharding, file, site.node, model, None, objects)
                yield from ((guard, hidden) for guard, hidden in found if not _is_result(program, guard, hidden, site))
            for tensor in _copies_read(sharding, site):
                found = _guards_around(guards, sharding, file, site.node, tensor, None)
                yield from ((guard, hidden) for guard, hidden in found if _is_there(guard, hidden.thing))
            if _is_made_here(file, _thing(site)) or _is_libraries_of_fsdp1(program, site):
                continue  # by the ranks that come here, for themselves; or nothing was gathered for it
            if site.symbol in COLLECTIVE and _may_be_sharded(site, sharding) and not _is_local(program, site):
                for place in _calls_by_name(file, sharding, site) or [work_of(site)]:
                    of_sites.add(place)
                    yield from _guards_around(guards, sharding, file, place, _thing(site), site)
        for parameter, model in parameters_picked(file, sharding):
            yield from _guards_around(guards, sharding, file, parameter, model, None)
        for read in states_read(file):
            if sharding.of_optimizer(file, read.value).possible:
                yield from _guards_around(guards, sharding, file, read, read.value, None)
        for call in file.nodes(ast.Call):
            if is_initialization(file, call) and is_of_model(sharding, file.values(call.args[0]), file.variable(call.args[0])):
                found = _guards_around(guards, sharding, file, call, call.args[0], None)
                yield from ((guard, hidden) for guard, hidden in found if not hidden.calls)
            yield from work_of_kept(guards, file, sharding, call)
            for model in handed_out_of_sight(program, sharding, file, call):
                found = _guards_around(guards, sharding, file, call, model, None)
                yield from ((guard, hidden) for guard, hidden in found if hidden.calls)
            if sharding.of_called(file, call).wrappers:
                yield from _guards_around(guards, sharding, file, call, call.func, None)
            elif call not in of_sites and isinstance(call.func, ast.Name) and _is_of_sharded(sharding, file.called_values(call)):
                found = guards.of(file, call)
                yield from ((guard, Hidden(file, call, None, None, calls, many=guard.many)) for guard, calls in found)
        for test in file.nodes(ast.If):
            if is_rank_condition(file, test.test):
                yield from uses_behind(program, file, sharding, test, [*test.body, *behind_leaves(file, test)])
        for choice in file.nodes(ast.IfExp):
            if is_rank_condition(file, choice.test):
                yield from kept_by_some(program, file, sharding, choice)
        for loop in file.nodes(ast.For, ast.AsyncFor, ast.comprehension):
            body = [file.parents[loop]] if isinstance(loop, ast.comprehension) else loop.body
            if names_model(file, sharding, body) and is_uneven(file, loop):
                yield from uses_behind(program, file, sharding, loop, body)


def _saved_things(sharding: ShardingQueries, file: File, call: ast.Call) -> Iterator[ast.expr]:
    """What is pickled of sharded models, or an attribute that holds them; who hands them in is asked about there."""
    for saved in given_to(call):
        for owner, model in saved_models(sharding, file, saved):
            if owner is file and file.function(model) is file.function(call):
                yield model
            elif isinstance(saved, ast.Attribute):
                yield saved


def _may_be_sharded(site: Site, sharding: ShardingQueries) -> bool:
    """Whether a site may gather: the same question that decides whether it is rewritten."""
    if site.receiver is None:
        return True
    assert site.sharding is not None
    return site.sharding.possible or sharding.of_optimizer(site.file, site.receiver).possible


def _guards_around(
    guards: Guards, sharding: ShardingQueries, file: File, node: ast.AST, thing: ast.expr | None, site: Site | None,
    objects: frozenset[Value] = frozenset(),
) -> Iterator[tuple[Guard, Hidden]]:
    """The guards of a collective place, in its own function and in those that lead to it."""
    found = guards.of(file, node, _may_meet_measured_tests(guards.program, sharding, file, node, thing))
    if not found:
        return
    for spelling in [Spelling(sharding, file, node, one) for one in alternatives(file, thing)]:
        for guard, calls in found:
            if not spelling.is_plain(guard, calls):
                worked_on = objects or (objects_of(sharding, file, thing) if thing is not None else objects)
                yield guard, Hidden(file, node, spelling.at(guard, calls), site, calls, spelling.is_known, thing, guard.many,
                                    objects=worked_on, is_deferred=guard.deferred)  # fmt: skip


def _may_meet_measured_tests(
    program: Program, sharding: ShardingQueries, file: File, node: ast.AST, thing: ast.expr | None
) -> bool:
    """Whether some ranks alone could come here by what they measured: what FSDP1 gathers, all came to together."""
    if isinstance(node, ast.Call) and node.func is thing and may_learn(file, node):
        return False  # its backward takes all ranks
    found = [sharding.of(file, thing), sharding.of_optimizer(file, thing)] if thing is not None else []
    wrappers = {kind for sharded in found for kind in sharded.wrappers}
    return "ddp" in (wrappers or {value.kind.lower() for value in program.wraps})


def is_initialization(file: File, node: ast.AST) -> bool:
    """Whether a call gives a parameter new values: on some ranks alone, no shards can hold what these then have."""
    name = file.external(node.func) if isinstance(node, ast.Call) and node.args else None
    return name is not None and name.startswith("torch.nn.init.")


def work_of(site: Site) -> ast.AST:
    """The call of a method that is read off a model at a site, if it is called at once; else the site's own node."""
    parent = site.file.parents[site.node]
    return parent if isinstance(parent, ast.Call) and parent.func is site.node else site.node


def _thing(site: Site) -> ast.expr | None:
    """The model or optimizer that a site works on."""
    if site.receiver is not None:
        return site.receiver
    return site.call.args[0] if site.call is not None and site.call.args else None


def _is_made_here(file: File, thing: ast.expr | None) -> bool:
    """Whether an expression makes the object that it is about."""
    while isinstance(thing, (ast.Attribute, ast.Subscript)):
        thing = thing.value
    return isinstance(thing, ast.Call) and any(isinstance(value, ClassValue) for value in file.values(thing.func))


def _is_libraries_of_fsdp1(program: Program, site: Site) -> bool:
    """Whether a model of FSDP1 is handed to a library's method: one that gathered would have waited for the other ranks."""
    if site.symbol != MODULE_METHODS or site.sharding is None or site.sharding.wrappers != {"fsdp1"}:
        return False
    name = site.call.func.attr if site.call is not None and isinstance(site.call.func, ast.Attribute) else None
    return name is not None and name not in program.flow.methods_by_name()


def _models_taken(sharding: ShardingQueries, site: Site) -> Iterator[tuple[ast.expr | None, frozenset[Value]]]:
    """The models whose parameters a site gathers to copy them, to write plain ones from them, or to read a number off.

    With the model that a number comes from, which its place may have no name for.
    """
    if site.symbol == NUMBER and site.sharding is not None and site.sharding.wrappers == {"ddp"}:
        yield _model_read(sharding, site), frozenset([site.sharding.value] if site.sharding.value is not None else [])
    given = site.call.args if site.call is not None else []
    if site.symbol == "copy.deepcopy" and given and sharding.of(site.file, given[0]).wrappers:
        yield given[0], frozenset()
    if site.symbol == "builtins.zip":
        loops = [arg.func for arg in given if isinstance(arg, ast.Call) and isinstance(arg.func, ast.Attribute)]
        models = [loop.value for loop in loops if loop.attr in PARAMETERS_OF]
        sharded = [model for model in models if sharding.of(site.file, model).wrappers]
        if len(sharded) < len(given):  # else each rank writes its own parts
            yield from ((model, frozenset()) for model in sharded)


def _is_result(program: Program, guard: Guard, hidden: Hidden, site: Site) -> bool:
    """Whether a number is read off what was computed in front of a guard: it is plain, and nothing is gathered for it."""
    if site.symbol != NUMBER or site.receiver is None or guard.many or (hidden.thing and hidden.calls):
        return False
    block, index = guard.file.block_of(guard.statement)
    behind = block[index:] if guard.leaves else [guard.statement]
    places: list[tuple[File, ast.AST | None]] = [(guard.file, statement) for statement in behind]
    if hidden.calls:
        places += [(file, file.function(node)) for file, node in (*hidden.calls[1:], (site.file, site.node))]
    return not any(_takes_tensors(program, file, n) for file, place in places if place is not None for n in ast.walk(place))


def _takes_tensors(program: Program, file: File, node: ast.AST) -> bool:
    """Whether an expression is a parameter or gradient, or what a function of the repository computes from some."""
    kinds = {"statistic"} if isinstance(node, ast.Call) else {"parameters", "gradients"}
    if isinstance(node, ast.Call) and not program.callees(file, node):
        return False
    is_read = isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
    return is_read and any(isinstance(v, Derived) and v.kind in kinds for v in file.values(node))


def _copies_read(sharding: ShardingQueries, site: Site) -> Iterator[ast.expr]:
    """Copies of parameters that others are written from: where the model is held whole, what was copied before is not."""
    for given in site.call.args if site.symbol == IN_PLACE and site.call is not None else ():
        for tensor in parameters_in(site.file, given):
            if is_of_model(sharding, site.file.values(tensor), site.file.variable(tensor)):
                yield tensor


def _is_there(guard: Guard, thing: str | None) -> bool:
    """Whether a guard can name a thing, or may be able to: what is made behind it is whole."""
    return guard.many or (thing is not None and surely_there(guard.file, guard.statement, thing) == thing)


def _model_read(sharding: ShardingQueries, site: Site) -> ast.expr | None:
    """The model whose parameters a number is read off: in the expression itself, or where its function takes them."""
    assert site.receiver is not None
    named = (n for n in ast.walk(site.receiver) if isinstance(n, (ast.Name, ast.Attribute)))
    own = next((n for n in named if sharding.of(site.file, n).wrappers), None)
    return own or model_taken_apart(site.file, sharding, site.node)


def _is_local(program: Program, site: Site) -> bool:
    """Whether a site meets a plain model, or only asks a sharded one what it is like."""
    if site.role == "method" and isinstance(site.receiver, ast.Name) and site.receiver.id in ("self", "cls"):
        return True  # whoever called the method around this one is asked about
    return site.role == "method" and site.call is not None and only_asks(program, site.file, site.call)


def _calls_by_name(file: File, sharding: ShardingQueries, site: Site) -> list[ast.Call]:
    """The calls of a method that only gets a name at a site, in the same function: ``save = model.save``."""
    parent = file.parents[site.node]
    if site.symbol != MODULE_METHODS or not isinstance(parent, ast.Assign) or not isinstance(parent.targets[0], ast.Name):
        return []
    name, scope = parent.targets[0].id, file.function(parent) or file.tree
    calls = (n for n in ast.walk(scope) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == name)
    return [call for call in calls if _is_of_sharded(sharding, file.called_values(call))]


def _is_of_sharded(sharding: ShardingQueries, called: Sequence[Value]) -> bool:
    """Whether a method of a sharded model is called under a name of its own, as it was handed on."""
    return any(isinstance(v, Bound) and sharding.of_owners([v.receiver]).wrappers for v in called)  # type: ignore[list-item]
