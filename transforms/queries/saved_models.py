"""Models that are saved as objects, not as state dicts: alone, or among other things in a dict or list."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatchcase

from ..flow.values import Annotated, Instance, Opaque, Wrapped
from .arguments import given_for_parameter
from .assignments import assigned_values
from .file import File
from .sharding import ShardingQueries

SAVES = ("torch.save", "pickle.dump", "pickle.dumps", "cloudpickle.dump", "cloudpickle.dumps", "dill.dump", "joblib.dump")
"""Functions that pickle what they are given."""
TRACE = "torch.jit.trace"
WRITERS = (*SAVES, "*.dump", "*.dumps", "*.save_model", "*.log_model", "*.serialize", "*.export", "*.export_model", "*.to_onnx",
           "torch.jit.script", TRACE)  # fmt: skip
"""Patterns of functions, of any library, that write a model as an object or a graph: what they are called says so."""
_OF_TEXTS = frozenset({"json", "ujson", "orjson", "simplejson", "yaml", "toml", "tomli_w"})
"""Packages whose ``dump`` writes numbers and texts: a model would raise."""
_MAKERS = frozenset({"builtins.dict", "builtins.list", "builtins.tuple", "collections.OrderedDict"})
_DEEPEST = 3


def is_writer(symbol: str) -> bool:
    """Whether a function writes the models that it is given."""
    writes_texts = symbol.partition(".")[0] in _OF_TEXTS
    return not writes_texts and any(fnmatchcase(symbol, pattern) for pattern in WRITERS)


def given_to(call: ast.Call) -> list[ast.expr]:
    """What a call is given, by place or by name."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def saved_models(sharding: ShardingQueries, file: File, value: ast.expr, depth: int = 0) -> Iterator[tuple[File, ast.expr]]:
    """The expressions for sharded models in what is saved."""
    if isinstance(value, ast.Dict):
        parts = [part for part in value.values if part is not None]
    elif isinstance(value, (ast.List, ast.Tuple)):
        parts = value.elts
    elif isinstance(value, ast.Call) and file.external(value.func) in _MAKERS:
        parts = given_to(value)
    else:
        inside = value.value if isinstance(value, ast.Attribute) and value.attr == "module" else value
        if _is_model(sharding, file, value) or _is_model(sharding, file, inside):
            yield file, value
        elif isinstance(value, (ast.Name, ast.Attribute)) and depth < _DEEPEST:
            sources = [(file, source) for source in assigned_values(file, value)]
            for owner, source in [*sources, *given_for_parameter(file, value)]:
                yield from saved_models(sharding, owner, source, depth + 1)
        return
    for part in parts:
        yield from saved_models(sharding, file, part, depth)


def _is_model(sharding: ShardingQueries, file: File, value: ast.expr) -> bool:
    """A sharded model, or a part of one: its hooks cannot be pickled either."""
    values = file.values(value)
    return bool(sharding.of_owners(values).wrappers) and any(
        isinstance(v, (Wrapped, Annotated, Instance, Opaque)) for v in values
    )
