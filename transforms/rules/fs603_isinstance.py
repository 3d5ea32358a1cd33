"""Type tests for the wrappers: ``isinstance(model, FSDP)``, ``type(model) is DDP``, tuples of both."""

from __future__ import annotations

import ast

from ..analysis.symbols import DDP, FSDP1
from ..analysis.values import ClassValue
from ..findings import Level
from ..introspection.branch_chains import counterpart, without_branch
from ..introspection.flat_parameters import raising_read, reads
from ..introspection.skipping import refusal, skips_wrappers, tested_classes
from ..introspection.told_apart import reduced_by_hand
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.aliases import alias_outcome
from ..sharding.checkpointing import chooses_what_to_checkpoint
from ..sharding.subclass_findings import staying_wrappers
from ..sites import Site
from ..text.generated import removed
from ..text.patches import Part, Patch
from ..training.conditions import FSDP_MODULE
from ..training.passes import outside_name
from ..training.unwrapping import WRAPPERS, names_data_parallel, only_unwraps, type_argument
from ..view import FileView

_WHY = "a sharded model is an FSDPModule"
_ONE_BRANCH = (
    "Write one branch for isinstance(model, FSDPModule), with get_model_state_dict or set_model_state_dict and their "
    "like for optimizers, called on all ranks."
)


def check(site: Site, migration: Migration) -> Outcome:
    view, node = site.view, site.node
    assert isinstance(node, (ast.Name, ast.Attribute))
    if any(isinstance(value, ClassValue) for value in view.values(node)):
        return Outcome(
            Level.MANUAL,
            "a test for a subclass of the wrapper",
            "Ask isinstance(model, FSDPModule), once the subclass has become methods of the model.",
        )
    comparison = _type_comparison(view, node)
    outcome = Outcome(Level.SAFE, "the test asks for FSDPModule")
    if comparison is not None:
        outcome.level = Level.REVIEW
        compared = comparison.comparators[0]
        only_unwrapping = not view.program.keeps_ddp or _guards_module(migration, view, compared)
        if only_unwrapping and _unwraps_data_parallel(view, compared):
            outcome.message = f"the test is for {_others(view)} alone: an FSDP2 model needs no unwrapping"
            outcome.patches.append(_one_class_less(migration, view, comparison))
        else:
            module = migration.use(outcome, view, FSDP_MODULE, node)
            outcome.patches.append(_compared(migration, view, comparison, module))
        return outcome
    classes = tested_classes(view, node)
    if classes is None:
        return _elsewhere(site, migration)
    if _unwraps_data_parallel(view, classes) and _guards_module(migration, view, classes):
        outcome.message = f"the test is for {_others(view)} alone: an FSDP2 model needs no unwrapping"
        outcome.level = Level.REVIEW
        outcome.patches.append(_listed(migration, view, classes, ""))
        return outcome
    leaving = refusal(view, classes)
    if leaving is not None:
        outcome.level = Level.REVIEW
        outcome.message = "the test goes: sharded modules are the modules to checkpoint themselves, not wrappers around them"
        outcome.patches.append(removed(view, leaving, "no wrapper is left to be passed over"))
        return outcome
    if skips_wrappers(view, classes):
        chooser = view.function(classes)
        if chooser is not None and chooses_what_to_checkpoint(migration, view, chooser):
            outcome.level = Level.REVIEW
            outcome.message = "what is checkpointed is chosen without this test: a module and its wrapper are one object now"
            outcome.patches.append(_without_test(migration, view, classes))
            return outcome
        return Outcome(
            Level.MANUAL,
            "the function leaves wrappers out to reach the modules inside; with FSDP2 these are one object, so it would leave "
            "out every sharded module",
            "Take the test out of the function.",
            holds=True,
        )
    other = _branch_of_both(migration, view, classes)
    if other is not None:
        return _branch_goes(view, *other)
    caution = reduced_by_hand(view, classes)
    if caution:
        outcome.level = Level.REVIEW
        outcome.message += f"; {caution}"
    module = migration.use(outcome, view, FSDP_MODULE, node)
    outcome.patches.append(_listed(migration, view, classes, module))
    return outcome


def _branch_of_both(migration: Migration, view: FileView, classes: ast.expr) -> tuple[ast.If, ast.If] | None:
    """The branch for models of DDP that a test decides, and the one for FSDP1 of the same chain."""
    test = view.parents[classes]
    branch = view.parents[test]
    if not isinstance(branch, ast.If) or branch.test is not test or DDP in staying_wrappers(migration):
        return None
    serving = counterpart(view, branch)
    return (branch, serving) if serving is not None else None


def _branch_goes(view: FileView, branch: ast.If, serving: ast.If) -> Outcome:
    """Models of both wrappers become FSDPModule: the branch for FSDP1 is what a sharded model needs."""
    raising = raising_read(view, serving)
    if raising is not None:
        return Outcome(
            Level.MANUAL,
            f"models of both wrappers are FSDPModule, so those of DDP take the branch of line {view.line(serving)} now, where "
            f"{raising.attr} raises, which only flat parameters have (line {view.line(raising)})",
            _ONE_BRANCH,
        )
    flat = next((read for statement in serving.body for read in reads(view, statement)), None)
    patch = without_branch(view, branch) if flat is None else None
    if patch is not None:
        return Outcome(
            Level.REVIEW,
            f"the branch goes: models of both wrappers are FSDPModule, so those of DDP take the one of line "
            f"{view.line(serving)} now; see that it does what they need",
            patches=[patch],
        )
    reason = f", and {flat.attr} in the one for FSDP1 is no member of FSDP2 (line {view.line(flat)})" if flat is not None else ""
    function = view.function(branch)
    return Outcome(
        Level.MANUAL,
        f"models of both wrappers are FSDPModule, which one branch would have to serve{reason}",
        _ONE_BRANCH,
        holds=True,
        within=frozenset({function}) if function is not None else None,
    )


def _without_test(migration: Migration, view: FileView, classes: ast.expr) -> Patch:
    """``not isinstance(module, FSDP)`` as what it is inside the wrappers: true."""
    if _members(view, classes, WRAPPERS - staying_wrappers(migration))[0]:
        return _listed(migration, view, classes, "")
    inverted = view.parents[view.parents[classes]]
    around = view.parents[inverted]
    if isinstance(around, ast.BoolOp) and isinstance(around.op, ast.And):
        place = around.values.index(inverted)  # pyright: ignore[reportArgumentType]
        first, last = (around.values[place - 1], inverted) if place else (inverted, around.values[1])
        begin = view.source.span(first)[1 if place else 0]
        end = view.source.span(last)[1 if place else 0]
        if not any(bracket in view.source.text[begin:end].replace(view.text(inverted), "") for bracket in "()"):
            return Patch(view.path, begin, end, (), _WHY)
    return view.replace(inverted, "True", _WHY)


def _elsewhere(site: Site, migration: Migration) -> Outcome:
    """A class outside a test: in a tuple that only tests use, say."""
    alias = alias_outcome(site)
    if alias is not None:
        return alias
    view, node = site.view, site.node
    parent = view.parents[node]
    holder = view.parents[parent] if isinstance(parent, (ast.Tuple, ast.List, ast.Set)) else None
    if isinstance(holder, ast.Assign) and isinstance(parent, ast.Tuple) and _only_in_tests(view, holder):
        outcome = Outcome(Level.REVIEW, "the classes of these tests become FSDPModule")
        module = migration.use(outcome, view, FSDP_MODULE, node)
        outcome.patches.append(_listed(migration, view, parent, module))
        return outcome
    return Outcome(
        Level.MANUAL,
        f"{site.member} is handed on as a value",
        ("What it wraps goes on under DDP, which is no error. For FSDP2: " if site.symbol == DDP else "")
        + "Hand on a function that calls fully_shard(model) and returns the model, or FSDPModule where a type is meant.",
        holds=site.group is not None,
    )


def _only_in_tests(view: FileView, assignment: ast.Assign) -> bool:
    names = [target.id for target in assignment.targets if isinstance(target, ast.Name)]
    mentions = [n for n in view.nodes(ast.Name) if n.id in names]
    loads = [n for n in mentions if isinstance(n.ctx, ast.Load)]
    return bool(names) and bool(loads) and all(tested_classes(view, load) is not None for load in loads)


# --- isinstance ---------------------------------------------------------------------------------------------


def _members(view: FileView, classes: ast.expr, leaving: frozenset[str]) -> tuple[list[ast.expr], bool]:
    """The classes of a tuple that stay in it, and whether FSDPModule is among them."""
    elements = classes.elts if isinstance(classes, (ast.Tuple, ast.List, ast.Set)) else [classes]
    others = [element for element in elements if outside_name(view, element) not in leaving]
    return others, any(outside_name(view, element) == FSDP_MODULE for element in others)


def _listed(migration: Migration, view: FileView, classes: ast.expr, module: str) -> Patch:
    """The tuple with one FSDPModule in the place of all wrappers that leave (with none, if ``module`` is empty)."""
    leaving = WRAPPERS - staying_wrappers(migration)
    if not isinstance(classes, (ast.Tuple, ast.List, ast.Set)):
        if module and outside_name(view, classes) in WRAPPERS - leaving:
            return view.replace(classes, ("(", view.keep(classes), f", {module})"), _WHY)
        names = [n for n in ast.walk(classes) if isinstance(n, (ast.Name, ast.Attribute))]
        inner = [n for n in names if outside_name(view, n) in WRAPPERS]
        if isinstance(classes, ast.BinOp) and inner:
            return view.replace(inner[0], module, _WHY)
        return view.replace(classes, module, _WHY)
    others, present = _members(view, classes, leaving)
    elements: list[list[Part]] = []
    placed = present or not module
    for element in classes.elts:
        if element in others:
            elements.append([view.keep(element)])
        elif not placed:
            elements.append([module])
            placed = True
    if not placed:
        elements.append([module])
    if len(elements) == 1:
        return view.replace(classes, elements[0], _WHY)
    parts: list[Part] = ["("]
    for number, element in enumerate(elements):
        parts.extend((", ",) if number else ())
        parts.extend(element)
    return view.replace(classes, (*parts, ")"), _WHY)


def _others(view: FileView) -> str:
    return "what stays under DDP" if view.program.keeps_ddp else "DataParallel"


def _unwraps_data_parallel(view: FileView, classes: ast.expr) -> bool:
    return names_data_parallel(view, classes)


def _guards_module(migration: Migration, view: FileView, classes: ast.expr) -> bool:
    """Whether the test decides about ``.module``, here or where the function that returns it is called."""
    call = view.parents[classes]
    for ancestor in view.ancestors(classes):
        if isinstance(ancestor, (ast.If, ast.IfExp, ast.While)) and only_unwraps(ancestor):
            return True
        if isinstance(ancestor, ast.Return):
            function = view.function(call)
            callers = migration.program.callers(view, function) if function is not None else []
            return any(
                isinstance(outer, (ast.If, ast.IfExp, ast.While)) and only_unwraps(outer)
                for caller, node in callers
                for outer in caller.ancestors(node)
            )
        if isinstance(ancestor, ast.stmt):
            return False
    return False


# --- type(model) is DDP -------------------------------------------------------------------------------------


def _type_comparison(view: FileView, node: ast.AST) -> ast.Compare | None:
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, ast.Compare) and len(ancestor.ops) == 1 and type_argument(view, ancestor.left):
            return ancestor
        if isinstance(ancestor, ast.stmt):
            return None
    return None


def _one_class_less(migration: Migration, view: FileView, comparison: ast.Compare) -> Patch:
    """``type(model) in (DataParallel, DDP)`` without the wrappers that leave; one class alone is compared by ``is``."""
    classes = comparison.comparators[0]
    others, _ = _members(view, classes, WRAPPERS - staying_wrappers(migration))
    if len(others) > 1:
        return _listed(migration, view, classes, "")
    operator = "is not" if isinstance(comparison.ops[0], ast.NotIn) else "is"
    start, end = view.source.span(comparison.left)[1], view.source.span(comparison)[1]
    return Patch(view.path, start, end, (f" {operator} ", view.keep(others[0])), _WHY)


def _compared(migration: Migration, view: FileView, comparison: ast.Compare, module: str) -> Patch:
    """``type(model) is DDP`` as ``isinstance(model, FSDPModule)``: a sharded model's class is a new one."""
    left = comparison.left
    assert isinstance(left, (ast.Call, ast.Attribute))
    subject = left.args[0] if isinstance(left, ast.Call) else left.value
    negative = isinstance(comparison.ops[0], (ast.IsNot, ast.NotEq, ast.NotIn))
    others, present = _members(view, comparison.comparators[0], WRAPPERS - staying_wrappers(migration))
    names: list[Part] = []
    for other in others:
        names.extend((view.keep(other), ", "))
    if not present:
        names.append(module)
    tuple_needed = bool(others)
    parts: list[Part] = ["not " if negative else "", "isinstance(", view.keep(subject), ", "]
    parts.extend(("(", *names, ")") if tuple_needed else names)
    return view.replace(comparison, (*parts, ")"), _WHY)


_WRAP = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(build())\n"
_SHARD = "from torch.distributed.fsdp import FSDPModule, fully_shard\n\nmodel = build()\nfully_shard(model)\n"
_CHECKPOINT = (
    "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing\n"
)
_PASSED_OVER = """

def check(module):
    if isinstance(module, FSDP):
        return False
    return hasattr(module, "heads")


"""
_PICKED = """

def check(module):
    return hasattr(module, "heads")


"""
_APPLIED = "if large:\n    apply_activation_checkpointing(model, check_fn=check)\n"

_CHECKPOINTED = """\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
prepare(model)
apply_activation_checkpointing(
    model,
    check_fn=lambda module: getattr(module, "is_large", False)
    and not isinstance(module, FSDP)
    and len(list(module.children())) > 0,
)
"""
_CHECKPOINTED_AFTER = """\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import fully_shard

model = build()
fully_shard(model)
prepare(model)
apply_activation_checkpointing(
    model,
    check_fn=lambda module: getattr(module, "is_large", False)
    and len(list(module.children())) > 0,
)
"""

RULE = Rule(
    id="FS603",
    title="Type tests for the wrappers ask for FSDPModule",
    why=(
        "fully_shard gives a module a new class that derives from FSDPModule and its old class: isinstance tests for "
        "the wrappers turn false without a word, and type(model) is X fails for any X. Where DDP stays (FS120), tests "
        "go on naming it."
    ),
    symbols=(FSDP1, DDP),
    roles=("isinstance", "reference"),
    check=check,
    sources=("torch/distributed/fsdp/_fully_shard/_fully_shard.py: fully_shard, FSDPModule",),
    proof=("unwrap_helper", "fsdp_or_ddp", "ddp_told_apart"),
    examples=(
        Example(
            _WRAP + "if isinstance(model, (FSDP, torch.nn.parallel.DistributedDataParallel)):\n    step(model)\n",
            _SHARD + "if isinstance(model, FSDPModule):\n    step(model)\n",
        ),
        Example(
            _CHECKPOINT + _WRAP + _PASSED_OVER + _APPLIED,
            _CHECKPOINT + _SHARD.replace("FSDPModule, ", "").replace("from", "import torch\nfrom", 1) + _PICKED + _APPLIED,
            level=Level.REVIEW,
        ),
        Example(_CHECKPOINTED, _CHECKPOINTED_AFTER, Level.REVIEW),
    ),
)
