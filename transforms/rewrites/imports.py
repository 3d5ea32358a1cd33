"""Imports after a rewrite: what only rewritten code used goes, what generated code uses comes, in the file's own style."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import libcst as cst

from ..facts.symbols import canonical
from .changes import Statement
from .import_order import put_in_order

_OF_TYPES = frozenset({"Optional", "Union", "List", "Dict", "Tuple", "Type", "Callable", "list", "dict", "tuple", "type"})
_WORDS = re.compile(r"[A-Za-z_]\w*")
_LONGEST = 110
_LIBRARIES = frozenset({"torch", "numpy", "tqdm", "transformers", "timm", "torchvision", "yaml"})
"""Packages that are surely none of a repository's own."""


@dataclass(frozen=True)
class Wanted:
    """A name that is to be imported: ``from module import symbol as name``, without a module ``import symbol as name``."""

    module: str
    symbol: str
    name: str

    @property
    def alias(self) -> cst.ImportAlias:
        """The name as an import statement lists it."""
        as_name = cst.AsName(cst.Name(self.name)) if self.name != self.symbol else None
        return cst.ImportAlias(cst.Name(self.symbol), as_name)


def mend_imports(
    before: Collection[str], after: Collection[str], new: cst.Module, wanted: Iterable[Wanted], kept: Collection[str],
    without: Collection[cst.CSTNode] = (),
) -> cst.Module:  # fmt: skip
    """``new``, which reads the names ``after``, without the imports whose names were read ``before`` alone, and with those of
    ``wanted`` that it uses.

    ``kept`` are names that stay in any case: other files import them from this one. ``without`` are statements that hold no
    import, and are passed over.
    """
    unused = {name for name in before if name not in after and name not in kept}
    missing = [want for want in wanted if want.name in after]
    mender = _Mender(unused, missing, without)
    mended = new.visit(mender)
    return _with_new_lines(mended, mender.left, mender.place)


def read_names(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that code reads or writes outside of import statements, with those in entries of ``__all__`` and in
    annotations in quotes. ``nodes`` are all that there are.
    """
    found = set()
    for node in nodes:
        if isinstance(node, ast.Name):
            found.add(node.id)
        for part in _types_in(node):
            texts = (n.value for n in ast.walk(part) if isinstance(n, ast.Constant) and isinstance(n.value, str))
            found.update(word for text in texts for word in _words_in(text))
    return found


def _types_in(node: ast.AST) -> Iterator[ast.AST]:
    """What may hold names in quotes below a node: annotations, types that are made or asked for, and ``__all__``."""
    if isinstance(node, (ast.arg, ast.AnnAssign)):
        found: list[ast.AST | None] = [node.annotation]
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        found = [node.returns]
    elif isinstance(node, ast.Subscript) and _last_name(node.value) in _OF_TYPES:
        found = [node.slice]
    elif isinstance(node, ast.Call) and _last_name(node.func) in ("cast", "TypeVar", "NewType", "ForwardRef"):
        found = [*node.args, *node.keywords]
    elif isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        found = [node.value] if any(_last_name(target) == "__all__" for target in targets) else []
    else:
        found = []
    yield from (part for part in found if part is not None)


def _last_name(node: ast.AST) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


@cache
def _words_in(text: str) -> list[str]:
    """The names in a string that is an annotation or an entry of ``__all__``."""
    if len(text) >= 100 or not re.fullmatch(r"[\w.\[\], |]+", text):
        return []
    try:
        ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return []
    return _WORDS.findall(text)


class _Mender(cst.CSTTransformer):
    """Drops unused names from import statements, and adds wanted ones to those of the same module."""

    def __init__(self, unused: Collection[str], missing: Sequence[Wanted], without: Collection[cst.CSTNode]) -> None:
        super().__init__()
        self.without = without
        self.unused = unused
        self.left = list(missing)
        self.depth = 0
        """How many functions and classes are around the place of the walk."""
        self.guarded = 0
        """How many ``try`` statements are."""
        self.place: str | None = None
        """The code of the import line behind which new lines go: one that lost a name."""

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node not in self.without and not isinstance(node, cst.BaseExpression) and super().on_visit(node)

    def on_leave(
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNode]:
        return updated_node if original_node in self.without else super().on_leave(original_node, updated_node)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.depth += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        self.depth -= 1
        return updated_node

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> bool:
        return False  # a block looks at its lines itself

    def visit_Try(self, node: cst.Try) -> None:
        self.guarded += 1

    def leave_Try(self, original_node: cst.Try, updated_node: cst.Try) -> cst.Try:
        self.guarded -= 1
        return updated_node

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        return updated_node.with_changes(body=self._block(updated_node.body))

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.IndentedBlock:
        body = self._block(updated_node.body)
        if body and len(body) < len(updated_node.body) and (above := _blank_lines(body[0])):
            kept = [line for line in body[0].leading_lines if line not in above]  # type: ignore[attr-defined]
            body[0] = body[0].with_changes(leading_lines=kept)  # nothing stands above it any more
        # An empty block around imports keeps them: it is a test whether they are there.
        return updated_node if not body else updated_node.with_changes(body=body)

    def _block(self, body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
        found: list[cst.BaseStatement] = []
        spacing: Sequence[cst.EmptyLine] = ()
        for statement, following in zip(body, [*body[1:], None], strict=False):  # there may be none
            line = self._line(statement) if isinstance(statement, cst.SimpleStatementLine) else statement
            if line is None:
                # The lines above a removed import separate what follows, unless that brings its own; a comment above
                # several imports heads them all.
                heads = _is_import(following) and not following.leading_lines  # type: ignore[union-attr]
                spacing = spacing or (statement.leading_lines if heads else _blank_lines(statement))  # type: ignore[attr-defined]
                continue
            if spacing and isinstance(line, (cst.SimpleStatementLine, cst.BaseCompoundStatement)) and not line.leading_lines:
                line = line.with_changes(leading_lines=spacing)
            spacing = ()
            found.append(line)
        return found

    def _line(self, line: cst.SimpleStatementLine) -> cst.SimpleStatementLine | None:
        if not any(isinstance(part, (cst.Import, cst.ImportFrom)) for part in line.body):
            return line
        body = [part for part in map(self._statement, line.body) if part is not None]
        if not body:
            return None
        return line if all(a is b for a, b in zip(body, line.body, strict=False)) else line.with_changes(body=body)

    def _statement(self, node: cst.BaseSmallStatement) -> cst.BaseSmallStatement | None:
        if isinstance(node, cst.Import):
            names = [alias for alias in node.names if not self._goes(alias)]
            return node if len(names) == len(node.names) else _with_names(node, names)
        if not isinstance(node, cst.ImportFrom) or isinstance(node.names, cst.ImportStar):
            return node
        names = [alias for alias in node.names if not self._goes(alias)]
        added = self._added(node, lost=len(names) < len(node.names))
        if not added and len(names) == len(node.names):
            return node
        if not names and not added and self.guarded:
            return node
        return _with_names(node, names, added)

    def _goes(self, alias: cst.ImportAlias) -> bool:
        return bound_name(alias) in self.unused

    def _added(self, node: cst.ImportFrom, lost: bool) -> list[cst.ImportAlias]:
        """The wanted names that this statement is the place for."""
        if node.relative or node.module is None or (self.depth and not lost):
            return []
        module = dotted(node.module)
        listed = {bound_name(alias) for alias in node.names} if not isinstance(node.names, cst.ImportStar) else set()
        fitting = [w for w in self.left if w.module in (module, canonical(module)) and w.name not in listed]
        if not self.depth:
            self.left = [w for w in self.left if w not in fitting]
        return [want.alias for want in fitting]


def bound_name(alias: cst.ImportAlias) -> str:
    """The name that an entry of an import statement binds."""
    if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
        return alias.asname.name.value
    return dotted(alias.name).partition(".")[0]


def dotted(node: cst.BaseExpression) -> str:
    """``a.b.c`` of a chain of attributes."""
    if isinstance(node, cst.Attribute):
        return f"{dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


def _blank_lines(statement: cst.BaseStatement) -> list[cst.EmptyLine]:
    return [line for line in getattr(statement, "leading_lines", ()) if line.comment is None]


def _with_names(node, names: list[cst.ImportAlias], added: Sequence[cst.ImportAlias] = ()):
    """The import statement with these names; None without any. The layout of a list in parentheses stays."""
    if not names and not added:
        return None
    commas = [alias.comma for alias in node.names]
    between = next((comma for comma in commas[:-1] if isinstance(comma, cst.Comma)), None)
    separator = _with_comment_of(between or cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")), None)
    last, final = commas[-1], node.names[-1]
    merged = [*names, *added]
    merged = [
        alias if isinstance(alias.comma, cst.Comma) and alias is not final
        else alias.with_changes(comma=_with_comment_of(separator, alias.comma))
        for alias in merged
    ]  # fmt: skip
    merged[-1] = merged[-1].with_changes(comma=_with_comment_of(last, last if merged[-1].name is final.name else None))
    return node.with_changes(names=merged)


def _with_comment_of(comma: cst.Comma | cst.MaybeSentinel, other: cst.Comma | cst.MaybeSentinel | None):
    """A comma with the comment behind another one, in place of its own."""
    if not isinstance(comma, cst.Comma) or not isinstance(comma.whitespace_after, cst.ParenthesizedWhitespace):
        return comma
    space = other.whitespace_after if isinstance(other, cst.Comma) else None
    line = space.first_line if isinstance(space, cst.ParenthesizedWhitespace) else cst.TrailingWhitespace()
    return comma.with_changes(whitespace_after=comma.whitespace_after.with_changes(first_line=line))


def _with_new_lines(module: cst.Module, wanted: Sequence[Wanted], place: str | None) -> cst.Module:
    """The module with an import statement for each module that names are left over from."""
    if not wanted:
        return module
    by_module: dict[str, list[Wanted]] = {}
    for want in wanted:
        if want.module:
            by_module.setdefault(want.module, []).append(want)
    torch = [_import_line(name, wants) for name, wants in sorted(by_module.items()) if name.startswith("torch.")]
    others = [_plain_import(want) for want in sorted(wanted, key=lambda want: want.symbol) if not want.module]
    own = {name: _import_line(name, wants) for name, wants in sorted(by_module.items()) if not name.startswith("torch.")}
    for name, line in own.items():
        ordered = put_in_order(module, name, line)
        module = ordered or module
        others += [] if ordered is not None else [_apart(module, line)]
    return _inserted(_inserted(module, others, behind_torch=False), torch, behind_torch=True)


def _inserted(module: cst.Module, lines: Sequence[cst.SimpleStatementLine], behind_torch: bool) -> cst.Module:
    """The module with import statements behind its imports of torch, or behind all of its imports."""
    if not lines:
        return module
    index = _place_for_imports(module, behind_torch)
    body = list(module.body)
    if index < len(body) and index == _first_code(module) and not _is_import(body[index - 1] if index else None):
        following = body[index]
        if isinstance(following, (cst.SimpleStatementLine, cst.BaseCompoundStatement)) and not following.leading_lines:
            body[index] = following.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    return module.with_changes(body=[*body[:index], *lines, *body[index:]])


def _apart(module: cst.Module, line: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
    """The import of a repository's own module, in a group of its own behind those of others, where the file has groups."""
    index = _place_for_imports(module, behind_torch=False)
    imports = [s for s in module.body[:index] if isinstance(s, cst.SimpleStatementLine) and _is_import(s)]
    if not imports or imports[-1] is not module.body[index - 1]:
        return line
    kinds = [{_kind(part) for part in statement.body} for statement in imports]
    is_grouped = any(_blank_lines(statement) for statement in imports[1:]) or len(set().union(*kinds)) == 1
    is_of_others = kinds[-1] <= {"standard", "library"}
    return line.with_changes(leading_lines=[cst.EmptyLine(indent=False)]) if is_grouped and is_of_others else line


def _kind(part: cst.BaseSmallStatement) -> str:
    root = _module_of(part).partition(".")[0]
    return "standard" if root in sys.stdlib_module_names else "library" if root in _LIBRARIES else "other"


def _plain_import(want: Wanted) -> cst.SimpleStatementLine:
    renamed = f" as {want.name}" if want.name != want.symbol.partition(".")[0] else ""
    line = cst.parse_statement(f"import {want.symbol}{renamed}")
    assert isinstance(line, cst.SimpleStatementLine)
    return line


def _import_line(module: str, wanted: Sequence[Wanted]) -> cst.SimpleStatementLine:
    names = sorted(f"{w.symbol} as {w.name}" if w.name != w.symbol else w.symbol for w in wanted)
    text = f"from {module} import {', '.join(names)}"
    if len(text) > _LONGEST:
        text = f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
    line = cst.parse_statement(text)
    assert isinstance(line, cst.SimpleStatementLine)
    return line


def _place_for_imports(module: cst.Module, behind_torch: bool) -> int:
    """Behind the last import (of torch) at module level, else behind the last import, else in front of the code."""
    last_torch = last = None
    for index, statement in enumerate(module.body):
        if _is_import(statement):
            last = index
            assert isinstance(statement, cst.SimpleStatementLine)
            if any(_module_of(part).partition(".")[0] == "torch" for part in statement.body):
                last_torch = index
        elif last is not None and isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            break
    if last_torch is not None or last is not None:
        return (last_torch if behind_torch and last_torch is not None else last) + 1  # type: ignore[operator]
    return _first_code(module)


def _first_code(module: cst.Module) -> int:
    first = module.body[0] if module.body else None
    is_docstring = (
        isinstance(first, cst.SimpleStatementLine)
        and isinstance(first.body[0], cst.Expr)
        and isinstance(first.body[0].value, (cst.SimpleString, cst.ConcatenatedString))
    )
    return 1 if is_docstring else 0


def _is_import(statement: cst.BaseStatement | None) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and any(
        isinstance(part, (cst.Import, cst.ImportFrom)) for part in statement.body
    )


def _module_of(part: cst.BaseSmallStatement) -> str:
    if isinstance(part, cst.ImportFrom):
        return dotted(part.module) if part.module is not None and not part.relative else ""
    return dotted(part.names[0].name) if isinstance(part, cst.Import) else ""


def with_definitions(module: cst.Module, code: str) -> cst.Module:
    """The module with helper definitions behind its imports, two blank lines around them."""
    index = _first_code(module)
    for place, statement in enumerate(module.body):
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            break
        if _is_import(statement) or _guards_imports(statement):
            index = place + 1
    added = list(cst.parse_module(code).body)
    blank = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
    added[0] = added[0].with_changes(leading_lines=blank)
    rest: list[Statement] = list(module.body[index:])  # type: ignore[arg-type]
    if rest:
        own = list(rest[0].leading_lines)
        empty = sum(1 for line in own if line.comment is None)
        rest[0] = rest[0].with_changes(leading_lines=[*blank[: max(0, 2 - empty)], *own])
    return module.with_changes(body=[*module.body[:index], *added, *rest])


def _guards_imports(statement: cst.BaseStatement) -> bool:
    """Whether a statement is a ``try`` around imports."""
    return isinstance(statement, cst.Try) and isinstance(statement.body, cst.IndentedBlock) and any(
        _is_import(inner) for inner in statement.body.body
    )


def wanted_symbols(symbols: Mapping[str, str]) -> list[Wanted]:
    """The imports for symbols of torch, given as name in the file → canonical name."""
    return [Wanted(symbol.rpartition(".")[0], symbol.rpartition(".")[2], name) for name, symbol in symbols.items()
            if "." not in name]  # fmt: skip
