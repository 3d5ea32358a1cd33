"""Loading of model and optimizer state, and how each is written with the state-dict helpers of DCP."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..analysis.values import Optimizer
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..ranks.guards import GuardFinder
from ..rule import Outcome
from ..sites import Site
from ..text.dedent import unwraps
from ..text.generated import removed, replaced_call
from ..text.patches import Part, Patch
from ..training.in_scope import holds_ddp, inside_data_parallel, model_at
from ..view import FileView
from .contexts import bound_arguments, context_at
from .ddp_loads import beside_own_load
from .either import EITHER, TELL, may_be_either
from .later_schedulers import KEEPS, later_scheduler, makes_room
from .left_over import LEFT_OVER, PAIRED, is_left_over
from .lifting import passed_in_model
from .parameters_beside import APART, BESIDE, has_parameters_beside
from .pending_gradients import backward_before
from .plans import SEVERAL
from .reads import groups_of_optimizers, may_be_of_ddp, optimizer_calls
from .several_models import OF_SEVERAL, TOGETHER, is_over_several
from .stateless import keeps_tensors, may_take_numbers
from .writing import OPTIONS, SET_OPTIMIZER

_FULL = ("full_optim_state_dict", "model", "optim_input", "optim")

TO_LOAD: dict[str, tuple[tuple[str, ...], str]] = {
    "optim_state_dict_to_load": (("model", "optim", "optim_state_dict"), "optim_state_dict"),
    "shard_full_optim_state_dict": (_FULL, "full_optim_state_dict"),
    "scatter_full_optim_state_dict": (_FULL, "full_optim_state_dict"),
    "flatten_sharded_optim_state_dict": (("sharded_optim_state_dict", "model", "optim"), "sharded_optim_state_dict"),
}
"""FSDP1's converters for loading: their parameters, and the one that is the state dict."""


@dataclass(frozen=True, eq=False)
class Conversion:
    """A call of one of FSDP1's converters."""

    view: FileView
    call: ast.Call
    name: str
    model: ast.expr | None
    optimizer: ast.expr | None
    state: ast.expr


@dataclass
class LoadPlan:
    """How ``optimizer.load_state_dict(state)`` is rewritten."""

    model: ast.expr | str | None
    optimizer: ast.expr
    state: ast.expr
    options: list[str] = field(default_factory=list)
    conversion: Conversion | None = None
    drops: ast.stmt | None = None
    """The statement of the conversion, where its result has no other use."""
    is_told: bool = True
    """Whether the kind of the state that is loaded is known, or named where it is loaded."""
    clones: bool = False
    """Whether tensors that FSDP1's files share have to be told apart first."""
    may_be_ddp: bool = False
    """Whether it may be the optimizer of a model that stays under DDP, for which no converter stands before it."""
    keeps_tensors: str = "yes"
    """Whether the optimizer has tensors in its state: without any, full_state_dict=True raises."""
    makes_room: bool = False
    """Whether the groups get the entry of a scheduler before, which is built later."""
    takes_numbers: bool = False
    """Whether the optimizer may take state that is kept under numbers without an error, and without effect."""


def conversion_of(view: FileView, call: ast.Call) -> Conversion | None:
    """The converter that a call is; both orders of arguments that torch has had are understood."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else ""
    if name not in TO_LOAD:
        return None
    names, state_name = TO_LOAD[name]
    if name == "optim_state_dict_to_load" and _is_old_order(view, call):
        names = ("optim_state_dict", "model", "optim")
    arguments = bound_arguments(call, names)
    state = arguments.get(state_name)
    if state is None:
        return None
    return Conversion(view, call, name, arguments.get("model"), arguments.get("optim"), state)


def _is_old_order(view: FileView, call: ast.Call) -> bool:
    """``optim_state_dict_to_load(state, model, optim)``, as in torch 2.0."""
    if len(call.args) != 3:
        return False
    if any(isinstance(v, Optimizer) for v in view.values(call.args[1])):
        return False
    first, last = view.text(call.args[0]).lower(), view.text(call.args[2]).lower()
    if any(isinstance(v, Optimizer) for v in view.values(call.args[2])):
        return True
    return "model" not in first and last.rpartition(".")[2] in ("optim", "optimizer", "opt")


_ADVICE = (
    "On all ranks: set_optimizer_state_dict(model, optimizer, state, options=StateDictOptions(full_state_dict=True)), "
    "after the learning-rate scheduler was built."
)


def load_outcome(site: Site, migration: Migration) -> Outcome:
    """``optimizer.load_state_dict(state)`` becomes ``set_optimizer_state_dict``."""
    view, call = site.view, site.call
    plan = plan_load(migration, view, call, site.group) if call is not None else None
    if call is None or plan is None:
        what = "optimizer.load_state_dict is not called with a state dict here"
        return Outcome(Level.MANUAL, what, _ADVICE, holds=True)
    if not plan.is_told:
        return Outcome(Level.MANUAL, "the kind of state dict is only known at run time", _ADVICE, holds=True)
    if plan.conversion is None and may_be_either(migration, view, plan.optimizer):
        return Outcome(Level.MANUAL, EITHER, TELL, holds=True)
    if plan.conversion is None and is_over_several(migration, view, plan.optimizer):
        return Outcome(Level.MANUAL, OF_SEVERAL, TOGETHER, holds=True)
    if plan.conversion is None and has_parameters_beside(migration, view.values(plan.optimizer)):
        return Outcome(Level.MANUAL, BESIDE, APART, holds=True)
    if plan.conversion is None and is_left_over(view, call, plan.optimizer, plan.model):
        return Outcome(Level.MANUAL, LEFT_OVER, PAIRED, holds=True)
    several = groups_of_optimizers(migration, view.values(plan.optimizer))
    if len(several) > 1:
        is_second = site.group is not several[0]
        return Outcome(Level.MANUAL, SEVERAL, _ADVICE, holds=True, silent=is_second)
    handed_in: list[Patch] = []
    if plan.model is None and site.group is not None:
        why = "set_optimizer_state_dict needs the model, too"
        passed = passed_in_model(migration, view, call, site.group, why)
        if passed is not None:
            plan.model, handed_in = passed
    if plan.model is None:
        what = "no name here refers to the model whose optimizer this is"
        return Outcome(Level.MANUAL, what, "Pass the model in. " + _ADVICE, holds=True)
    if plan.may_be_ddp and not holds_ddp(view, call, plan.model):
        what = "this may be the optimizer of a model that stays under DDP, and no name here refers to that model"
        advice = "Pass the model in, and call optimizer.load_state_dict(state) where it is a DistributedDataParallel. "
        return Outcome(Level.MANUAL, what, advice + _ADVICE, holds=True)
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    guard = next(iter(finder.around(view, call)), None) or finder.callers_guarded(view, call)
    if guard is not None:
        what = f"only some ranks load here (guard at line {guard.statement.lineno}), and loading is collective"
        return Outcome(Level.MANUAL, what, _ADVICE, holds=True)
    outcome = Outcome(Level.SAFE, "optimizer state is loaded by parameter name")
    if site.group is not None and "DDP" in site.group.kinds:
        outcome.level = Level.REVIEW
        outcome.message += "; files that the old program wrote have numbers for names and are refused with an error"
        if plan.takes_numbers:
            outcome.message += ", but SGD takes them without one and loses its momentum"
    if plan.keeps_tensors == "maybe" or (plan.keeps_tensors == "no" and plan.options):
        outcome.level = Level.REVIEW
        outcome.message += "; without momentum SGD has no tensors to load, and full_state_dict=True raises: leave it out then"
    backward = backward_before(view, call, plan.optimizer) if plan.options else None
    if backward is not None:
        outcome.level = Level.REVIEW
        outcome.message += (
            f"; the gradients of line {backward} may still be set here, with which loading into an optimizer without a step "
            "raises (Expected device to be set): clear them before it"
        )
    later = later_scheduler(migration, view, call, view.values(plan.optimizer)) if plan.options else None
    if later is not None:
        outcome.level = Level.REVIEW
        outcome.message += later.message(view, KEEPS)
        plan.makes_room = later.is_sure
    write_load(migration, view, call, plan, outcome)
    if handed_in:
        outcome.level = Level.REVIEW
        outcome.message += "; the callers hand the model in"
        outcome.patches.extend(handed_in)
    return outcome


def optimizer_loads(migration: Migration) -> list[tuple[FileView, ast.Call, Group | None]]:
    """Loads into the optimizers of the groups, and loads of what FSDP1's converters returned."""

    def find() -> list[tuple[FileView, ast.Call, Group | None]]:
        found: list[tuple[FileView, ast.Call, Group | None]] = list(optimizer_calls(migration, "load_state_dict"))
        known = {call for _, call, _ in found}
        for sites in migration.sites.values():
            for site in sites:
                if site.call is None or site.member not in TO_LOAD or site.role == "keyword":
                    continue
                scope = site.view.function(site.call) or site.view.tree
                for node in ast.walk(scope):
                    if _loads(site.view, node, site.call) and node not in known and isinstance(node, ast.Call):
                        known.add(node)
                        found.append((site.view, node, site.group))
        return found

    return migration.once("optimizer loads", None, find)


def _loads(view: FileView, node: ast.AST, conversion: ast.Call) -> bool:
    """Whether a call is ``….load_state_dict(state)`` of what a conversion returned."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or len(node.args) != 1:
        return False
    if node.func.attr != "load_state_dict":
        return False
    found, _ = _conversion_before(view, node.args[0])
    return found is not None and found.call is conversion


def plan_load(migration: Migration, view: FileView, call: ast.Call, group: Group | None) -> LoadPlan | None:
    """How a load of optimizer state is rewritten, decided once; None where it has no single argument."""
    return migration.once("optimizer load", call, lambda: _plan_load(migration, view, call, group))


def _plan_load(migration: Migration, view: FileView, call: ast.Call, group: Group | None) -> LoadPlan | None:
    arguments = bound_arguments(call, ("state_dict",))
    state = arguments.get("state_dict")
    if state is None or not isinstance(call.func, ast.Attribute):
        return None
    conversion, statement = _conversion_before(view, state)
    plan = LoadPlan(None, call.func.value, state)
    if conversion is not None:
        plan.model = conversion.model
        plan.conversion = conversion
        if statement is not None:
            plan.drops = statement
            plan.state = conversion.state
        elif conversion.call is state:
            plan.state = conversion.state
    if plan.model is None and group is not None:
        plan.model = model_at(migration.groups, view, call, group)
    if conversion is None and group is not None:
        plan.may_be_ddp = may_be_of_ddp(migration, view, call, plan.optimizer, group)
    context = context_at(migration, view, call, group)
    plan.is_told = conversion is None or context.kind != "unknown"
    if context.full and (conversion is None or conversion.name != "flatten_sharded_optim_state_dict"):
        plan.options.append(context.full)
        if conversion is not None and conversion.name == "scatter_full_optim_state_dict":
            plan.options.append("broadcast_from_rank0=True")
        wraps = [wrap for wrap in group.wraps if wrap.value.kind == "FSDP1"] if group is not None else []
        plan.clones = any(_is_flat(wrap.view, wrap.node) for wrap in wraps) or (conversion is not None and not wraps)
        plan.keeps_tensors = keeps_tensors(migration, view.values(plan.optimizer))
        plan.takes_numbers = may_take_numbers(migration, view.values(plan.optimizer))
        if plan.keeps_tensors == "no" and plan.options == [context.full]:
            plan.options, plan.clones = [], False
    return plan


def _is_flat(view: FileView, node: ast.Call) -> bool:
    """Whether a wrap uses flat parameters: ``use_orig_params`` is not surely true."""
    value = next((k.value for k in node.keywords if k.arg == "use_orig_params"), None)
    return not (isinstance(value, ast.Constant) and value.value is True)


def _conversion_before(view: FileView, state: ast.expr) -> tuple[Conversion | None, ast.stmt | None]:
    """The conversion whose result is loaded, and its statement where nothing else uses that result."""
    if isinstance(state, ast.Call):
        return conversion_of(view, state), None
    if not isinstance(state, ast.Name):
        return None, None
    scope = view.function(state) or view.tree
    for statement in ast.walk(scope):
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        targets = statement.targets
        if len(targets) != 1 or not isinstance(targets[0], ast.Name) or targets[0].id != state.id:
            continue
        conversion = conversion_of(view, statement.value)
        if conversion is not None:
            return conversion, statement if _is_only_use(view, scope, statement, state) else None
    return None, None


def _is_only_use(view: FileView, scope: ast.AST, statement: ast.Assign, use: ast.Name) -> bool:
    """Whether a name is assigned once, in the block of its one use or around it, and read nowhere else."""
    mentions = [node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id == use.id]
    block, place = view.block_of(statement)
    behind = any(use in ast.walk(later) for later in block[place + 1 :])
    return len(mentions) == 2 and behind


def write_load(migration: Migration, view: FileView, call: ast.Call, plan: LoadPlan, outcome: Outcome) -> None:
    """Adds the patches of an optimizer load to its outcome."""
    why = "optimizer state is loaded by name, and sharded on the way"
    name = migration.use(outcome, view, SET_OPTIMIZER, call)
    state: Part = view.keep(plan.state)
    bound: list[Part] = []
    if plan.clones and any(isinstance(node, (ast.Call, ast.Await)) for node in ast.walk(plan.state)):
        # what is cloned has to be what is loaded: a file is read once
        state, read = view.free_name(call, "optimizer_state_dict"), state
        bound = [f"{view.indent(view.statement(call))}{state} = ", read, "\n"]
    arguments: list[Sequence[Part]] = [
        (view.keep(plan.model) if isinstance(plan.model, ast.expr) else inside_data_parallel(view, call, str(plan.model)),),
        (view.keep(plan.optimizer),),
        (state,),
    ]
    if plan.options:
        options = migration.use(outcome, view, OPTIONS, call)
        arguments.append((f"options={options}({', '.join(plan.options)})",))
    text = replaced_call(view, call, name, arguments, unwraps(view, call))
    statement, indent = view.statement(call), view.indent(call)
    lines = makes_room(view, call, view.keep(plan.optimizer)) if plan.makes_room else []
    lines += [*bound, *_clone_lines(migration, view, call, plan, state, outcome)] if plan.clones else []
    if lines and isinstance(statement, ast.Expr) and statement.value is call and view.stands_alone(statement):
        text = [str(lines[0]).removeprefix(indent), *lines[1:], indent, *text]
    elif lines:
        outcome.patches.append(view.insert_before(statement, lines, _BEFORE))
    if plan.may_be_ddp:
        text = beside_own_load(migration, outcome, view, call, arguments[0][0], text)
        outcome.message += "; optimizers of models that stay under DDP load as before"
    outcome.patches.append(view.replace(call, text, why))
    if plan.drops is not None:
        outcome.patches.append(removed(view, plan.drops, "its result has no other use"))


_BEFORE = "what is loaded needs an entry in each group, and tensors of its own for each parameter"


def _clone_lines(
    migration: Migration, view: FileView, call: ast.Call, plan: LoadPlan, state: Part, outcome: Outcome
) -> list[Part]:
    """FSDP1's files let all parameters of a flat one share a ``step`` tensor, which each step would then count up."""
    indent = view.indent(view.statement(call))
    is_tensor = migration.use(outcome, view, "torch.is_tensor", call)
    inner = indent + "    "
    lines: list[Part] = []
    if "broadcast_from_rank0=True" in plan.options:
        lines.extend((f"{indent}if ", state, ":\n"))
        indent, inner = inner, inner + "    "
    held = view.free_name(call, "state")
    lines.extend((f"{indent}for {held} in ", state, '["state"].values():\n'))
    lines.append(f"{inner}# parameters of one flat parameter share their step in files of FSDP1\n")
    lines.append(f"{inner}{held}.update({{key: value.clone() for key, value in {held}.items() if {is_tensor}(value)}})\n")
    return lines
