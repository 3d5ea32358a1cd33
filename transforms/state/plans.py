"""Plans for reads of state: with which options, and in front of which guard, each is written."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace

from ..analysis.values import Annotated, Wrapped
from ..migration import Migration
from ..ranks.front import left_out
from ..ranks.guards import Guard, GuardFinder, bound_between
from ..ranks.lazily import guard_of_iteration
from ..text.patches import Old, Part
from ..training.in_scope import holds_ddp
from ..view import FileView
from .arithmetic import is_computed_with
from .contexts import OLD_RANK_FILES, Config, StateContext, bound_arguments, context_at
from .either import EITHER, TELL, may_be_either
from .first_step import may_precede_first_step
from .left_over import LEFT_OVER, PAIRED, is_left_over
from .lifting import Lift, lift_of
from .parameters_beside import APART, BESIDE, has_parameters_beside
from .rank_zero import rank_zero_alone_reads
from .reads import StateRead, groups_of_optimizers
from .several_models import OF_SEVERAL, TOGETHER, is_over_several


@dataclass(frozen=True)
class StateOptions:
    """The ``StateDictOptions`` of a read."""

    full: bool = True
    cpu_offload: bool = False
    condition: str | None = None
    """Text that decides about ``cpu_offload`` at run time."""
    full_if: str | None = None
    """Text that decides about ``full_state_dict`` at run time."""
    name: str | None = None
    """A variable that holds the options."""


@dataclass
class ReadPlan:
    """How one read is rewritten; ``problem`` says why it cannot be."""

    problem: str = ""
    advice: str = ""
    options: StateOptions = field(default_factory=StateOptions)
    guard: Guard | None = None
    """The guard in front of which the read moves."""
    lift: Lift | None = None
    """Set where the read moves to the callers of its function."""
    name: str = ""
    fresh: bool = False
    """Whether the optimizer may not have made a step yet."""
    notes: list[str] = field(default_factory=list)


ON_DEVICE = "every rank gets the full state on its device now, where FSDP1 put it on the CPU by default"
SEVERAL = "this may be the optimizer of one of several models"


def plan_of(migration: Migration, read: StateRead) -> ReadPlan:
    """How a read is rewritten, decided once."""

    def make() -> ReadPlan:
        plan = _plan(migration, read)
        plan.fresh = read.kind == "optimizer" and may_precede_first_step(migration, read)
        if plan.fresh:
            plan.notes.append("an optimizer without a step is left as it is: the helper would count a first step")
        return plan

    return migration.once("state read plan", read, make)


def _plan(migration: Migration, read: StateRead) -> ReadPlan:
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    plan = ReadPlan()
    if read.kind == "model" and not read.is_argument and (read.call.args or read.call.keywords):
        plan.problem = "state_dict() is called with arguments"
        plan.advice = "Call get_model_state_dict(model, options=…) and apply the prefix or the filter to its result."
        return plan
    if isinstance(read.optimizer, ast.expr):
        several = groups_of_optimizers(migration, read.view.values(read.optimizer))
        if len(several) > 1:
            plan.problem = SEVERAL
            plan.advice = "Take each optimizer's state with get_optimizer_state_dict and its own model."
            return plan
        if not read.legacy and is_over_several(migration, read.view, read.optimizer):
            plan.problem, plan.advice = OF_SEVERAL, TOGETHER
            return plan
        if not read.legacy and has_parameters_beside(migration, read.view.values(read.optimizer)):
            plan.problem, plan.advice = BESIDE, APART
            return plan
        if not read.legacy and is_left_over(read.view, read.call, read.optimizer, read.model):
            plan.problem, plan.advice = LEFT_OVER, PAIRED
            return plan
        if not read.legacy and may_be_either(migration, read.view, read.optimizer):
            plan.problem, plan.advice = EITHER, TELL
            return plan
    context = context_at(migration, read.view, read.call, read.group)
    if context.kind == "unknown":
        plan.problem = "which kind of state dict this is, is only decided at run time"
        getter = "get_optimizer_state_dict(model, optimizer" if read.kind == "optimizer" else "get_model_state_dict(model"
        plan.advice = (
            f"Call {getter}, options=StateDictOptions(full_state_dict=…, cpu_offload=…)) with options chosen where the kind "
            "is chosen."
        )
        return plan
    if context.may_be_local:
        plan.notes.append(OLD_RANK_FILES)
    if context.choice is not None and context.choice.is_elsewhere(read.view, read.call):
        plan.notes.append(f"the kind is read off {context.choice.text} each time, not only where it was set")
    if read.may_lose_prefix:
        plan.notes.append("where DDP wrapped the model, keys began with module.; they no longer do")
    if read.may_be_ddp and read.kind == "optimizer" and not holds_ddp(read.view, read.call, read.model):
        plan.problem = "this may be the optimizer of a model that stays under DDP, and no name here refers to that model"
        plan.advice = "Pass the model in, and take optimizer.state_dict() where it is a DistributedDataParallel."
        return plan
    if _may_have_wrapped_parts(migration, read):
        plan.notes.append("where DDP wrapped parts of the model, their keys have no module. in them any more")
    guards = finder.around(read.view, read.call)
    outside = finder.callers_guarded(read.view, read.call)
    if any(guard is not None and guard.kind == "deferred" for guard in (outside, *guards)):
        plan.problem = (
            "this runs in a thread, a process, a signal handler or at exit, and gathering takes all ranks at one place of "
            "the program"
        )
        plan.advice = (
            "Call get_model_state_dict / get_optimizer_state_dict on all ranks where the work is handed on, and hand on "
            "the result."
        )
        return plan
    late = guard_of_iteration(finder, read.view, read.call) if outside is None and not guards else None
    if late is not None:
        plan.problem = f"this is computed where it is iterated, behind the rank guard at line {late.statement.lineno}: it hangs"
        plan.advice = "Take it into a list or a dict on all ranks, in front of the guard."
        return plan
    if outside is not None or any(guard.kind == "decorator" for guard in guards):
        plan.lift = lift_of(migration, finder, read) if not context.may_be_sharded else None
        if plan.lift is not None:
            plan.notes.extend(plan.lift.notes)
            return plan
        place = f"{outside.view.path}:{outside.statement.lineno}" if outside is not None else "its decorator"
        plan.problem = f"this function runs on some ranks only (guard at {place}), but gathering needs all of them"
        plan.advice = (
            "Call get_model_state_dict / get_optimizer_state_dict on all ranks in front of the guard and pass the "
            "result in."
        )
        return plan
    if read.model is None:
        plan.lift = lift_of(migration, finder, read)
        if plan.lift is not None:
            return plan
        plan.problem = "no name here refers to the model whose optimizer this is"
        plan.advice = "Pass the model to this function and call get_optimizer_state_dict(model, optimizer, …)."
        return plan
    if guards:
        _plan_hoist(migration, finder, read, guards, plan)
        if context.may_be_sharded:
            plan.problem = "a sharded state dict is taken on some ranks only"
            plan.advice = "Save sharded state with dcp.save on all ranks."
        return plan
    plan.options = options_of(read, context, plan.notes)
    kinds = read.group.kinds if read.group is not None else set[str]()
    may_offload = "DDP" in kinds or ON_DEVICE in plan.notes
    if may_offload and plan.options == StateOptions() and rank_zero_alone_reads(finder, read.view, read.call):
        plan.options = _of_rank_zero(read, context)
        plan.notes = [note for note in plan.notes if note != ON_DEVICE]
    return plan


def _of_rank_zero(read: StateRead, context: StateContext) -> StateOptions:
    """Options for a state that rank 0 alone needs; those of the model beside it, where they say the same."""
    config = context.model
    if config is not None and config.name is not None and config.is_at_hand(read.view, read.call):
        shared = config_options(context.kind, config, [])
        if shared.full and shared.cpu_offload and shared.condition is None:
            return shared
    return StateOptions(cpu_offload=True)


def _may_have_wrapped_parts(migration: Migration, read: StateRead) -> bool:
    """Whether the state is that of a model which may not be wrapped itself, and models with wrapped parts exist."""
    if not migration.groups.has_wrapped_parts or read.kind != "model" or not isinstance(read.model, ast.expr):
        return False
    kinds = read.group.kinds if read.group is not None else set[str]()
    values = read.view.values(read.model)
    return "DDP" in kinds and not (values and all(isinstance(value, (Wrapped, Annotated)) for value in values))


def options_of(read: StateRead, context: StateContext, notes: list[str]) -> StateOptions:
    """Options for a read in its context; what cannot be had exactly goes into ``notes``."""
    if read.legacy == "sharded_optim_state_dict":
        return StateOptions(full=False)
    if read.legacy == "full_optim_state_dict":
        rank0_only = bound_arguments(read.call, ("model", "optim", "optim_input", "rank0_only")).get("rank0_only")
        if rank0_only is None or (isinstance(rank0_only, ast.Constant) and rank0_only.value is True):
            return StateOptions(cpu_offload=True)
        if isinstance(rank0_only, ast.Constant):
            notes.append("every rank gets the full state on its device now, where FSDP1 put it on the CPU")
            return StateOptions()
        condition = read.view.text(rank0_only)
        notes.append(f"where {condition} is false, every rank gets the full state on its device; FSDP1 put it on the CPU")
        return StateOptions(condition=condition)
    config = context.model if read.kind == "model" else context.optimizer
    if config is not None and not config.is_at_hand(read.view, read.call):
        config = replace(config, name=None)
    if context.choice is not None:
        return StateOptions(full=False, full_if=context.choice.is_full, name=config.name if config is not None else None)
    if read.legacy == "optim_state_dict" and context.kind == "full" and config is None:
        notes.append(ON_DEVICE)
    return config_options(context.kind, config, notes)


def config_options(kind: str, config: Config | None, notes: list[str]) -> StateOptions:
    """What a ``*StateDictConfig`` is as ``StateDictOptions``."""
    if kind in ("sharded", "local"):
        if config is None:
            return StateOptions(full=False)
        return StateOptions(full=False, cpu_offload=config.asks_to_offload, name=config.name)
    if config is None:
        return StateOptions()
    if config.asks_to_offload and config.rank0_only is False:
        notes.append(
            "every rank keeps the full state, now on its device: cpu_offload=True would leave it to rank 0 alone"
        )
    condition = config.condition if config.name is None else None
    return StateOptions(cpu_offload=config.rank0_only is True, condition=condition, name=config.name)


def _plan_hoist(
    migration: Migration, finder: GuardFinder, read: StateRead, guards: list[Guard], plan: ReadPlan
) -> None:
    """Moves a read in front of the outermost guard around it."""
    guard = guards[0]
    nodes = [node for node in (read.model, read.optimizer) if isinstance(node, ast.expr)]
    needed = {name for node in nodes for name in read.view.names_in(node)}
    if isinstance(read.model, str):
        needed.add(read.model.partition(".")[0])
    bound = needed & bound_between(read.view, guard, read.call)
    if bound:
        names = " and ".join(sorted(bound))
        plan.problem = f"{names} is only bound behind the rank guard, and gathering its state takes all ranks"
        plan.advice = "Bind it, or go through what holds it, and gather the state in front of the guard on all ranks."
        return
    plan.guard = guard
    is_alone = finder.lets_only_rank_zero_to(read.view, read.call)
    is_computed = not read.is_argument and is_computed_with(read.view, read.call)
    plan.options = StateOptions(cpu_offload=is_alone and not is_computed)
    receiver = read.optimizer if read.optimizer is not None else read.model
    plan.name = gathered_name(migration, read.view, read.call, read.kind, receiver)
    dropped = left_out(finder, read.view, guard, read.call)
    if dropped:
        plan.notes.append(f"all ranks gather also where `{dropped[0]}` does not hold: ranks may differ about it")
    if is_computed:
        plan.notes.append("every rank gets the full state, on its device, since it is computed with")
    elif not plan.options.cpu_offload:
        plan.notes.append("the guard may let several ranks pass, so every rank gets the full state")


def gathered_name(
    migration: Migration, view: FileView, place: ast.AST, kind: str, receiver: ast.expr | Part | None
) -> str:
    """A name for gathered state that nothing in the function uses: one for each model and optimizer."""
    scope = view.function(place) or view.tree
    taken: dict[tuple[str, str], str] = migration.once("gathered names", (view, scope), dict)
    if isinstance(receiver, Old):
        text = view.source.text[receiver.start : receiver.end]
    else:
        text = view.text(receiver) if isinstance(receiver, ast.expr) else str(receiver)
    key = (kind, text)
    if key not in taken:
        last = text.removesuffix(".module").rpartition(".")[2]
        name = view.free_name(place, f"{last if last.isidentifier() else 'model'}_state_dict")
        while name in taken.values():
            name += "_2"
        taken[key] = name
    return taken[key]
