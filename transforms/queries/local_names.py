"""Local names for a model, in terms of what a caller knows."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from ..flow.library import RETURN_SELF
from .file import File

MOST_STEPS = 8
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_WRAPPER = re.compile(r"(?i)parallel|ddp|fsdp|wrap")


def comprehension_of(file: File, name: ast.Name) -> ast.comprehension | None:
    """The part of a comprehension that a name is a variable of: such variables are no names of the function around."""
    inside: ast.AST = name
    for around in file.ancestors(name):
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            return None
        is_outside = isinstance(inside, ast.comprehension) and name in set(ast.walk(inside.iter))
        if isinstance(around, _COMPREHENSIONS) and not (is_outside and inside is around.generators[0]):
            for part in reversed(around.generators):
                if any(isinstance(n, ast.Name) and n.id == name.id for n in ast.walk(part.target)):
                    return part
        inside = around
    return None


def loop_of(file: File, name: ast.Name) -> ast.comprehension | ast.For | ast.AsyncFor | None:
    """The innermost loop that a name is a variable of, where the name is read."""
    if (own := comprehension_of(file, name)) is not None:
        return own
    for around in file.ancestors(name):
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            return None
        if isinstance(around, (ast.For, ast.AsyncFor)):
            if any(isinstance(n, ast.Name) and n.id == name.id for n in ast.walk(around.target)):
                return around
    return None


def spelled_out(scope: ast.AST, thing: ast.expr) -> ast.expr:
    """``raw`` as ``self.model``, after ``model = self.model; raw = model.module if hasattr(model, "module") else model``.

    Names that are not local, and those that are assigned different things, stay. Whether ``.module`` was read is left
    out: it stands for the same model.
    """
    for _ in range(MOST_STEPS):
        base = thing
        while isinstance(base, ast.Attribute):
            base = base.value
        if not isinstance(base, ast.Name):
            return thing
        source = _source_of(scope, base.id)
        if source is None:
            return thing
        thing = ast.parse(source + ast.unparse(thing).removeprefix(base.id), mode="eval").body
    return thing


@lru_cache(maxsize=4096)
def _source_of(scope: ast.AST, name: str) -> str | None:
    stores = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
    assigned = [
        node.value
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and any(node.targets[0] is store for store in stores)
    ]
    sources = {_wrapper(source) for value in assigned for source in _sources(value)} - {name}
    return sources.pop() if len(assigned) == len(stores) and len(sources) == 1 and None not in sources else None


def only_source(value: ast.expr) -> str | None:
    """What an expression gives in any case, but for the wrapper around it: ``x`` of ``x.module if wrapped else x``."""
    sources = {_wrapper(source) for source in _sources(value)}
    return sources.pop() if len(sources) == 1 else None


def _sources(value: ast.expr) -> list[ast.expr | None]:
    """What an expression gives; None for what is no chain of names."""
    if isinstance(value, ast.IfExp):
        return [*_sources(value.body), *_sources(value.orelse)]
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in RETURN_SELF:
        return _sources(value.func.value)  # model.to(device)
    if isinstance(value, ast.Call) and len(value.args) in (1, 3) and not value.keywords and not _makes_another(value.func):
        # getattr(model, "module", model), unwrap(model)
        is_getattr = isinstance(value.func, ast.Name) and value.func.id == "getattr"
        return _sources(value.args[0]) if is_getattr == (len(value.args) == 3) else [None]
    base = value
    while isinstance(base, ast.Attribute):
        base = base.value
    return [value if isinstance(base, ast.Name) else None]


def _makes_another(function: ast.expr) -> bool:
    """Whether a call makes an object of a class that is no wrapper: ``Net(config)`` is not its configuration."""
    name = ast.unparse(function).rpartition(".")[2]
    return name[:1].isupper() and _WRAPPER.search(name) is None


def _wrapper(value: ast.expr | None) -> str | None:
    return None if value is None else ast.unparse(value).removesuffix(".module")
