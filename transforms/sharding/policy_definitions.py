"""Where wrapping policies are made, and which form each takes.

A policy is one of three forms. *classes*: a tuple for ``isinstance``. *predicate*: a function of the module.
*size*: a function that shards by itself. All policies that reach one wrap get the same form, wherever they
are defined, so that the loop at the wrap fits each of them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..analysis.values import Bound, Constant, External, FunctionValue, Opaque, Partial, Value
from ..groups import Wrap
from ..migration import Migration
from ..program import Program
from ..view import FileView
from .wrap_blocks import settings_of

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
ALWAYS = f"{WRAP}always_wrap_policy"
NO_POLICIES = "FSDP2 has no policies"
DISPLAYS = (ast.Set, ast.List, ast.Tuple)


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
        if self.symbol in _PREDICATES or self.symbol in (ALWAYS, "function"):
            return "predicate"
        return "size" if self.symbol in _SIZE else "unknown"

    @property
    def says_nothing(self) -> bool:
        """Whether the policy's own argument is missing, or given in a way that is not understood."""
        return self.argument is None and self.symbol in {**_CLASS_POLICIES, **_PREDICATES}


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


def definitions(
    program: Program, values: list[Value], view: FileView, node: ast.expr
) -> tuple[list[Definition], bool]:
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
        if definition is None or definition.form == "unknown" or definition.says_nothing:
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
            argument = policy_of(wrap)
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


def policy_of(wrap: Wrap) -> ast.expr | None:
    """The policy that a wrap is given, by its own call or by the block of ``enable_wrap`` around it."""
    settings = settings_of(wrap.view, wrap.node)
    return policy_argument(wrap.node) or (policy_argument(settings) if settings is not None else None)


def policy_argument(call: ast.Call) -> ast.expr | None:
    named = next((k.value for k in call.keywords if k.arg == "auto_wrap_policy"), None)
    return named or (call.args[4] if len(call.args) > 4 else None)


def inner_policies(program: Program, definition: Definition) -> list[Definition]:
    """The policies that an ``_or_policy`` joins."""
    if definition.symbol != f"{WRAP}_or_policy" or definition.argument is None:
        return []
    view = definition.view
    values = program.elements(view.values(definition.argument))
    found, _ = definitions(
        program, [v for v in values if isinstance(v, (Partial, Opaque, External))], view, definition.argument
    )
    return found


def serves_checkpointing(migration: Migration, definition: Definition) -> bool:
    """Whether a policy is given to apply_activation_checkpointing, which goes on taking FSDP1's policies."""
    keys = migration.once("checkpointing policies", None, lambda: _checkpointing(migration))
    return _key(definition) in keys


def _checkpointing(migration: Migration) -> set[tuple[str, tuple[int, int]]]:
    keys: set[tuple[str, tuple[int, int]]] = set()
    for sites in migration.sites.values():
        for site in sites:
            if site.keyword is not None and site.symbol.endswith(
                "apply_activation_checkpointing(auto_wrap_policy=)"
            ):
                value = site.keyword.value
                found, _ = definitions(migration.program, site.view.values(value), site.view, value)
                keys.update(_key(definition) for definition in found)
    return keys
