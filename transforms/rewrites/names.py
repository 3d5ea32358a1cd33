"""Names that generated code uses in a file: those of torch, and those of helpers.

A name is asked for while changes are built; whether it is really used is seen in the text that comes out, so that
nothing is imported for a change that was not made.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from ..facts.symbols import canonical
from ..queries.file import File
from ..text.generated import HELPER_MODULE
from .helper_source import definitions


@dataclass
class Names:
    """What the changes of one file want to import."""

    file: File
    symbols: dict[str, str] = field(default_factory=dict)
    """Name in this file → canonical name of what it stands for."""
    helpers: dict[str, str] = field(default_factory=dict)
    """Name in this file → helper."""
    offered: set[str] = field(default_factory=set)
    """Helpers by their names in this file that are imported, though only findings speak of them."""
    locals: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Variables of generated code, each with the first and last lines of the places that it is for."""

    def torch(self, symbol: str) -> str:
        """How generated code spells a symbol of torch: as the file does already, else by a name to be imported."""
        known = self._spelled(symbol)
        if known is not None:
            return known
        if symbol in _BY_MODULE:
            module, _, member = symbol.rpartition(".")
            return f"{self._wanted(self.symbols, module, _BY_MODULE[symbol])}.{member}"
        return self._wanted(self.symbols, symbol, symbol.rpartition(".")[2])

    def helper(self, name: str) -> str:
        """How generated code spells a helper."""
        assert name in definitions(), f"no helper is called {name}"
        wanted = f"fsdp2_{name}" if name in self.file.names else name
        return self._defined(name) or self._imported(name) or self._wanted(self.helpers, name, wanted)

    def offer(self, name: str) -> None:
        """Imports a helper that no generated code uses: a finding speaks of it."""
        self.offered.add(self.helper(name))

    def _defined(self, name: str) -> str | None:
        """The name of a helper that an earlier run defined in the file."""
        text = definitions()[name].text
        body = self.file.tree.body
        own = (n for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == name)
        return name if any(text.endswith(self.file.text(node)) for node in own) else None

    def _imported(self, name: str) -> str | None:
        """The name of a helper that the file imports already."""
        for node in self.file.tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2] == HELPER_MODULE:
                for alias in node.names:
                    if alias.name == name:
                        self.helpers[alias.asname or name] = name
                        return alias.asname or name
        return None

    def local(self, wanted: str, place: ast.AST, last: ast.stmt | None = None) -> str:
        """A name for a generated variable that is only used at a place, or from there to the end of the last statement: at
        another one of the function it may be the same.

        None that the function mentions (at module level: that is used there or from there), and no helper's.
        """
        scope = self.file.function(place) or self.file.tree
        taken = _mentioned(self.file, scope) | definitions().keys() | self.symbols.keys()
        number, name = 1, wanted
        assert isinstance(place, (ast.expr, ast.stmt))
        begin, end = place.lineno, (last or place).end_lineno or place.lineno
        while name in taken or any(begin <= there and here <= end for here, there in self.locals.get(name, ())):
            number += 1
            name = f"{wanted}_{number}"
        self.locals.setdefault(name, []).append((begin, end))
        return name

    def _wanted(self, table: dict[str, str], meaning: str, wanted: str) -> str:
        for name, known in table.items():
            if known == meaning:
                return name
        name = self.file.free_name(wanted) if wanted not in table else self.file.free_name(f"_{wanted}")
        table[name] = meaning
        return name

    def _spelled(self, symbol: str) -> str | None:
        """The name by which the module level of the file has a symbol, or the module that it is an attribute of."""
        best: str | None = None
        for statement in self.file.tree.body:
            for alias in statement.names if isinstance(statement, (ast.Import, ast.ImportFrom)) else ():
                spelled = _spelling(statement, alias, symbol)  # pyright: ignore[reportArgumentType]
                if spelled is not None and (best is None or len(spelled) < len(best)):
                    best = spelled
        return best


_BY_MODULE = {"torch.distributed.checkpoint.save": "dcp", "torch.distributed.checkpoint.load": "dcp"}
"""What people do not import by its name, which says too little, and the name that they give its module."""
_WITH_TORCH = ("torch.nn.utils.", "torch.optim.", "torch.amp.", "torch.jit.", "torch.distributed.get_rank")
"""What ``import torch`` alone makes reachable by attributes, and people spell so."""


def _spelling(statement: ast.Import | ast.ImportFrom, alias: ast.alias, symbol: str) -> str | None:
    if isinstance(statement, ast.Import):
        bound = alias.asname or alias.name
        if symbol.startswith(f"{alias.name}."):
            rest = symbol.removeprefix(f"{alias.name}.")
            near = "." not in rest or symbol.startswith(_WITH_TORCH)
            return f"{bound}.{rest}" if near else None
        return None
    if statement.level or not statement.module:
        return None
    name = canonical(f"{statement.module}.{alias.name}")
    if name == symbol:
        return alias.asname or alias.name
    if symbol.rpartition(".")[0] == name and name.rpartition(".")[2].islower():
        return f"{alias.asname or alias.name}.{symbol.rpartition('.')[2]}"
    return None


def _mentioned(file: File, scope: ast.AST) -> set[str]:
    """The names that the code of a function mentions; at module level also those that functions read from there."""
    if scope is not file.tree:
        found = {n.id for n in ast.walk(scope) if isinstance(n, ast.Name)}
        return found | {n.arg for n in ast.walk(scope) if isinstance(n, ast.arg)} | file.imported_names
    found = set(file.imported_names)
    bound: dict[ast.AST | None, set[str]] = {}
    for name in file.nodes(ast.Name):
        if not isinstance(name.ctx, ast.Load):
            bound.setdefault(file.function(name), set()).add(name.id)
    for name in file.nodes(ast.Name):
        function = file.function(name)
        arguments = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)} if function is not None else set()
        if function is None or name.id not in bound.get(function, set()) | arguments:
            found.add(name.id)
    definitions_at_top = (n for n in file.nodes(ast.FunctionDef, ast.ClassDef) if file.function(n) is None)
    return found | {node.name for node in definitions_at_top}
