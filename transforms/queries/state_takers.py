"""Whether somebody may take or load the state of a sharded model or of its optimizer: the program's own code, or a library."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from ..flow.values import ClassValue, Derived, Opaque, Optimizer, Unknown, Wrapped
from .answers import Answer
from .file import File
from .number_reads import values_held
from .sharding import ShardingQueries
from .visible_callers import HARMLESS_BASES

_STATES = frozenset({"state_dict", "load_state_dict"})
_TAKES_NONE = (
    "torch.nn.parallel.", "torch.optim.", "torch.compile", "torch.nn.utils.", "torch.amp.", "torch.cuda.", "builtins.print",
    "builtins.len", "builtins.isinstance", "builtins.hasattr", "builtins.getattr", "builtins.id", "builtins.type",
    "builtins.sum", "builtins.next", "torch.distributed.", "copy.deepcopy", "math.", "logging.",
)  # fmt: skip
"""Functions that ask a model or optimizer for no state dict."""

IsSo = Callable[[File, ast.AST], bool]


class StateTakers:
    """Answers for files; ``is_apart`` says of a place that no model is sharded there, or all are held whole."""

    def __init__(self, sharding: ShardingQueries, is_apart: IsSo) -> None:
        self.sharding = sharding
        self._is_apart = is_apart

    def exist(self, paths: Sequence[str]) -> bool:
        """Whether there may be any in these files."""
        return any(True for path in paths for _ in self._places(self.sharding.program.file(path)))

    def _places(self, file: File) -> Iterator[ast.AST]:
        for node in file.nodes(ast.Attribute):
            if node.attr in _STATES and self._may_be_ours(file, node.value) and not self._is_apart(file, node):
                yield node
        for node in file.nodes(ast.Constant):
            if node.value in _STATES:
                yield node  # found by its name
        for call in file.nodes(ast.Call):
            if self._may_take(file, call) and self._gets_ours(file, call) and not self._is_apart(file, call):
                yield call
        for assign in file.nodes(ast.Assign):
            if self._keeps_for_library(file, assign) and not self._is_apart(file, assign):
                yield assign

    def _gets_ours(self, file: File, call: ast.Call) -> bool:
        """Whether a call is handed a model or an optimizer, by itself or in a dictionary, a list or another display."""
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        parts = (part for one in given for part in ast.walk(one) if isinstance(part, ast.Name | ast.Attribute))
        if any(self._is_ours(file, part) for part in parts if not isinstance(file.parents[part], ast.Attribute)):
            return True
        held = (value for one in given for values in values_held(file, one) for value in values)
        return any(isinstance(value, Wrapped | Optimizer) for value in held)

    def _keeps_for_library(self, file: File, assign: ast.Assign) -> bool:
        """Whether an object of a library's class is given a model or an optimizer: ``self.model = model`` in a trainer."""
        around = file.enclosing_class(assign)
        if around is None or not all(isinstance(target, ast.Attribute) for target in assign.targets):
            return False
        bases = [base for v in file.values(around) if isinstance(v, ClassValue)
                 for base in self.sharding.program.flow.external_bases(v)]  # fmt: skip
        return any(not base.startswith(HARMLESS_BASES) for base in bases) and self._is_ours(file, assign.value)

    def _may_be_ours(self, file: File, owner: ast.expr) -> bool:
        values = file.values(owner)
        if not values or any(isinstance(v, Unknown | Derived) or (isinstance(v, Opaque) and v.name == "?") for v in values):
            return True
        return self._is_ours(file, owner) or self.sharding.of(file, owner).answer is not Answer.NO

    def _is_ours(self, file: File, owner: ast.expr) -> bool:
        """Whether an expression is seen to be a model that may be sharded, or an optimizer of one."""
        return bool(self.sharding.of(file, owner).wrappers or self.sharding.of_optimizer(file, owner).wrappers)

    def _may_take(self, file: File, call: ast.Call) -> bool:
        """Whether a call hands what it gets to code that nobody sees."""
        name = file.external(call.func)
        if name is not None:
            return not name.startswith(_TAKES_NONE) or name.startswith("torch.distributed.checkpoint.")
        values = file.values(call.func.value) if isinstance(call.func, ast.Attribute) else []
        if values and all(isinstance(v, Opaque) and v.name.startswith(_TAKES_NONE) for v in values):
            return False  # `scaler.step(optimizer)`
        return not self.sharding.program.callees(file, call) and not self._is_ours(file, call.func)
