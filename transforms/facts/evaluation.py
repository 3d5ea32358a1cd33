"""What torch's version decides: small pure expressions over it, worked out as Python would.

A truth that does not come from the version is never given: a constant in the code is there to be changed.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .written_names import Names

_INSTALLED = frozenset({"torch.__version__", "torch.version.__version__", "torch.torch_version.__version__"})
_PARSERS = frozenset({"parse", "Version", "LooseVersion", "StrictVersion", "TorchVersion", "parse_version"})
_OF_PACKAGES = re.compile(r"(importlib\.metadata\.|importlib_metadata\.|metadata\.)version")
_PARSING = re.compile(r"version|parse", re.IGNORECASE)
_PARTIAL = re.compile(r"major|minor|micro|patch|cuda|python|check|is_|has_|compare", re.IGNORECASE)
_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)(.*)")
_TEXT_METHODS = frozenset(
    {"split", "rsplit", "partition", "rpartition", "strip", "lstrip", "rstrip", "startswith", "replace", "join", "isnumeric"}
)
_BUILTINS: dict[str, Callable[..., Any]] = {"int": int, "float": float, "str": str, "tuple": tuple, "list": list}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
_BY_SIGN: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_DEEPEST = 20


class Unclear(Exception):
    """What an expression comes out as depends on more than is known here."""


class Installed(str):
    """``torch.__version__``: a text that compares as a version."""


@dataclass(frozen=True)
class Version:
    """A version that a parser made."""

    release: tuple[int, ...]
    stage: int = 0
    """-1 before the release, 1 behind it or with something local, 0 else."""

    @property
    def place(self) -> tuple[tuple[int, ...], int]:
        """Its place in the order of versions: missing numbers are zeros."""
        return (*self.release, *(0 for _ in range(4 - len(self.release)))), self.stage

    @staticmethod
    def of(value: object) -> Version:
        """The version that a text or a row of numbers says."""
        if isinstance(value, Version):
            return value
        if isinstance(value, (tuple, list)) and value and all(type(part) is int for part in value):
            return Version(tuple(value))
        found = _NUMBERS.match(value.strip()) if isinstance(value, str) else None
        if found is None:
            raise Unclear
        rest = found.group(2).lstrip(".-_")
        stage = -1 if re.match(r"a|b|c|rc|dev|pre", rest) else 1 if rest else 0
        return Version(tuple(int(part) for part in found.group(1).split(".")), stage)


@dataclass(frozen=True)
class Parsed:
    """What a function makes of a version that is not known to keep the order of releases: it may stay a text."""

    text: str


@dataclass
class Evaluator:
    """Works out expressions of one file under one version of torch."""

    torch: str
    names: Names
    local: dict[str, object] = field(default_factory=dict)
    depth: int = 0
    reads: list[ast.AST] = field(default_factory=list)
    """Where the version was read so far."""

    def truth(self, node: ast.expr) -> bool:
        """Whether a test holds; raises ``Unclear`` where torch's version does not decide that."""
        before = len(self.reads)
        value = self.value(node)
        if not isinstance(value, bool) or len(self.reads) == before:
            raise Unclear
        return value

    def value(self, node: ast.AST) -> Any:
        """What an expression evaluates to; raises ``Unclear`` where that is not known."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Tuple(elts=elements):
                return tuple(map(self.value, elements))
            case ast.List(elts=elements):
                return list(map(self.value, elements))
            case ast.Name() | ast.Attribute():
                return self._named(node)
            case ast.Subscript(value=whole, slice=key):
                return _attempt(lambda: self.value(whole)[self._key(key)])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self.truth(operand)
            case ast.BinOp(left=left, op=ast.Add() | ast.Mult() as sign, right=right):
                work = operator.add if isinstance(sign, ast.Add) else operator.mul
                return _attempt(lambda: work(self.value(left), self.value(right)))
            case ast.BoolOp(op=sign, values=parts):
                return self._joined(isinstance(sign, ast.Or), parts)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self.truth(test) else orelse)
            case ast.Compare(left=left, ops=signs, comparators=others):
                return self._compared([self.value(part) for part in (left, *others)], signs)
            case ast.ListComp(elt=element, generators=[loop]) | ast.GeneratorExp(elt=element, generators=[loop]):
                return self._collected(element, loop)
            case ast.Call():
                return self._called(node)
            case _:
                raise Unclear

    def _named(self, node: ast.Name | ast.Attribute) -> Any:
        if isinstance(node, ast.Name) and node.id in self.local:
            return self.local[node.id]
        if self.names.origins(node) & _INSTALLED:
            return self._installed(node)
        meaning = self.names.meaning(node)
        if meaning is not None and isinstance(meaning.node, ast.expr):
            if meaning.chosen:
                self.reads.append(node)
            return self._deeper(meaning.names).value(meaning.node)
        if isinstance(node, ast.Attribute):
            return _part(self.value(node.value), node.attr)
        raise Unclear

    def _installed(self, node: ast.AST) -> Installed:
        self.reads.append(node)
        return Installed(self.torch)

    def _deeper(self, names: Names, local: dict[str, object] | None = None) -> Evaluator:
        if self.depth > _DEEPEST:
            raise Unclear
        return Evaluator(self.torch, names, local or {}, self.depth + 1, self.reads)

    def _key(self, node: ast.expr) -> object:
        if isinstance(node, ast.Slice):
            return slice(*(self.value(part) if part is not None else None for part in (node.lower, node.upper, node.step)))
        return self.value(node)

    def _joined(self, deciding: bool, parts: Sequence[ast.expr]) -> bool:
        """``and`` and ``or``: one part that decides is enough, whatever the others are."""
        unclear = False
        for part in parts:
            try:
                if self.truth(part) == deciding:
                    return deciding
            except Unclear:
                unclear = True
        if unclear:
            raise Unclear
        return not deciding

    def _compared(self, values: Sequence[Any], signs: Sequence[ast.cmpop]) -> bool:
        work = [_COMPARISONS.get(type(sign)) for sign in signs]
        return all(compare(each, *pair) for each, *pair in zip(work, values, values[1:], strict=False))

    def _collected(self, element: ast.expr, loop: ast.comprehension) -> list[Any]:
        if not isinstance(loop.target, ast.Name) or loop.is_async:
            raise Unclear
        found: list[Any] = []
        for item in _attempt(lambda: list(self.value(loop.iter))):
            inner = self._deeper(self.names, {**self.local, loop.target.id: item})
            if all(inner.truth(test) for test in loop.ifs):
                found.append(inner.value(element))
        return found

    def _called(self, call: ast.Call) -> Any:
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr in _TEXT_METHODS and not call.keywords:
            method = getattr(_text(self.value(function.value)), function.attr)
            return _attempt(lambda: method(*map(self.value, call.args)))
        origins = self.names.origins(function)
        last = {origin.rpartition(".")[2] for origin in origins}
        if call.keywords or not call.args:
            return self._of_the_repository(call)
        if last <= _BUILTINS.keys() and len(call.args) == 1 and last:
            return _attempt(lambda: _BUILTINS[last.pop()](self.value(call.args[0])))
        if last == {"map"} and len(call.args) == 2 and isinstance(call.args[0], ast.Name) and call.args[0].id in _BUILTINS:
            work = _BUILTINS[call.args[0].id]
            return _attempt(lambda: [work(item) for item in self.value(call.args[1])])
        if last == {"is_torch_version"} and len(call.args) == 2:
            return compare(_BY_SIGN.get(self.value(call.args[0])), self._installed(call), self.value(call.args[1]))
        if all(_OF_PACKAGES.fullmatch(origin) for origin in origins) and origins and self.value(call.args[0]) == "torch":
            return str(self._installed(call))
        if last and last <= _PARSERS and len(call.args) == 1 and self.names.meaning(function) is None:
            return Version.of(_text(self.value(call.args[0])))
        return self._of_the_repository(call)

    def _of_the_repository(self, call: ast.Call) -> Any:
        """A function that only assigns and returns is run; one that is called by what it parses is taken at its word."""
        meaning = self.names.meaning(call.func)
        given = [self.value(argument) for argument in call.args]
        if meaning is not None and isinstance(meaning.node, ast.FunctionDef) and not call.keywords:
            try:
                return self._run(meaning.node, meaning.names, given)
            except Unclear:
                pass
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if len(given) == 1 and isinstance(given[0], str) and _PARSING.search(name) and not _PARTIAL.search(name):
            return Parsed(str(given[0]))
        raise Unclear

    def _run(self, function: ast.FunctionDef, names: Names, given: Sequence[object]) -> Any:
        parameters = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        if len(parameters) != len(given) or function.decorator_list:
            raise Unclear
        inside = self._deeper(names, dict(zip(parameters, given, strict=True)))
        for statement in function.body:
            match statement:
                case ast.Expr(value=ast.Constant()):
                    continue
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    inside.local[name] = inside.value(value)
                case ast.Return(value=ast.expr() as value):
                    return inside.value(value)
                case _:
                    raise Unclear
        raise Unclear


def compare(work: Callable[[Any, Any], bool] | None, left: object, right: object) -> bool:
    """A comparison as Python makes it of versions, texts, numbers and rows of them."""
    if work is None:
        raise Unclear
    if isinstance(left, Parsed) or isinstance(right, Parsed):
        texts = [side.text if isinstance(side, Parsed) else side for side in (left, right)]
        known = compare(work, *map(Version.of, texts))
        if all(isinstance(text, str) for text in texts) and known != work(*map(str, texts)):
            raise Unclear
        return known
    if isinstance(left, (Installed, Version)) or isinstance(right, (Installed, Version)):
        return work(Version.of(left).place, Version.of(right).place)
    return _attempt(lambda: work(left, right))


def _part(owner: object, name: str) -> object:
    """An attribute of a parsed version."""
    if not isinstance(owner, Version):
        raise Unclear
    parts = {"release": owner.release, "base_version": ".".join(map(str, owner.release))}
    parts |= dict(zip(("major", "minor", "micro"), owner.release, strict=False))
    if name not in parts:
        raise Unclear
    return parts[name]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Unclear
    return str.__str__(value)


def _attempt(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (TypeError, ValueError, LookupError, AttributeError):
        raise Unclear from None
