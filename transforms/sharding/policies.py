"""auto_wrap_policy: what FSDP1 asks about every module becomes the condition of a plain loop."""

from __future__ import annotations

import ast

from ..analysis.scopes import dotted_path
from ..analysis.values import ClassValue, Constant, External, Instance, Opaque, Wrapped
from ..findings import Level
from ..rule import Outcome
from .constructor import Argument, Constructor, translates
from .plan import UNIT, Code, Units, code
from .policy_definitions import ALWAYS, DISPLAYS, WRAP, Definition, definitions, form_at
from .policy_effects import is_asked_for_all
from .policy_text import IN_NEW_TERMS, UNIFORM, answers_of, call_of, class_test, definition_text, or_tests


@translates("auto_wrap_policy")
def auto_wrap_policy(constructor: Constructor, argument: Argument) -> Outcome:
    """Sets the units of the plan."""
    if argument.is_none:
        return Outcome(Level.SAFE, "no policy: the model is one unit")
    found, complete = definitions(constructor.program, argument.values, argument.view, argument.node)
    if not found:
        return _opaque(argument)
    forms = {form_at(constructor.migration, d.view, d.node) or d.form for d in found}
    form = forms.pop() if len(forms) == 1 else "mixed"
    if form == "mixed":
        return Outcome(
            Level.MANUAL,
            "policies by size and by class meet in this argument, and one loop cannot follow both",
            "Decide for one of them, or call fully_shard on the modules of each in an if of your own.",
            holds=True,
        )
    optional = any(isinstance(v, Constant) and v.value is None for v in argument.values)
    inline = (
        found[0]
        if len(found) == 1 and found[0].node is argument.node and found[0].symbol != "function"
        else None
    )
    if form == "size":
        from .size_policy import by_size

        return by_size(constructor, argument, found, optional)
    policy = argument.keep()
    if inline is None and dotted_path(argument.node) is None:
        local = constructor.view.free_name(constructor.call, "policy")
        constructor.plan.before.append(code(local, " = ", policy))
        policy = (local,)
    level, note = (
        (Level.SAFE, "")
        if complete
        else (Level.REVIEW, "; one from outside the repository has to be a function of the same arguments")
    )
    skip_root = _root_may_match(constructor, found)
    if form == "classes" and not complete:
        constructor.plan.units = Units(_class_or_function(policy), skip_root=skip_root)
        return Outcome(
            Level.REVIEW,
            "the loop picks modules by class; a policy may also come from outside the repository, and a function is asked "
            "about each module as FSDP1 did, but not about sizes",
        )
    if form == "classes":
        constructor.plan.units = Units(_class_condition(policy, inline, optional), skip_root=skip_root)
        return Outcome(level, "the loop picks modules by class")
    condition = _predicate_condition(constructor, policy, found, inline, optional)
    if isinstance(condition, Outcome):
        return condition
    answering = any(_answers(constructor, definition) for definition in found)
    asks_all = any(is_asked_for_all(constructor.program, definition) for definition in found)
    constructor.plan.units = Units(condition, skip_root=skip_root, answers=answering, asks_all=asks_all)
    if answering:
        level, note = Level.REVIEW, f"{note}; {IN_NEW_TERMS}"
    if any(d.symbol in ("function", ALWAYS) for d in found):
        level = Level.REVIEW
    outcome = Outcome(level, f"the loop picks the modules for which the policy's function is true{note}")
    if any(_keeps_trained_apart(constructor, definition) for definition in found):
        outcome.message += "; it asks for requires_grad, and units that only keep trained and frozen parameters apart can go"
        outcome.advice = UNIFORM
    return outcome


def _class_condition(policy: Code, inline: Definition | None, optional: bool) -> Code:
    if inline is not None:
        return code("isinstance(", UNIT, ", ", class_test(inline.view, inline.argument), ")")
    return code("isinstance(", UNIT, ", ", policy, " or ()" if optional else "", ")")


def _class_or_function(policy: Code) -> Code:
    """The condition for a policy that is a tuple of classes where the repository makes it, or whatever FSDP1 took."""
    return code(
        "(\n        ", policy, "(module=", UNIT, ", recurse=False, nonwrapped_numel=0)",
        "\n        if callable(", policy, ")",
        "\n        else isinstance(", UNIT, ", ", policy, " or ())\n    )",
    )  # fmt: skip


def _predicate_condition(
    constructor: Constructor, policy: Code, found: list[Definition], inline: Definition | None, optional: bool
) -> Code | Outcome:
    """The condition that asks the policy's function; an Outcome where this cannot be done."""
    own = [d for d in found if d.symbol == "function"]
    if any(d.symbol == ALWAYS for d in found):
        return _always(found)
    if own:
        return _own_function(constructor, policy, found, own)
    if any(definition_text(constructor.migration, d, "predicate") is None for d in found):
        return _unclear()
    if inline is not None and inline.argument is not None:
        if inline.symbol == f"{WRAP}_or_policy":
            tests = or_tests(constructor.migration, inline.view, inline.argument, UNIT)
            return code("(", tests, ")") if tests is not None else _unclear()
        return call_of(inline.view, inline.argument, UNIT)
    call = code(policy, "(", UNIT, ")")
    return code(policy, " is not None and ", call) if optional else call


def _answers(constructor: Constructor, definition: Definition) -> bool:
    """Whether a policy may answer with arguments, as far as is seen."""
    if definition.symbol != f"{WRAP}CustomPolicy" or definition.argument is None:
        return False
    return answers_of(constructor.program, definition.view, definition.argument) == "unseen"


def _keeps_trained_apart(constructor: Constructor, definition: Definition) -> bool:
    """Whether a policy's own function asks whether parameters are trained."""
    if definition.function is None:
        return False
    _, node = constructor.program.function_node(definition.function)
    return any(isinstance(inner, ast.Attribute) and inner.attr == "requires_grad" for inner in ast.walk(node))


def _unclear() -> Outcome:
    return Outcome(
        Level.MANUAL,
        "this policy answers with more than yes or no (arguments for single modules), or joins others that "
        "are not named",
        "Name the policies that it joins, policies=[first, second], and run the tool again; where modules have arguments of "
        "their own, write the loop: fully_shard(module, …) on each that it picks, from the innermost up.",
        holds=True,
    )


def _always(found: list[Definition]) -> Code | Outcome:
    if len(found) == 1:
        return code(
            "list(",
            UNIT,
            ".parameters()) and not isinstance(",
            UNIT,
            ", (torch.nn.ModuleList, torch.nn.ModuleDict))",
        )
    return Outcome(
        Level.MANUAL,
        "always_wrap_policy meets other policies in this argument",
        "Decide for one of them.",
        holds=True,
    )


def _own_function(
    constructor: Constructor, policy: Code, found: list[Definition], own: list[Definition]
) -> Code | Outcome:
    """A function of the repository with FSDP1's signature (module, recurse, nonwrapped_numel)."""
    if len(own) != len(found):
        return Outcome(
            Level.MANUAL,
            "a policy function of this repository meets one of torch's in this argument",
            "Make both plain functions of the module, and call fully_shard where they say so.",
            holds=True,
        )
    for definition in own:
        problem = _needs_recursion(constructor, definition)
        if problem:
            return Outcome(
                Level.MANUAL,
                f"the policy function {problem}, which a plain loop over the modules cannot answer",
                "Write the recursion as a function that returns the modules, and call fully_shard on each.",
                holds=True,
            )
    positional = all(_positional_parameters(constructor, definition) > 2 for definition in own)
    if positional:
        return code(policy, "(", UNIT, ", False, 0)")
    return code(policy, "(module=", UNIT, ", recurse=False, nonwrapped_numel=0)")


def _positional_parameters(constructor: Constructor, definition: Definition) -> int:
    """How many parameters a policy function takes by position, ``self`` left out."""
    assert definition.function is not None
    _, node = constructor.program.function_node(definition.function)
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    names = [a.arg for a in [*node.args.posonlyargs, *node.args.args]]
    return len(names) - (1 if names and names[0] in ("self", "cls") else 0)


def _needs_recursion(constructor: Constructor, definition: Definition) -> str:
    """Why a policy function cannot be asked about one module alone; empty if it can."""
    assert definition.function is not None
    program = constructor.program
    _, node = program.function_node(definition.function)
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    names = [a.arg for a in [*node.args.posonlyargs, *node.args.args]]
    if names and names[0] in ("self", "cls"):
        names = names[1:]
    if len(names) < 2:
        return ""
    used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    if len(names) > 2 and names[2] in used:
        return "counts parameters that are not wrapped yet"
    if names[1] not in used:
        return ""
    body = node.body if isinstance(node.body, list) else []
    for statement in body:
        if (
            isinstance(statement, ast.If)
            and isinstance(statement.test, ast.Name)
            and statement.test.id == names[1]
        ):
            first = statement.body[0]
            if (
                isinstance(first, ast.Return)
                and isinstance(first.value, ast.Constant)
                and first.value.value is True
            ):
                return ""
    return "decides itself where to go on"


def _opaque(argument: Argument) -> Outcome:
    return Outcome(
        Level.MANUAL,
        f"nothing is known of the policy {argument.view.text(argument.node)}: it comes from outside this repository",
        "Name the classes of the modules to be sharded one by one, and loop: for module in "
        "reversed(list(model.modules())): if isinstance(module, Block): fully_shard(module, …).",
        holds=True,
    )


def _root_may_match(constructor: Constructor, found: list[Definition]) -> bool:
    """Whether the model itself could be picked: by class only if it is, or may be, of one of the classes."""
    flow = constructor.program.flow
    model = constructor.plan.model
    if model is None or any(d.form != "classes" for d in found):
        return True
    classes: set[object] = set()
    for definition in found:
        if definition.argument is None:
            return True
        held = [
            v
            for v in constructor.program.elements(definition.view.values(definition.argument))
            if isinstance(v, (ClassValue, External))
        ]
        if not held and isinstance(definition.argument, DISPLAYS):
            for element in definition.argument.elts:
                held.extend(
                    v for v in definition.view.values(element) if isinstance(v, (ClassValue, External))
                )
        if not held:
            return True
        classes.update(v.name.rpartition(".")[2] if isinstance(v, External) else v for v in held)
    values = constructor.view.values(model)
    for value in values:
        if isinstance(value, Instance):
            if any(ancestor in classes for ancestor in flow.ancestors(value.cls)):
                return True
            if {name.rpartition(".")[2] for name in flow.external_bases(value.cls)} & classes:
                return True
        elif isinstance(value, Opaque):
            if set(value.name.split(".")) & {c for c in classes if isinstance(c, str)}:
                return True
        elif not isinstance(value, (Constant, Wrapped)):
            return True
    return not values
