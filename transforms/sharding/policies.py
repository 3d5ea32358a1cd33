"""Wrapping policies: what FSDP1 asks about every module becomes the condition of a plain loop.

A policy is one of three forms. *classes*: a tuple for ``isinstance``. *predicate*: a function of the module.
*size*: a function that returns the modules. All policies that reach one wrap get the same form, wherever they
are defined, so that the loop at the wrap fits each of them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..findings import Level
from ..migration import Migration
from ..patches import Old
from ..program import Program
from ..rule import Outcome
from ..scopes import dotted_path
from ..sites import Site
from ..values import Bound, ClassValue, Constant, External, FunctionValue, Instance, Opaque, Partial, Value, Wrapped
from ..view import FileView
from .constructor import Argument, Constructor, constructor_of, translates
from .plan import UNIT, Code, Name, Units, code

WRAP = "torch.distributed.fsdp.wrap."
_CLASS_POLICIES = {
    f"{WRAP}transformer_auto_wrap_policy": "transformer_layer_cls",
    f"{WRAP}_module_wrap_policy": "module_classes",
    f"{WRAP}ModuleWrapPolicy": "module_classes",
}
_PREDICATES = {
    f"{WRAP}lambda_auto_wrap_policy": "lambda_fn",
    f"{WRAP}CustomPolicy": "lambda_fn",
    f"{WRAP}_or_policy": "policies",
}
_SIZE = (f"{WRAP}size_based_auto_wrap_policy", f"{WRAP}default_auto_wrap_policy")
_ALWAYS = f"{WRAP}always_wrap_policy"
_NO_POLICIES = "FSDP2 has no policies"
_DISPLAYS = (ast.Set, ast.List, ast.Tuple)


@dataclass(frozen=True)
class Definition:
    """Where a policy is made: by ``functools.partial(policy, …)``, by ``Policy(…)``, or the bare function."""

    view: FileView
    node: ast.expr
    symbol: str
    """Canonical name of the policy; ``function`` for one of the repository's own."""
    argument: ast.expr | None
    """What the policy is about: the classes, the function, the smallest size."""
    function: FunctionValue | None = None

    @property
    def form(self) -> str:
        """``classes``, ``predicate``, ``size`` or ``unknown``."""
        if self.symbol in _CLASS_POLICIES:
            return "classes"
        if self.symbol in _PREDICATES or self.symbol in (_ALWAYS, "function"):
            return "predicate"
        return "size" if self.symbol in _SIZE else "unknown"


def definition_of_call(view: FileView, call: ast.Call) -> Definition | None:
    """The policy that a call makes, if it makes one."""
    symbol = view.external(call.func)
    if symbol in ("functools.partial", "functools.partialmethod") and call.args:
        inner = view.external(call.args[0])
        if inner is not None and (inner.startswith(WRAP)):
            return _definition(view, call, inner, call.args[4:])
        function = next((v for v in view.values(call.args[0]) if isinstance(v, FunctionValue)), None)
        return Definition(view, call, "function", None, function) if function is not None else None
    if symbol in (f"{WRAP}ModuleWrapPolicy", f"{WRAP}CustomPolicy"):
        return _definition(view, call, symbol, call.args)
    return None


def _definition(view: FileView, call: ast.Call, symbol: str, positional: list[ast.expr]) -> Definition:
    wanted = {**_CLASS_POLICIES, **_PREDICATES}.get(symbol)
    names = (wanted,) if wanted else ("min_num_params",)
    found = next((k.value for k in call.keywords if k.arg in names), None)
    if found is None and positional:
        found = positional[0]
    return Definition(view, call, symbol, found)


def definitions(program: Program, values: list[Value], view: FileView, node: ast.expr) -> tuple[list[Definition], bool]:
    """The policies among values, and whether there may be others that nothing is known of."""
    found: list[Definition] = []
    complete = bool(values)
    for value in values:
        if isinstance(value, Constant) and value.value is None:
            continue
        definition: Definition | None = None
        if isinstance(value, (Partial, Opaque)):
            place, call = program.call_node(value.site)
            definition = definition_of_call(place, call)
        elif isinstance(value, External) and value.name.startswith(WRAP):
            definition = Definition(view, node, value.name, None)
        elif isinstance(value, (FunctionValue, Bound)):
            function = value if isinstance(value, FunctionValue) else value.function
            definition = Definition(view, node, "function", None, function)
        if definition is None or definition.form == "unknown":
            complete = False
        else:
            found.append(definition)
    return found, complete


def form_at(migration: Migration, view: FileView, node: ast.expr) -> str:
    """The form of the policies that reach the wraps which this definition's policy reaches; its own if none."""
    forms = migration.once("policy forms", None, lambda: _forms(migration))
    return forms.get((view.path, view.source.span(node)), "")


def _forms(migration: Migration) -> dict[tuple[str, tuple[int, int]], str]:
    """Form of each definition that reaches a wrap: all that meet at one wrap agree."""
    sets: list[set[tuple[str, tuple[int, int]]]] = []
    own: dict[tuple[str, tuple[int, int]], str] = {}
    for group in migration.groups.all:
        for wrap in group.wraps:
            argument = _policy_argument(wrap.node)
            if argument is None:
                continue
            found, _ = definitions(migration.program, wrap.view.values(argument), wrap.view, argument)
            keys = {_key(d) for d in found}
            own.update({_key(d): d.form for d in found})
            for definition in found:
                for inner in inner_policies(migration.program, definition):
                    own.setdefault(_key(inner), inner.form)
            touching = [s for s in sets if s & keys]
            sets = [s for s in sets if s not in touching]
            sets.append(keys.union(*touching))
    for keys in sets:
        forms = {own[key] for key in keys}
        joint = forms.pop() if len(forms) == 1 else ("predicate" if "size" not in forms else "mixed")
        own.update(dict.fromkeys(keys, joint))
    return own


def _key(definition: Definition) -> tuple[str, tuple[int, int]]:
    return definition.view.path, definition.view.source.span(definition.node)


def _policy_argument(call: ast.Call) -> ast.expr | None:
    named = next((k.value for k in call.keywords if k.arg == "auto_wrap_policy"), None)
    return named or (call.args[4] if len(call.args) > 4 else None)


def inner_policies(program: Program, definition: Definition) -> list[Definition]:
    """The policies that an ``_or_policy`` joins."""
    if definition.symbol != f"{WRAP}_or_policy" or definition.argument is None:
        return []
    view = definition.view
    values = program.elements(view.values(definition.argument))
    found, _ = definitions(program, [v for v in values if isinstance(v, (Partial, Opaque, External))], view, definition.argument)
    return found


# --- definitions as text ------------------------------------------------------------------------------------


def classes_text(view: FileView, node: ast.expr | None) -> Code:
    """A tuple of classes, from the set, list or tuple that a policy was given."""
    if node is None:
        return ("()",)
    if isinstance(node, ast.Call) and view.external(node.func) in ("builtins.set", "builtins.tuple", "builtins.list", "builtins.frozenset"):
        if len(node.args) == 1:
            node = node.args[0]
    if isinstance(node, _DISPLAYS) and not any(isinstance(e, ast.Starred) for e in node.elts):
        parts: list[Code] = []
        for number, element in enumerate(node.elts):
            parts.append(code(", " if number else "", view.keep(element)))
        if sum(len(view.text(element)) + 2 for element in node.elts) > 80:
            return code("(", *(code("\n    ", view.keep(element), ",") for element in node.elts), "\n)")
        return code("(", *parts, ",)" if len(node.elts) == 1 else ")")
    return code("tuple(", view.keep(node), ")")


def class_test(view: FileView, node: ast.expr | None) -> Code:
    """What stands as second argument of ``isinstance`` in a condition: one class alone needs no tuple."""
    inner = node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 else node
    if isinstance(inner, _DISPLAYS) and len(inner.elts) == 1 and not isinstance(inner.elts[0], ast.Starred):
        return (view.keep(inner.elts[0]),)
    return classes_text(view, node)


def definition_text(migration: Migration, definition: Definition, form: str) -> tuple[Code, Outcome] | None:
    """The policy in its new form, with what is to be said; None where there is none."""
    view, argument, symbol = definition.view, definition.argument, definition.symbol
    if definition.form == "classes":
        if form == "classes":
            return classes_text(view, argument), Outcome(Level.SAFE, "the policy becomes the tuple of its classes")
        test = class_test(view, argument)
        return code("lambda module: isinstance(module, ", test, ")"), Outcome(
            Level.SAFE, "the policy becomes a function of the module, like the others that it stands beside"
        )
    if definition.form == "size" and form == "size":
        return None
    if argument is None or form == "mixed":
        return None
    if symbol == f"{WRAP}_or_policy":
        return _or_text(migration, view, argument), Outcome(
            Level.SAFE, "modules that any of the policies picks are units of their own", _UNIFORM
        )
    if symbol == f"{WRAP}CustomPolicy" and _returns_dictionaries(migration.program, view, argument):
        return None
    return (view.keep(argument),), Outcome(Level.SAFE, "the function itself is the condition", _UNIFORM)


_UNIFORM = (
    "FSDP2 lets trained and frozen parameters share a unit: a policy that only kept them apart can go, and units a "
    "block are faster."
)


def _or_text(migration: Migration, view: FileView, policies: ast.expr) -> Code:
    """A function that asks each policy of a list in turn."""
    tests = _or_tests(migration, view, policies, "module")
    if tests is not None:
        return code("lambda module: ", tests)
    return code("lambda module: any(policy(module) for policy in ", view.keep(policies), ")")


def _or_tests(migration: Migration, view: FileView, policies: ast.expr, module: str | Name) -> Code | None:
    """``first(module) or isinstance(module, second)``, where each policy of the list has a name and a form."""
    if not isinstance(policies, _DISPLAYS) or not all(isinstance(e, (ast.Name, ast.Attribute)) for e in policies.elts):
        return None
    tests: list[Code] = []
    for element in policies.elts:
        found, complete = definitions(migration.program, view.values(element), view, element)
        forms = {form_at(migration, d.view, d.node) or d.form for d in found}
        if not complete or len(forms) != 1 or forms & {"size", "mixed"}:
            return None
        by_class = forms == {"classes"}
        test = code("isinstance(", module, ", ", view.keep(element), ")") if by_class else code(view.keep(element), "(", module, ")")
        tests.append(code(" or " if tests else "", test))
    return code(*tests)


def _returns_dictionaries(program: Program, view: FileView, node: ast.expr) -> bool:
    """Whether the function of a CustomPolicy may return keyword arguments instead of a truth value."""
    for value in view.values(node):
        if not isinstance(value, FunctionValue):
            return True
        _, function = program.function_node(value)
        if isinstance(function, ast.Lambda):
            return isinstance(function.body, (ast.Dict, ast.Call, ast.IfExp)) and not _is_boolean(function.body)
        for inner in ast.walk(function):
            if isinstance(inner, ast.Return) and inner.value is not None and not _is_boolean(inner.value):
                return True
    return False


def _is_boolean(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "any", "all", "hasattr", "bool")
    if isinstance(node, ast.BoolOp):
        return all(_is_boolean(value) for value in node.values)
    return isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


# --- the argument -------------------------------------------------------------------------------------------


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
    inline = found[0] if len(found) == 1 and found[0].node is argument.node else None
    if form == "size":
        from .size_policy import by_size

        return by_size(constructor, argument, found, optional)
    policy = argument.keep()
    if inline is None and dotted_path(argument.node) is None:
        local = constructor.view.free_name(constructor.call, "policy")
        constructor.plan.before.append(code(local, " = ", policy))
        policy = (local,)
    level, note = (Level.SAFE, "") if complete else (Level.REVIEW, "; a policy may also come from outside the repository")
    skip_root = _root_may_match(constructor, found)
    if form == "classes":
        constructor.plan.units = Units(_class_condition(policy, inline, optional), skip_root=skip_root)
        return Outcome(level, f"the loop picks modules by class{note}")
    condition = _predicate_condition(constructor, policy, found, inline, optional)
    if isinstance(condition, Outcome):
        return condition
    constructor.plan.units = Units(condition, skip_root=skip_root)
    if any(d.symbol in ("function", _ALWAYS) for d in found):
        level = Level.REVIEW
    return Outcome(level, f"the loop picks the modules for which the policy's function is true{note}")


def _class_condition(policy: Code, inline: Definition | None, optional: bool) -> Code:
    if inline is not None:
        return code("isinstance(", UNIT, ", ", class_test(inline.view, inline.argument), ")")
    return code("isinstance(", UNIT, ", ", policy, " or ()" if optional else "", ")")


def _predicate_condition(
    constructor: Constructor, policy: Code, found: list[Definition], inline: Definition | None, optional: bool
) -> Code | Outcome:
    """The condition that asks the policy's function; an Outcome where this cannot be done."""
    own = [d for d in found if d.symbol == "function"]
    if any(d.symbol == _ALWAYS for d in found):
        return _always(found)
    if own:
        return _own_function(constructor, policy, found, own)
    if any(definition_text(constructor.migration, d, "predicate") is None for d in found):
        return Outcome(
            Level.MANUAL,
            "the function of this CustomPolicy returns arguments for single modules, which FSDP2 spells differently",
            "Write the loop yourself: fully_shard(module, …) with other arguments for these modules.",
            holds=True,
        )
    if inline is not None and inline.argument is not None:
        return _inline_test(constructor, inline.view, inline.symbol, inline.argument)
    call = code(policy, "(", UNIT, ")")
    return code(policy, " is not None and ", call) if optional else call


def _inline_test(constructor: Constructor, view: FileView, symbol: str, argument: ast.expr) -> Code:
    """The test of a policy that is made right in the constructor call."""
    if symbol == f"{WRAP}_or_policy":
        tests = _or_tests(constructor.migration, view, argument, UNIT)
        return tests if tests is not None else code("any(policy(", UNIT, ") for policy in ", view.keep(argument), ")")
    if isinstance(argument, ast.Lambda) and len(argument.args.args) == 1 and "\n" not in view.text(argument.body):
        body = _substituted(view, argument.body, argument.args.args[0].arg)
        return code("(", body, ")") if isinstance(argument.body, (ast.BoolOp, ast.IfExp)) else body
    function = code("(", view.keep(argument), ")") if isinstance(argument, ast.Lambda) else (view.keep(argument),)
    return code(function, "(", UNIT, ")")


def _substituted(view: FileView, body: ast.expr, parameter: str) -> Code:
    """The body of a lambda over the loop's module."""
    names = [n for n in ast.walk(body) if isinstance(n, ast.Name) and n.id == parameter]
    reached, end = view.source.span(body)
    parts: list[Code] = []
    for start, stop in sorted(view.source.span(name) for name in names):
        parts.append(code(Old(reached, start), UNIT))
        reached = stop
    return code(*parts, Old(reached, end))


def _always(found: list[Definition]) -> Code | Outcome:
    if len(found) == 1:
        return code("list(", UNIT, ".parameters()) and not isinstance(", UNIT, ", (torch.nn.ModuleList, torch.nn.ModuleDict))")
    return Outcome(
        Level.MANUAL, "always_wrap_policy meets other policies in this argument", "Decide for one of them.", holds=True
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
        if isinstance(statement, ast.If) and isinstance(statement.test, ast.Name) and statement.test.id == names[1]:
            first = statement.body[0]
            if isinstance(first, ast.Return) and isinstance(first.value, ast.Constant) and first.value.value is True:
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
        held = [v for v in constructor.program.elements(definition.view.values(definition.argument)) if isinstance(v, (ClassValue, External))]
        if not held and isinstance(definition.argument, _DISPLAYS):
            for element in definition.argument.elts:
                held.extend(v for v in definition.view.values(element) if isinstance(v, (ClassValue, External)))
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


# --- definitions where they stand ---------------------------------------------------------------------------


def check_definition(site: Site, migration: Migration) -> Outcome:
    """The finding of a policy's definition; inside the constructor call it is part of the wrap."""
    view = site.view
    definition = _definition_at(site)
    if definition is None and site.role == "annotation":
        return Outcome(Level.SAFE, "policies are tuples of classes or functions now", patches=[view.replace(site.node, "tuple", _NO_POLICIES)])
    if definition is None:
        return Outcome(
            Level.MANUAL,
            f"this use of {site.member} is neither a policy for a wrap nor a partial of one",
            "FSDP2 has no policies; pick the modules in a loop and call fully_shard on each.",
            holds=site.group is not None,
        )
    if _is_inside_wrap(migration, view, definition.node):
        return Outcome(_level_at_wrap(migration, site, definition), "the policy goes into the loop at the wrap")
    form = form_at(migration, view, definition.node) or definition.form
    if form == "size":
        from .size_policy import size_definition

        return size_definition(migration, definition)
    text = definition_text(migration, definition, form)
    if text is None:
        return Outcome(
            Level.MANUAL,
            "this policy has no form of its own under FSDP2",
            "Write a loop that picks the same modules and calls fully_shard on each.",
            holds=site.group is not None,
        )
    parts, outcome = text
    indent = "\n" + view.indent(definition.node)
    texts = [part.replace("\n", indent) if isinstance(part, str) else part for part in parts if not isinstance(part, Name)]
    outcome.patches.append(view.replace(definition.node, texts, _NO_POLICIES))
    return outcome


def _level_at_wrap(migration: Migration, site: Site, definition: Definition) -> Level:
    """The level of the argument that a definition stands in."""
    call = next(a for a in site.view.ancestors(definition.node) if isinstance(a, ast.Call))
    outcome = constructor_of(migration, site.view, call, site.group).outcomes.get("auto_wrap_policy")
    return outcome.level if outcome is not None else Level.MANUAL


def _definition_at(site: Site) -> Definition | None:
    """The definition that a site belongs to: its own call, or the partial around the reference."""
    view = site.view
    if site.call is not None:
        return definition_of_call(view, site.call)
    parent = view.parents[site.node]
    if isinstance(parent, ast.Call) and parent.args and parent.args[0] is site.node:
        return definition_of_call(view, parent)
    if isinstance(parent, ast.keyword) or isinstance(parent, (ast.Assign, ast.Return, ast.IfExp, ast.List, ast.Tuple)):
        assert isinstance(site.node, ast.expr)
        return Definition(view, site.node, site.symbol, None)
    return None


def _is_inside_wrap(migration: Migration, view: FileView, node: ast.expr) -> bool:
    """Whether a definition is itself the policy argument of a wrap."""
    parent = view.parents[node]
    call = view.parents[parent] if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call):
        return False
    return any(w.node is call and _policy_argument(call) is node for g in migration.groups.all for w in g.wraps)
