"""The findings of policies where they are defined, and of other mentions of their names."""

from __future__ import annotations

import ast

from ..analysis.values import Opaque
from ..findings import Level
from ..migration import Migration
from ..rule import Outcome
from ..sites import Site
from ..text.definitions import defined_instead
from ..text.generated import removed
from ..text.patches import Part, Patch
from ..view import FileView
from .constructor import constructor_of
from .plan import Code, Name
from .policy_definitions import (
    DISPLAYS,
    NO_POLICIES,
    WRAP,
    Definition,
    definition_of_call,
    form_at,
    policy_of,
    serves_checkpointing,
)
from .policy_text import LAMBDA, class_test, classes_text, definition_text


def check_definition(site: Site, migration: Migration) -> Outcome:
    """The finding of a policy's definition; inside the constructor call it is part of the wrap."""
    view = site.view
    definition = _definition_at(site)
    if definition is None and site.role == "annotation":
        return Outcome(
            Level.SAFE,
            "policies are tuples of classes or functions now",
            patches=[view.replace(site.node, "tuple", NO_POLICIES)],
        )
    if definition is None:
        return Outcome(
            Level.MANUAL,
            f"this use of {site.member} is neither a policy for a wrap nor a partial of one",
            "FSDP2 has no policies; pick the modules in a loop and call fully_shard on each.",
            holds=site.group is not None,
        )
    if _is_inside_wrap(migration, definition.node):
        return Outcome(
            _level_at_wrap(migration, site, definition), "the policy goes into the loop at the wrap"
        )
    reaching = form_at(migration, view, definition.node)
    if serves_checkpointing(migration, definition):
        if not reaching:
            return Outcome(Level.OK, "apply_activation_checkpointing goes on taking FSDP1's policies")
        return Outcome(
            Level.MANUAL,
            "this policy serves a wrap and activation checkpointing, which goes on taking FSDP1's policies",
            "Give activation checkpointing a policy, or a check_fn, of its own.",
            holds=True,
        )
    if not reaching and _is_handed_out(view, definition):
        return Outcome(
            Level.MANUAL,
            "this policy is handed to code outside this repository",
            "Look up what that code wants for FSDP2: most often the names of the classes that are sharded one by one.",
        )
    form = reaching or definition.form
    if form == "size" and not reaching:
        return Outcome(
            Level.MANUAL,
            "no wrap in this repository takes this policy, and who does take it decides what becomes of it",
            "FSDP2 has no policy by size: where the model is sharded, write a function that walks the children of a module, "
            "goes on while they have enough parameters, and calls fully_shard on what its children leave over.",
        )
    if form == "size":
        from .size_policy import size_definition

        return size_definition(migration, definition)
    text = definition_text(migration, definition, form)
    if text is None:
        is_joined = definition.symbol.endswith("._or_policy")
        return Outcome(
            Level.MANUAL,
            "the policies that this one joins are not named here" if is_joined else "this policy has no form under FSDP2",
            "Give their functions by name, policies=[first, second], and run the tool again; or call fully_shard, from the "
            "innermost module up, on those that any of them picks."
            if is_joined
            else "Call fully_shard, from the innermost module up, on those that it picks.",
            holds=site.group is not None,
        )
    parts, outcome = text
    outcome.patches.extend(_in_lists(view, definition) or [_in_its_place(view, definition.node, parts)])
    return outcome


def _in_its_place(view: FileView, node: ast.expr, parts: Code) -> Patch:
    """The policy where it was made; a function that gets a name is defined, as a lambda should have none."""
    indent = "\n" + view.indent(node)
    texts: list[Part] = [
        part.replace("\n", indent) if isinstance(part, str) else part
        for part in parts
        if not isinstance(part, Name)
    ]
    target = _target(view, node)
    if target is None or texts[0] != LAMBDA:
        return view.replace(node, texts, NO_POLICIES)
    body = [part.replace("\n", "\n    ") if isinstance(part, str) else part for part in texts[1:]]
    head = f"def {target.id}(module):{indent}    return "
    statement = view.statement(node)
    block, place = view.block_of(statement)
    is_first = all(_goes(view, earlier) for earlier in block[:place])
    return defined_instead(view, statement, (head, *body), NO_POLICIES, is_first)


def _goes(view: FileView, statement: ast.stmt) -> bool:
    """Whether a statement makes a policy that its readers take in."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return False
    made = definition_of_call(view, statement.value)
    return made is not None and any(not patch.parts for patch in _in_lists(view, made))


def _target(view: FileView, node: ast.expr) -> ast.Name | None:
    """The name that a statement of its own gives to a policy."""
    statement = view.parents[node]
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not view.stands_alone(statement):
        return None
    target = statement.targets[0]
    return target if isinstance(target, ast.Name) else None


def _in_lists(view: FileView, definition: Definition) -> list[Patch]:
    """A policy with a name that lists of policies alone read: they read the function or the classes themselves."""
    name, scope, argument = _target(view, definition.node), view.function(definition.node), definition.argument
    if name is None or scope is None or argument is None or not isinstance(definition.node, ast.Call):
        return []
    mentions = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name.id and n is not name]
    if not mentions or not all(_is_in_list_of_policies(view, mention) for mention in mentions):
        return []
    if definition.form == "classes" and not isinstance(argument, DISPLAYS):
        return _renamed(view, name, mentions, definition)
    if definition.form == "classes":
        text, used = class_test(view, argument), view.names_in(argument)
    elif definition.symbol == f"{WRAP}lambda_auto_wrap_policy" and isinstance(argument, ast.Name):
        text, used = (argument.id,), {argument.id}
    else:
        return []
    if any(isinstance(n, ast.Name) and n.id in used and isinstance(n.ctx, ast.Store) for n in ast.walk(scope)):
        return []
    reads = [view.replace(mention, [part for part in text if not isinstance(part, Name)], NO_POLICIES) for mention in mentions]
    return [removed(view, view.statement(definition.node), NO_POLICIES), *reads]


def _renamed(view: FileView, name: ast.Name, mentions: list[ast.Name], definition: Definition) -> list[Patch]:
    """Classes that are collected once, under a name that says so."""
    if not name.id.endswith("policy"):
        return []
    classes = view.free_name(name, name.id.removesuffix("policy") + "classes")
    text = [part for part in classes_text(view, definition.argument) if not isinstance(part, Name)]
    return [
        view.replace(definition.node, text, NO_POLICIES),
        *(view.replace(mention, classes, NO_POLICIES) for mention in (name, *mentions)),
    ]


def _is_in_list_of_policies(view: FileView, name: ast.Name) -> bool:
    """``functools.partial(_or_policy, policies=[name, …])``"""
    display = view.parents[name]
    keyword = view.parents[display]
    return isinstance(display, DISPLAYS) and isinstance(keyword, ast.keyword) and keyword.arg == "policies"


def _is_handed_out(view: FileView, definition: Definition) -> bool:
    """Whether a policy stands among the arguments of a call that leaves the repository."""
    parent = view.parents[definition.node]
    call = view.parents[parent] if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or view.external(call.func) in ("functools.partial", None):
        return False
    return any(isinstance(value, Opaque) for value in view.values(call))


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
    if isinstance(parent, (ast.keyword, ast.Assign, ast.Return, ast.IfExp, ast.List, ast.Tuple)):
        assert isinstance(site.node, ast.expr)
        return Definition(view, site.node, site.symbol, None)
    return None


def _is_inside_wrap(migration: Migration, node: ast.expr) -> bool:
    """Whether a definition is itself the policy argument of a wrap."""
    return any(policy_of(wrap) is node for group in migration.groups.all for wrap in group.wraps)
