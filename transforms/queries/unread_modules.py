"""Modules that a class holds and no code reads: their parameters have no part in any forward."""

from __future__ import annotations

import ast
from functools import partial

from ..flow.values import ClassValue, Value
from .program import Program


def has_unread_modules(program: Program) -> bool:
    """Whether a module class of the repository assigns a layer or parameter to an attribute that nothing reads by name."""
    read = {attribute for facts in program.facts for _, _, attribute in facts.loads}
    read |= {call.method for facts in program.facts for call in facts.calls if call.method is not None}
    return any(map(partial(_assigns_unread, program, read), range(len(program.facts))))


def _assigns_unread(program: Program, read: set[str], index: int) -> bool:
    stored = {attribute for _, attribute, _ in program.facts[index].stores} - read
    if not stored or not program.facts[index].classes:
        return False
    file = program.file(index)
    classes = [node for node in file.nodes(ast.ClassDef) if any(map(partial(_is_module, program), file.values(node)))]
    made = (n for cls in classes for n in ast.walk(cls) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call))
    return any(_stores(assign) in stored and _is_layer(file.external(assign.value.func)) for assign in made)  # type: ignore[attr-defined]


def _is_module(program: Program, value: Value) -> bool:
    return isinstance(value, ClassValue) and any(base.startswith("torch.nn.") for base in program.flow.external_bases(value))


def _stores(assign: ast.Assign) -> str | None:
    target = assign.targets[0]
    is_own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    return target.attr if is_own and isinstance(target, ast.Attribute) else None


def _is_layer(name: str | None) -> bool:
    """Whether a call makes a parameter, or a layer of torch that has parameters."""
    return name is not None and name.startswith(("torch.nn.Linear", "torch.nn.Embedding", "torch.nn.Conv", "torch.nn.LayerNorm",
                                                 "torch.nn.Parameter", "torch.nn.parameter.Parameter"))  # fmt: skip
