"""Kinds of state dicts that a program chooses at run time: the options are made from the same value, a string by then."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..analysis.symbols import FSDP1
from ..analysis.values import External, Opaque
from ..findings import Level
from ..rule import Outcome
from ..text.spelling import quoted
from ..view import FileView, path_of

STATE_DICT_TYPE = "torch.distributed.fsdp.StateDictType"
_FULL, _SHARDED, _LOCAL = "FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"


@dataclass(frozen=True)
class Choice:
    """What tells the kind of the state dicts at run time."""

    view: FileView
    call: ast.Call
    text: str
    """An expression whose value is the name of the kind, once the members of the enum are strings."""
    names: tuple[str, ...]
    """The names that it may be, as far as they are seen."""
    is_known: bool
    """Whether nothing else reaches it."""

    @property
    def may_be_local(self) -> bool:
        return _LOCAL in self.names

    @property
    def is_full(self) -> str:
        """The condition for a full state dict."""
        return f"{self.text} == {quoted(self.view, _FULL)}"

    @property
    def check(self) -> str:
        """A statement that refuses any other name, which would be taken for a sharded kind without a word."""
        names = self.names if self.is_known else tuple(dict.fromkeys((_FULL, _SHARDED, *self.names)))
        return f"assert {self.text} in ({', '.join(quoted(self.view, name) for name in names)}), {self.text}"

    def reaches(self, view: FileView, node: ast.AST, text: str) -> bool:
        """Whether what ``text`` says where the kind is set still holds at another place, under the same name."""
        return holds_at(self.view, self.call, view, node, text)

    def is_elsewhere(self, view: FileView, node: ast.AST) -> bool:
        """Whether another function than the place's own sets the kind."""
        return view.function(self.call) is not view.function(node)


def holds_at(here: FileView, call: ast.Call, there: FileView, node: ast.AST, text: str) -> bool:
    """Whether a name or attribute of a call means the same at another place."""
    if here is not there:
        return False
    first, second = here.function(call), there.function(node)
    if first is second:
        return not _is_rebound(here, call, node, text)
    if text.startswith("self."):
        return _method_of(here, call) is _method_of(there, node) is not None
    root = text.partition(".")[0]
    return not any(root in bound_names(function) for function in (first, second) if function is not None)


def bound_names(function: ast.AST) -> set[str]:
    """The parameters of a function and the names that it assigns."""
    nodes = list(ast.walk(function))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


def _is_rebound(view: FileView, call: ast.Call, node: ast.AST, text: str) -> bool:
    scope = view.function(node) or view.tree
    return any(
        call.lineno <= inner.lineno <= view.line(node) and view.text(inner) == text
        for inner in ast.walk(scope)
        if isinstance(inner, (ast.Name, ast.Attribute)) and isinstance(inner.ctx, ast.Store)
    )


def choice_of(view: FileView, call: ast.Call, kind: ast.expr) -> Choice | None:
    """The choice that an argument of ``state_dict_type`` leaves to a variable; None where it is no plain name."""
    if isinstance(kind, ast.Subscript) and view.external(kind.value) == STATE_DICT_TYPE:
        kind = kind.slice
    if path_of(kind) is None:
        return None
    values = view.values(kind)
    members = [v.name for v in values if isinstance(v, External) and v.name.startswith(f"{STATE_DICT_TYPE}.")]
    names = tuple(sorted(name.rpartition(".")[2] for name in members))
    return Choice(view, call, view.text(kind), names, bool(names) and len(members) == len(values))


def qualify(outcome: Outcome, choice: Choice) -> None:
    """Says what tells the kind now, and what happens to a kind that is not seen here."""
    outcome.message += f"; {choice.text} holds the name of the kind"
    if not choice.is_known:
        outcome.level = Level.REVIEW
        outcome.message += ", and raises where it comes from outside these files as something else than that name"


def is_made_of(view: FileView, config: ast.expr, classes: frozenset[str]) -> bool:
    """Whether a variable holds nothing but configs that are made in the repository, and become options there."""
    values = view.values(config)
    made = all(isinstance(value, Opaque) and value.name in classes for value in values)
    return path_of(config) is not None and bool(values) and made


def is_method_of(view: FileView, call: ast.Call) -> bool:
    """``model.state_dict_type(kind)``, as opposed to the static form, which may be called on the model, too."""
    function = call.func
    if not isinstance(function, ast.Attribute) or view.external(function.value) == FSDP1:
        return False
    return not (call.args and view.text(call.args[0]) == view.text(function.value))


def _method_of(view: FileView, node: ast.AST) -> ast.ClassDef | None:
    """The class whose method a place is in, if ``self`` is its object."""
    function = view.function(node)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    parent = view.parents[function]
    is_method = bool(function.args.args) and function.args.args[0].arg == "self"
    return parent if isinstance(parent, ast.ClassDef) and is_method else None
