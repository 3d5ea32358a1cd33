"""FS418: ShardedTensor, in which FSDP1 gave sharded state."""

from __future__ import annotations

import ast

from ..findings import Form, Level
from ..migration import Migration
from ..queries.file import File
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import Site

_MODULE = "torch.distributed._shard.sharded_tensor"
_DTENSOR = "torch.distributed.tensor.DTensor"


def both(site: Site, migration: Migration) -> Outcome:
    """Tests hold for both kinds of tensors; what only one of them can do is for a person."""
    if site.role == "test" and _drops(site.file, site.node):
        return Outcome("what the test finds is dropped: FSDP1's flat parameter, which FSDP2 has none of", level=Level.OK)
    if site.role == "test" and isinstance(site.node, ast.Call) and isinstance(site.node.args[1], (ast.Name, ast.Attribute)):
        change = around(site.file, site.node.args[1], f"({{it}}, {migration.torch(site, _DTENSOR)})")
        return Outcome("sharded state comes as DTensors: the test asks for either", [change])
    if site.role == "test" and isinstance(site.node, ast.Call) and any(
        site.file.external(n) == _DTENSOR for n in ast.walk(site.node.args[1]) if isinstance(n, (ast.Name, ast.Attribute))
    ):
        return Outcome("the test asks for DTensors too", level=Level.OK)
    if site.role == "annotation":
        return Outcome("an annotation: sharded state comes as DTensors", level=Level.OK)
    return Outcome("no state of FSDP2 is a ShardedTensor: its state dicts hold DTensors", level=Level.REVIEW, form=Form.NOTE,
                   advice="Read a rank's part by .to_local(), and the whole by .full_tensor().")  # fmt: skip


def _drops(file: File, test: ast.AST) -> bool:
    """Whether code throws away what a test is true for, here or wherever the function that gives its answer is called."""
    parent = file.parents[test]
    if isinstance(parent, ast.Return):
        function = file.function(test)
        callers = file.program.callers(file, function) if isinstance(function, ast.FunctionDef) else []
        return bool(callers) and all(_drops(*caller) for caller in callers)
    if not isinstance(parent, ast.If) or parent.test is not test or len(parent.body) != 1:
        return False
    (statement,) = parent.body
    called = statement.value.func if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) else None
    return isinstance(statement, (ast.Delete, ast.Continue)) or getattr(called, "attr", "") == "pop"


RULE = Rule(
    id="FS418",
    title="ShardedTensor",
    symbols=(_MODULE, f"{_MODULE}.*"),
    roles=("call", "value", "test", "annotation", "base"),
    why="FSDP1 gave sharded state as ShardedTensors, FSDP2 gives DTensors: a test for the one is silently false for the other.",
    fallback=both,
    examples=(
        Example(
            before=(
                "from torch.distributed._shard.sharded_tensor import ShardedTensor\n"
                "\n"
                "\n"
                "def f(state):\n"
                "    return [name for name, value in state.items() if isinstance(value, ShardedTensor)]\n"
            ),
            after=(
                "from torch.distributed._shard.sharded_tensor import ShardedTensor\n"
                "from torch.distributed.tensor import DTensor\n"
                "\n"
                "\n"
                "def f(state):\n"
                "    return [name for name, value in state.items() if isinstance(value, (ShardedTensor, DTensor))]\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
