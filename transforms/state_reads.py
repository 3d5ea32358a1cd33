"""Reads of model and optimizer state, and how each is written with the state-dict helpers of DCP.

Every read becomes ``get_model_state_dict`` or ``get_optimizer_state_dict``. Gathering is collective, so a read
behind a rank guard moves in front of it and leaves the name of its result in its place.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from .dedent import unwraps
from .findings import Level
from .generated import call_text, replaced_call
from .groups import Group
from .rank_guards import Guard, GuardFinder
from .in_scope import model_at
from .migration import Migration
from .patches import Part, Patch
from .rule import Outcome
from .sites import Site
from .state_contexts import Config, StateContext, bound_arguments, context_at
from .values import Annotated, Instance, Opaque, Optimizer, Unknown, Wrapped
from .view import FileView

_MODULE = "torch.distributed.checkpoint.state_dict"
OPTIONS = f"{_MODULE}.StateDictOptions"
GET_MODEL = f"{_MODULE}.get_model_state_dict"
SET_MODEL = f"{_MODULE}.set_model_state_dict"
GET_OPTIMIZER = f"{_MODULE}.get_optimizer_state_dict"
SET_OPTIMIZER = f"{_MODULE}.set_optimizer_state_dict"
OPTIMIZER_READS = ("optim_state_dict", "full_optim_state_dict", "sharded_optim_state_dict")


@dataclass(frozen=True, eq=False)
class StateRead:
    """One call that reads state: ``model.state_dict()``, ``optimizer.state_dict()`` or ``FSDP.optim_state_dict(…)``."""

    view: FileView
    call: ast.Call
    group: Group | None
    kind: str
    """``model`` or ``optimizer``."""
    model: ast.expr | str | None
    """The model, as a node of this place or as text; None where nothing in scope refers to it."""
    optimizer: ast.expr | None = None
    legacy: str = ""
    """Name of the static method of FSDP1, empty for a plain ``state_dict()``."""
    prefixed: bool = False
    """Whether the keys carry DDP's ``module.``."""

    @property
    def statement(self) -> ast.stmt:
        return self.view.statement(self.call)


@dataclass(frozen=True)
class StateOptions:
    """The ``StateDictOptions`` of a read."""

    full: bool = True
    cpu_offload: bool = False
    condition: str | None = None
    """Text that decides about ``cpu_offload`` at run time."""
    name: str | None = None
    """A variable that holds the options."""


@dataclass
class ReadPlan:
    """How one read is rewritten; ``problem`` says why it cannot be."""

    problem: str = ""
    advice: str = ""
    options: StateOptions = field(default_factory=StateOptions)
    guard: Guard | None = None
    name: str = ""
    notes: list[str] = field(default_factory=list)


def reads(migration: Migration) -> list[StateRead]:
    """All reads of state that belong to a group, in the order of files and text."""
    return migration.once("state reads", None, lambda: _find_reads(migration))


def read_of(migration: Migration, call: ast.Call) -> StateRead | None:
    """The read that a call is."""
    return next((read for read in reads(migration) if read.call is call), None)


def _find_reads(migration: Migration) -> list[StateRead]:
    found: list[StateRead] = []
    for path in sorted(migration.sites):
        for site in migration.sites[path]:
            if site.call is None or site.role not in ("use", "call"):
                continue
            if site.role == "use" and site.member == "state_dict" and isinstance(site.node, ast.Attribute):
                found.extend(_read_at(migration, site, site.node.value))
            elif site.member in OPTIMIZER_READS:
                read = legacy_read(site)
                if read is not None:
                    found.append(read)
    known = {read.call for read in found}
    for view, call, group in optimizer_calls(migration, "state_dict"):
        if call in known or not isinstance(call.func, ast.Attribute):
            continue
        model = model_at(migration.groups, view, call, group)
        found.append(StateRead(view, call, group, "optimizer", model, call.func.value))
    found.sort(key=lambda read: (read.view.path, read.view.source.span(read.call)))
    return found


def _read_at(migration: Migration, site: Site, receiver: ast.expr) -> list[StateRead]:
    """The read that ``receiver.state_dict()`` is; none where it has nothing to do with sharding."""
    view, call, group = site.view, site.call, site.group
    if call is None or of_another_program(migration, site):
        return []
    if is_optimizer(site) and group is not None:
        return [StateRead(view, call, group, "optimizer", model_at(migration.groups, view, call, group), receiver)]
    if before_wrap(migration, site):
        return []
    return [StateRead(view, call, group, "model", receiver, prefixed=is_prefixed(site))]


def legacy_read(site: Site) -> StateRead | None:
    """``FSDP.optim_state_dict(model, optimizer)`` and its kin, also as a method of the model."""
    call, group = site.call, site.group
    assert call is not None
    names = ("model", "optim")
    if site.role == "use" and isinstance(site.node, ast.Attribute) and len(call.args) + len(call.keywords) == 1:
        # model.optim_state_dict(optimizer) is no form of FSDP1: the method is static
        return None
    arguments = bound_arguments(call, names)
    model, optimizer = arguments.get("model"), arguments.get("optim")
    if model is None or optimizer is None:
        return None
    return StateRead(site.view, call, group, "optimizer", model, optimizer, site.member)


def optimizer_calls(migration: Migration, method: str) -> list[tuple[FileView, ast.Call, Group]]:
    """Calls of a method of the optimizers of the groups."""

    def find() -> list[tuple[FileView, ast.Call, Group]]:
        program = migration.program
        found: list[tuple[FileView, ast.Call, Group]] = []
        for number, call in enumerate(program.flow.calls):
            if call.method != method:
                continue
            values = program.flow.values_of(call.function)
            owned = [v for v in values if isinstance(v, Optimizer)]
            group = migration.groups.of(owned)
            if group is not None and owned:
                view, node = program.call_node(number)
                found.append((view, node, group))
        return found

    return migration.once("optimizer calls", method, find)


def before_wrap(migration: Migration, site: Site) -> bool:
    """Whether a use always runs before every wrap of its group.

    What a local name holds is known at each place; what an attribute holds, only over the whole program.
    """
    if site.group is None or any(isinstance(v, Annotated) for v in site.values):
        return False
    is_local = isinstance(site.node, ast.Attribute) and isinstance(site.node.value, ast.Name)
    if is_local and any(isinstance(v, Wrapped) for v in site.values):
        return False
    place = (site.view, site.node)
    relations = {migration.order.relation(place, (wrap.view, wrap.node)) for wrap in site.group.wraps}
    return relations - {"unknown"} == {"before"}


def of_another_program(migration: Migration, site: Site) -> bool:
    """Whether a model is only related to a wrapped one by the factory that makes both, as in scripts side by side."""
    if site.group is None or not all(isinstance(v, Opaque) and v.name == "?" for v in site.values):
        return False
    place = (site.view, site.node)
    return all(
        wrap.view is not site.view and migration.order.relation(place, (wrap.view, wrap.node)) == "unknown"
        for wrap in site.group.wraps
    )


def is_optimizer(site: Site) -> bool:
    """Whether a receiver that may be a model is an optimizer: it holds one, or no model is known and its name says so."""
    if any(isinstance(v, Optimizer) for v in site.values):
        return True
    if not isinstance(site.node, ast.Attribute) or any(isinstance(v, (Wrapped, Annotated, Instance)) for v in site.values):
        return False
    return "optim" in _last(site.node.value).lower()


def is_prefixed(site: Site) -> bool:
    """Whether a state dict read here carries DDP's ``module.`` prefix."""
    wrapped = [v for v in site.values if isinstance(v, (Wrapped, Annotated))]
    return bool(wrapped) and all(v.kind == "DDP" for v in wrapped) and not site.maybe_plain


# --- planning --------------------------------------------------------------------------------------------


def plan_of(migration: Migration, read: StateRead) -> ReadPlan:
    """How a read is rewritten, decided once."""
    return migration.once("state read plan", read, lambda: _plan(migration, read))


def _plan(migration: Migration, read: StateRead) -> ReadPlan:
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    plan = ReadPlan()
    if read.model is None:
        plan.problem = "no name here refers to the model whose optimizer this is"
        plan.advice = "Pass the model to this function and call get_optimizer_state_dict(model, optimizer, …)."
        return plan
    if read.kind == "model" and (read.call.args or read.call.keywords):
        plan.problem = "state_dict() is called with arguments"
        plan.advice = "Call get_model_state_dict(model, options=…) and apply the prefix or the filter to its result."
        return plan
    context = context_at(migration, read.view, read.call, read.group)
    if context.kind in ("local", "unknown"):
        plan.problem = _CONTEXT_PROBLEMS[context.kind]
        plan.advice = _CONTEXT_ADVICE[context.kind]
        return plan
    guards = finder.around(read.view, read.call)
    outside = finder.callers_guarded(read.view, read.call)
    if outside is not None or any(guard.kind == "decorator" for guard in guards):
        place = f"{outside.view.path}:{outside.statement.lineno}" if outside is not None else "its decorator"
        plan.problem = f"this function runs on some ranks only (guard at {place}), but gathering the state needs all of them"
        plan.advice = (
            "Call get_model_state_dict / get_optimizer_state_dict on all ranks in front of the guard and pass the result in."
        )
        return plan
    if guards:
        _plan_hoist(migration, finder, read, guards, plan)
        if context.kind == "sharded":
            plan.problem = "a sharded state dict is taken on some ranks only"
            plan.advice = "Save sharded state with dcp.save on all ranks."
        return plan
    plan.options = options_of(read, context, plan.notes)
    kinds = read.group.kinds if read.group is not None else set[str]()
    if kinds == {"DDP"} and plan.options == StateOptions() and rank_zero_alone_reads(finder, read.view, read.call):
        plan.options = StateOptions(cpu_offload=True)
    return plan


_CONTEXT_PROBLEMS = {
    "local": "LOCAL_STATE_DICT writes FSDP1's flat shards, which FSDP2 does not have",
    "unknown": "which kind of state dict this is, is only decided at run time",
}
_CONTEXT_ADVICE = {
    "local": "Use a sharded state dict: get_model_state_dict(model) saved with dcp.save, loaded with dcp.load. "
    "Convert old files with the old program: load them there and save with dcp.save.",
    "unknown": "Call get_model_state_dict(model, options=StateDictOptions(full_state_dict=…, cpu_offload=…)) "
    "with options chosen where the kind is chosen.",
}


def options_of(read: StateRead, context: StateContext, notes: list[str]) -> StateOptions:
    """Options for a read in its context; what cannot be had exactly goes into ``notes``."""
    if read.legacy == "sharded_optim_state_dict":
        return StateOptions(full=False)
    if read.legacy == "full_optim_state_dict":
        rank0_only = bound_arguments(read.call, ("model", "optim", "optim_input", "rank0_only")).get("rank0_only")
        if rank0_only is None or (isinstance(rank0_only, ast.Constant) and rank0_only.value is True):
            return StateOptions(cpu_offload=True)
        if isinstance(rank0_only, ast.Constant):
            return StateOptions()
        return StateOptions(condition=read.view.text(rank0_only))
    config = context.model if read.kind == "model" else context.optimizer
    return config_options(context.kind, config, notes)


def config_options(kind: str, config: Config | None, notes: list[str]) -> StateOptions:
    """What a ``*StateDictConfig`` is as ``StateDictOptions``."""
    if kind == "sharded":
        if config is None:
            return StateOptions(full=False)
        return StateOptions(full=False, cpu_offload=config.asks_to_offload, name=config.name)
    if config is None:
        return StateOptions()
    if config.asks_to_offload and config.rank0_only is False:
        notes.append(
            "every rank keeps the full state, now on its device: cpu_offload=True would leave it to rank 0 alone"
        )
    return StateOptions(
        cpu_offload=config.rank0_only is True, condition=config.condition if config.name is None else None, name=config.name
    )


def rank_zero_alone_reads(finder: GuardFinder, view: FileView, node: ast.expr, depth: int = 0) -> bool:
    """Whether a value is bound to a local name, or put into a dict that is, which rank 0 alone goes on to read."""
    statement = view.statement(node)
    function = view.function(node)
    value = getattr(statement, "value", None)
    held = value is node or (isinstance(value, ast.Dict) and node in value.values)
    if function is None or not isinstance(statement, ast.Assign) or not held or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    return isinstance(target, ast.Name) and _rank_zero_alone_uses(finder, view, function, target.id, depth)


def _rank_zero_alone_uses(finder: GuardFinder, view: FileView, function: ast.AST, name: str, depth: int) -> bool:
    """Whether every use of a local name is behind a guard for rank 0, here or in the function it is handed to."""
    uses = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    ]
    return bool(uses) and all(
        any(finder.passes_only_rank_zero(guard) for guard in finder.around(view, use))
        or _handed_to_rank_zero(finder, view, use, depth)
        for use in uses
    )


def _handed_to_rank_zero(finder: GuardFinder, view: FileView, use: ast.Name, depth: int) -> bool:
    call = view.parents[use]
    if not isinstance(call, ast.Call) or use not in call.args or depth > 2:
        return False
    callees = finder.program.callees(view, call)
    for callee in callees:
        owner, function = finder.program.function_node(callee)
        arguments = getattr(function, "args", None)
        if not isinstance(arguments, ast.arguments):
            return False
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        place = call.args.index(use) + (1 if names[:1] == ["self"] else 0)
        name = names[place] if place < len(names) else arguments.vararg.arg if arguments.vararg else ""
        if not name or not _rank_zero_alone_uses(finder, owner, function, name, depth + 1):
            return False
    return bool(callees)


def _plan_hoist(
    migration: Migration, finder: GuardFinder, read: StateRead, guards: list[Guard], plan: ReadPlan
) -> None:
    """Moves a read in front of the outermost guard around it."""
    guard = guards[0]
    receiver = [node for node in (read.model, read.optimizer) if isinstance(node, ast.expr)]
    needed = {name for node in receiver for name in read.view.names_in(node)}
    if isinstance(read.model, str):
        needed.add(read.model.partition(".")[0])
    if needed & _bound_between(read.view, guard, read.call):
        plan.problem = "the state of something that is only made behind a rank guard is read there"
        plan.advice = "Make it, and gather its state, in front of the guard on all ranks."
        return
    plan.guard = guard
    plan.options = StateOptions(cpu_offload=finder.passes_only_rank_zero(guard))
    plan.name = _hoisted_name(migration, read)
    if not plan.options.cpu_offload:
        plan.notes.append("the guard may let several ranks pass, so every rank gets the full state")


def _bound_between(view: FileView, guard: Guard, node: ast.AST) -> set[str]:
    """Names that are assigned behind a guard, before a place."""
    end = view.source.span(node)[0]
    start = view.source.span(guard.statement)[0]
    return {
        inner.id
        for inner in ast.walk(view.function(node) or view.tree)
        if isinstance(inner, ast.Name)
        and isinstance(inner.ctx, ast.Store)
        and start <= view.source.span(inner)[0] < end
    }


def _hoisted_name(migration: Migration, read: StateRead) -> str:
    """A name for gathered state that nothing in the function uses, apart for each model."""
    scope = read.view.function(read.call) or read.view.tree
    taken: dict[tuple[str, str], str] = migration.once("hoisted names", (read.view, scope), dict)
    what = ast.dump(read.optimizer) if read.optimizer is not None else _key(read.model)
    key = (read.kind, what)
    if key not in taken:
        wanted = f"{_last(read.optimizer if read.optimizer is not None else read.model)}_state_dict"
        name = read.view.free_name(read.call, wanted)
        while name in taken.values():
            name += "_2"
        taken[key] = name
    return taken[key]


def _key(node: ast.expr | str | None) -> str:
    return ast.dump(node) if isinstance(node, ast.expr) else str(node)


def _last(node: ast.expr | str | None) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr if node.attr != "module" else _last(node.value)
    if isinstance(node, ast.Name):
        return node.id
    return "other"


# --- writing ---------------------------------------------------------------------------------------------


def optimizer_outcome(migration: Migration, read: StateRead) -> Outcome:
    """``optimizer.state_dict()`` becomes ``get_optimizer_state_dict``."""
    plan = plan_of(migration, read)
    if plan.problem:
        return Outcome(Level.MANUAL, plan.problem, plan.advice, holds=True)
    message = "the optimizer state is gathered from the shards; its keys are parameter names instead of numbers"
    if plan.guard is not None:
        message += ", on all ranks in front of the rank guard"
    outcome = Outcome(Level.REVIEW if plan.notes else Level.SAFE, "; ".join([message, *plan.notes]))
    write_read(migration, read, plan, outcome)
    return outcome


def write_read(migration: Migration, read: StateRead, plan: ReadPlan, outcome: Outcome) -> None:
    """Adds the patches of a read to its outcome."""
    view = read.view
    why = "state is gathered by the helpers of DCP"
    if plan.guard is None:
        name, arguments = read_call(migration, read, plan, outcome, read.call)
        if read.prefixed:
            parts = _with_prefix(view, read.call, name, arguments)
        else:
            parts = replaced_call(view, read.call, name, arguments, unwraps(view, read.call))
        outcome.patches.append(view.replace(read.call, parts, why))
        return
    outcome.patches.append(view.replace(read.call, plan.name, why))
    outcome.patches.append(hoisted(migration, read, plan, outcome))


def read_call(
    migration: Migration, read: StateRead, plan: ReadPlan, outcome: Outcome, node: ast.AST
) -> tuple[str, list[Sequence[Part]]]:
    """Function name and arguments of the new call."""
    view = read.view
    name = migration.use(outcome, view, GET_MODEL if read.kind == "model" else GET_OPTIMIZER, node)
    arguments: list[Sequence[Part]] = [(_part(view, read.model),)]
    if read.kind == "optimizer":
        arguments.append((_part(view, read.optimizer),))
    options = options_text(migration, plan.options, outcome, view, node)
    if options:
        arguments.append((f"options={options}",))
    return name, arguments


def _part(view: FileView, node: ast.expr | str | None) -> Part:
    return view.keep(node) if isinstance(node, ast.expr) else str(node)


def _with_prefix(view: FileView, node: ast.AST, name: str, arguments: list[Sequence[Part]]) -> list[Part]:
    """A comprehension over the gathered state that gives the keys DDP's prefix back."""
    indent = view.source.indent_at(view.source.span(node)[0])
    inner = indent + "    "
    head = "for name, tensor in "
    call = call_text(name, arguments, inner, len(inner) + len(head), len(".items()"))
    return [f'{{\n{inner}f"module.{{name}}": tensor\n{inner}{head}', *call, f".items()\n{indent}}}"]


def options_text(migration: Migration, options: StateOptions, outcome: Outcome, view: FileView, node: ast.AST) -> str:
    """``StateDictOptions(…)``, the variable that holds it, or nothing where the defaults are meant."""
    if options.name is not None:
        return options.name
    flags: list[str] = []
    if options.full:
        flags.append("full_state_dict=True")
    if options.cpu_offload:
        flags.append("cpu_offload=True")
    elif options.condition is not None:
        flags.append(f"cpu_offload={options.condition}")
    if not flags:
        return ""
    return f"{migration.use(outcome, view, OPTIONS, node)}({', '.join(flags)})"


def hoisted(migration: Migration, read: StateRead, plan: ReadPlan, outcome: Outcome) -> Patch:
    """The gathering of every read behind one guard, once for all of them, in front of it."""
    assert plan.guard is not None
    view, place = read.view, plan.guard.statement
    together = [
        (other, other_plan)
        for other in reads(migration)
        if other.view is view and other.group is read.group
        for other_plan in (plan_of(migration, other),)
        if other_plan.guard is not None and other_plan.guard.statement is place and not other_plan.problem
    ]
    blocks: list[tuple[str, list[Part]]] = []
    indent = view.indent(place)
    written: set[str] = set()
    for other, other_plan in together:
        if other_plan.name in written:
            continue
        written.add(other_plan.name)
        condition = _condition(migration, other, other_plan)
        if not blocks or blocks[-1][0] != condition:
            blocks.append((condition, []))
        inner = indent + ("    " if condition else "")
        name, arguments = read_call(migration, other, other_plan, outcome, place)
        head = f"{inner}{other_plan.name} = "
        blocks[-1][1].extend((head, *call_text(name, arguments, inner, len(head)), "\n"))
        if other.prefixed:
            named = f'{{f"module.{{name}}": tensor for name, tensor in {other_plan.name}.items()}}'
            blocks[-1][1].append(f"{head}{named}\n")
    parts: list[Part] = []
    for condition, lines in blocks:
        if condition:
            parts.append(f"{indent}if {condition}:\n")
        parts.extend(lines)
    return view.insert_before(place, parts, "gathering is collective: it moves in front of the rank guard")


def _condition(migration: Migration, read: StateRead, plan: ReadPlan) -> str:
    """Under what condition the read behind the guard happens, where that is known in front of it; else empty."""
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    view, guard = read.view, plan.guard
    assert guard is not None
    conditions: list[str] = []
    child: ast.AST = read.call
    bound = _bound_between(view, guard, read.call)
    for ancestor in view.ancestors(read.call):
        if isinstance(ancestor, ast.If) and child is not ancestor.test:
            negated = child in ancestor.orelse
            operands = ancestor.test.values if _is_and(ancestor.test) else [ancestor.test]
            for operand in operands:
                if finder.conditions.selects_ranks(view, operand) or (negated and len(operands) > 1):
                    continue
                if not _is_pure(operand) or view.names_in(operand) & bound:
                    continue
                text = view.text(operand)
                conditions.insert(0, f"not ({text})" if negated else _bracketed(operand, text, len(operands)))
        if ancestor is guard.statement or isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef)):
            break
        child = ancestor
    return " and ".join(conditions)


def _is_and(test: ast.expr) -> bool:
    return isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)


def _bracketed(operand: ast.expr, text: str, operands: int) -> str:
    needs = isinstance(operand, (ast.BoolOp, ast.IfExp, ast.Lambda)) and operands == 1
    return f"({text})" if needs and not _is_and(operand) else text


def _is_pure(test: ast.expr) -> bool:
    """Whether an expression may be evaluated twice: no calls, nothing awaited or assigned."""
    return not any(
        isinstance(node, (ast.Call, ast.Await, ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Lambda)) for node in ast.walk(test)
    )


MODEL_LIKE = (Wrapped, Annotated, Instance, Opaque, Unknown)
"""Values that may be models."""
