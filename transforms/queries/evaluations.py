"""Whether a sharded model may run without gradients: in code under ``no_grad`` and its kin that may call one."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence

from ..flow.library import TENSOR_MATH
from ..flow.values import ClassValue, Opaque, Unknown
from .answers import Answer
from .file import File
from .kept_models import keeps_model
from .late_optimizers import EVALUATIONS
from .sharding import ShardingQueries

_RUNS_NOTHING = frozenset(
    {"parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules", "children", "named_children",
     "state_dict", "load_state_dict", "train", "eval", "to", "cuda", "cpu", "zero_grad", "requires_grad_", "register_buffer",
     "append", "extend", "add_scalar", "update", "all_reduce", "reduce", "barrier"}
    | {name for kind in (dict, list, set, str) for name in dir(kind)} | TENSOR_MATH
)  # fmt: skip
"""Methods that run no forward, of models and of whatever else has them."""
_LIBRARIES = ("torch.", "numpy.", "math.", "builtins.", "os.", "time.", "collections.", "itertools.", "json.", "random.", "copy.")
_CALLS = ("builtins.map", "builtins.filter", "functools.partial", "functools.reduce", "torch.utils.", "torch.func", "torch.vmap",
          "torch.jit", "torch.nn.parallel", "torch.optim.swa_utils.update_bn")  # fmt: skip
"""Those of them that may call what they are given."""
_RUNS_BY_NAME = re.compile(r"forward|generate|encode|decode|predict|sample|infer|embed|feature|logits|model|net\b")
"""What is in the names of methods of libraries that run models."""
_EVALUATES = re.compile(r"(?i)evaluat|inference|validat|predict|benchmark")
_DEEPEST = 3
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

IsSo = Callable[[File, ast.AST], bool]


class Evaluations:
    """Answers for files; ``is_apart`` says of a place that no model is sharded there, or all are held whole."""

    def __init__(self, sharding: ShardingQueries, is_apart: IsSo) -> None:
        self.sharding = sharding
        self._is_apart = is_apart

    def exist(self, paths: Sequence[str]) -> bool:
        """Whether code of these files may run a sharded model without gradients."""
        program = self.sharding.program
        if any(self._evaluates(program.file(path)) for path in paths if re.search(EVALUATIONS, program.text(path))):
            return True
        return any(self._hands_to_library(program.file(path)) for path in paths if _EVALUATES.search(program.text(path)))

    def _hands_to_library(self, file: File) -> bool:
        """Whether a function of a library gets a sharded model whose name says that it evaluates what it gets."""
        for call in file.nodes(ast.Call):
            name = file.external(call.func)
            if name is None or name.startswith(_LIBRARIES) or not _EVALUATES.search(name.rpartition(".")[2]):
                continue
            given = (*call.args, *(keyword.value for keyword in call.keywords))
            if any(self._may_be_model(file, one) for one in given) and not self._is_apart(file, call):
                return True
        return False

    def _evaluates(self, file: File) -> bool:
        for node in file.nodes(ast.Name, ast.Attribute):
            if re.fullmatch(EVALUATIONS, node.id if isinstance(node, ast.Name) else node.attr):
                within = _region(file, node)
                if within is None or any(self._runs_model(file, call, 0) for call in _calls(within)):
                    return True
        return False

    def _runs_model(self, file: File, call: ast.Call, depth: int) -> bool:
        if self._is_apart(file, call):
            return False
        function = call.func
        name = function.attr if isinstance(function, ast.Attribute) else ""
        program = self.sharding.program
        callees = program.callees(file, call)
        if not callees and name in _RUNS_NOTHING and not program.flow.methods_by_name().get(name):
            return False
        if self.sharding.of_owners(file.called_values(call), path=file.path).wrappers or self._may_be_model(file, function):
            return True
        if name not in _RUNS_NOTHING and isinstance(function, ast.Attribute) and self._may_be_model(file, function.value):
            return True
        held = [*file.called_values(call), *(file.values(function.value) if isinstance(function, ast.Attribute) else ())]
        if any(keeps_model(program, self.sharding, value) for value in held):
            return True
        if (external := file.external(function)) is not None:
            if external.startswith(_LIBRARIES) and not external.startswith(_CALLS):
                return False
            return any(self._may_be_model(file, given) for given in (*call.args, *(k.value for k in call.keywords)))
        if not callees and name and not self._is_known(file, function):
            callees = program.flow.methods_by_name().get(name, ())
            if not callees:
                return _RUNS_BY_NAME.search(name) is not None
        if callees and depth < _DEEPEST:
            found = map(program.function_node, callees)
            return any(self._runs_model(owner, inner, depth + 1) for owner, node in found for inner in _calls([node]))
        return bool(callees) or not self._is_known(file, function)

    def _may_be_model(self, file: File, node: ast.expr) -> bool:
        return bool(self.sharding.of(file, node).wrappers)

    def _is_known(self, file: File, node: ast.expr) -> bool:
        """Whether what is called, or what it is read off, is known, and no model that may be sharded."""
        while True:
            values = file.values(node)
            if values and not any(isinstance(v, Unknown) or (isinstance(v, Opaque) and v.name == "?") for v in values):
                is_class = all(isinstance(v, ClassValue) for v in values)
                return is_class or self.sharding.of(file, node).answer is Answer.NO
            if isinstance(node, (ast.Attribute, ast.Subscript)):
                node = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                node = node.func
            else:
                return False


def _region(file: File, node: ast.AST) -> list[ast.AST] | None:
    """What runs without gradients by a mention of ``no_grad``: the body of a ``with`` or of a decorated function.

    Nothing for an import or a mere test; None where that is not seen.
    """
    inside: ast.AST = node
    for around in file.ancestors(node):
        if isinstance(around, ast.withitem) and inside is around.context_expr:
            with_it = file.parents[around]
            assert isinstance(with_it, (ast.With, ast.AsyncWith))
            return list(with_it.body)
        if isinstance(around, _FUNCTIONS):
            return list(around.body) if inside in around.decorator_list else None
        if isinstance(around, ast.ClassDef):
            return None
        inside = around
    return None


def _calls(nodes: Sequence[ast.AST]) -> Iterator[ast.Call]:
    yield from (inner for node in nodes for inner in ast.walk(node) if isinstance(inner, ast.Call))
