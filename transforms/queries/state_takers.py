"""Whether somebody may take or load the state of a sharded model or of its optimizer: the program's own code, or a library."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from ..flow.values import Derived, Opaque, Unknown
from .answers import Answer
from .file import File
from .sharding import ShardingQueries

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
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            if any(self._is_ours(file, one) for one in given) and self._may_take(file, call) and not self._is_apart(file, call):
                yield call

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
            return not name.startswith(_TAKES_NONE)
        values = file.values(call.func.value) if isinstance(call.func, ast.Attribute) else []
        if values and all(isinstance(v, Opaque) and v.name.startswith(_TAKES_NONE) for v in values):
            return False  # `scaler.step(optimizer)`
        return not self.sharding.program.callees(file, call) and not self._is_ours(file, call.func)
