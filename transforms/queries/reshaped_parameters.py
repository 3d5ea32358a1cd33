"""Parameters and gradients that a loop over a model gives, and that are flattened or joined: shards have other shapes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..flow.values import ClassValue, Derived
from .answers import Sharding
from .file import File
from .parameter_reads import is_read_through
from .sharding import ShardingQueries

_METHODS = frozenset({"view", "view_as", "reshape", "reshape_as", "flatten", "ravel"})
_FUNCTIONS = frozenset({"torch.flatten", "torch.reshape", "torch.ravel"})
_JOIN = frozenset({"torch.cat", "torch.concat", "torch.concatenate", "torch.hstack"})
_OF_ALL = frozenset({"torch.nn.utils.parameters_to_vector", "torch.nn.utils.convert_parameters.parameters_to_vector"})
PARAMETERS_OF = frozenset({"parameters", "named_parameters", "state_dict"})
_PARTS_OF = frozenset({"children", "named_children", "modules", "named_modules"})
"""Methods that give the parameters of a model."""

Reshaped = tuple[ast.expr, ast.expr, Sharding]


def parameters_reshaped(file: File, sharding: ShardingQueries) -> Iterator[Reshaped]:
    """Each such tensor, or collection of all of them, with the model that it is of, outside of modules and optimizers."""
    for call in file.nodes(ast.Call):
        for tensor in _given(file, call):
            owners = parameter_owners(file, tensor)
            found = sharding.of_owners(owners)  # type: ignore[arg-type]
            if not owners or not found.wrappers or is_in_module_or_optimizer(file, sharding, call):
                continue
            if tensor in call.args or is_read_through(file, tensor):
                yield tensor, model_taken_apart(file, sharding, call) or tensor, found


def _given(file: File, call: ast.Call) -> Iterator[ast.expr]:
    """What a call reshapes or joins."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS and file.external(call.func) is None:
        yield call.func.value
        return
    name = file.external(call.func) if call.args else None
    if name in _FUNCTIONS or name in _OF_ALL:
        yield call.args[0]
    elif name in _JOIN:
        joined = call.args[0]
        yield from joined.elts if isinstance(joined, ast.List | ast.Tuple) else ()
        if isinstance(joined, ast.ListComp | ast.GeneratorExp):
            yield joined.elt


def parameter_owners(file: File, tensor: ast.expr) -> list[object]:
    """The models that an expression holds nothing but parameters or gradients of."""
    held = [v for values in (file.held_values(tensor), [file.values(tensor)]) for each in values for v in each]
    derived = [v for v in held if isinstance(v, Derived)]
    are_tensors = all(v.kind in ("parameters", "gradients") and v.pairs == 0 for v in derived)
    return [v.owner for v in derived] if are_tensors else []


def is_in_module_or_optimizer(file: File, sharding: ShardingQueries, node: ast.AST) -> bool:
    """Whether a place is in a method of a module, where parameters are whole, or of an optimizer, which writes to shards."""
    around = file.enclosing_class(node)
    classes = [v for v in file.values(around) if isinstance(v, ClassValue)] if around is not None else []
    return any(sharding.makes_modules(cls) or file.program.flow.optimizer_base(cls) is not None for cls in classes)


def model_taken_apart(file: File, sharding: ShardingQueries, node: ast.AST) -> ast.expr | None:
    """The model whose parameters the function around a place takes, or those of its parts."""
    scope = file.function(node)
    reads = [n for n in ast.walk(scope or file.tree) if isinstance(n, ast.Attribute) and file.function(n) is scope]
    taken = [n.value for names in (PARAMETERS_OF, _PARTS_OF) for n in reads if n.attr in names]
    return next((model for model in taken if sharding.of(file, model).wrappers), None)
