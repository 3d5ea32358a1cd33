"""What is done with the answers of type tests: tests that tell models of FSDP1 from models of DDP, and reductions by hand."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Sequence

from ..analysis.symbols import FSDP_MODULE
from ..view import FileView
from .branch_chains import wrapper_kind
from .choices import choices_in
from .skipping import refusal, skips_wrappers, tested_classes

_REDUCTIONS = frozenset(
    f"torch.distributed.{name}" for name in ("all_reduce", "reduce", "all_gather", "gather", "all_gather_into_tensor")
)
_REPORTS = frozenset({"print", "debug", "info", "warning", "warn", "log"})


def tells_apart(view: FileView, node: ast.AST) -> bool:
    """Whether a class is asked for in an answer about one of the two wrappers that code elsewhere acts on.

    A branch on the test itself is seen with the test: what it does is migrated, and a sharded model needs it. What is
    done with an answer that is returned or kept is not.
    """
    classes = tested_classes(view, node)
    test = view.parents[classes] if classes is not None else None
    if classes is None or not isinstance(test, ast.expr):
        return False
    if view.external(classes) != FSDP_MODULE and (wrapper_kind(view, test) is None or _knows_sharded_modules(view, test)):
        return False
    return _is_handed_on(view, test) and not skips_wrappers(view, classes) and refusal(view, classes) is None


def acts_apart(view: FileView, node: ast.AST, wrapper_work: Collection[ast.AST]) -> bool:
    """Whether a branch on a test for one of the two wrappers does something that has nothing to do with wrappers.

    Such a branch (another learning rate, a scaled loss) is the program's own choice for models of one kind, also where
    it stands beside what the wrappers need.
    """
    classes = tested_classes(view, node)
    test = view.parents[classes] if classes is not None else None
    if classes is None or not isinstance(test, ast.expr) or wrapper_kind(view, test) is None:
        return False
    if _knows_sharded_modules(view, test) or skips_wrappers(view, classes) or refusal(view, classes) is not None:
        return False
    branch = next((a for a in view.ancestors(test) if isinstance(a, (ast.IfExp, ast.stmt))), None)
    if not isinstance(branch, (ast.If, ast.IfExp)) or test not in ast.walk(branch.test):
        return False
    if isinstance(branch, ast.IfExp):
        if _does_any([branch.body, branch.orelse], wrapper_work):
            return choices_in([branch.body]) != choices_in([branch.orelse])
        return ast.dump(branch.body) != ast.dump(branch.orelse)
    ways = [branch.body, branch.orelse]
    if isinstance(branch.body[-1], (ast.Return, ast.Continue, ast.Break)):
        ways.append(following(view, branch))
    if _does_any([statement for way in ways for statement in way], wrapper_work):
        return choices_in(branch.body) != choices_in(_other_way(view, branch, ways[2:]))
    return (
        any(not only_speaks(statement) for way in ways[:2] for statement in way)
        and ast.dump(ast.Module(branch.body, [])) != ast.dump(ast.Module(branch.orelse, []))
    )


def _other_way(view: FileView, branch: ast.If, behind: Sequence[list[ast.stmt]]) -> list[ast.stmt]:
    """What models of the other wrapper do: the branch that asks for it, or what is left for all others."""
    way = branch.orelse
    while len(way) == 1 and isinstance(way[0], ast.If):
        asked = way[0]
        if wrapper_kind(view, asked.test) is not None:
            return asked.body
        way = asked.orelse
    return [*way, *(statement for statements in behind for statement in statements)]


def _does_any(parts: Iterable[ast.AST], wrapper_work: Collection[ast.AST]) -> bool:
    """Whether parts of a program hold any of the nodes, or take ``.module`` off."""
    inside = [node for part in parts for node in ast.walk(part)]
    return any(node in wrapper_work or (isinstance(node, ast.Attribute) and node.attr == "module") for node in inside)


def only_speaks(statement: ast.stmt) -> bool:
    """Whether a statement does nothing but report, or ends the run with an error."""
    if isinstance(statement, (ast.Pass, ast.Raise, ast.Assert)):
        return True
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    called = statement.value.func
    return getattr(called, "id", getattr(called, "attr", "")) in _REPORTS


def following(view: FileView, statement: ast.stmt) -> list[ast.stmt]:
    """The statements behind one in its block."""
    parent = view.parents[statement]
    blocks = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
    block = next((block for block in blocks if isinstance(block, list) and statement in block), [statement])
    return block[block.index(statement) + 1 :]


def reduced_by_hand(view: FileView, classes: ast.expr) -> str:
    """What is to be said of a test behind which ranks combine what they hold, empty if that is not seen.

    Under FSDP1 what came from a parameter or gradient was this rank's part, a plain tensor; now it is a DTensor.
    """
    test = view.parents[classes]
    branch = next((a for a in view.ancestors(test) if isinstance(a, (ast.If, ast.IfExp, ast.stmt))), None)
    if isinstance(branch, ast.If) and test in ast.walk(branch.test):
        calls = [node for statement in branch.body for node in ast.walk(statement) if isinstance(node, ast.Call)]
        if any(view.external(call.func) in _REDUCTIONS for call in calls):
            return (
                "the branch combines tensors of all ranks by hand; what comes from parameters, gradients or optimizer state is "
                "a DTensor there, which collectives refuse: take .full_tensor() on all ranks and no collective, or .to_local() "
                "of the tensor itself before anything is computed from it"
            )
    elif isinstance(view.parents[test], (ast.Dict, ast.keyword)):
        return (
            "the answer is handed on; where the code that acts on it combines this rank's parts of parameters or gradients by "
            "hand, these are DTensors now, which collectives refuse"
        )
    return ""


def _knows_sharded_modules(view: FileView, test: ast.AST) -> bool:
    """Whether the function asks for FSDPModule as well: then its yes is meant for every sharded model."""
    function = view.function(test)
    names = ast.walk(function) if function is not None else ()
    return any(isinstance(n, (ast.Name, ast.Attribute)) and view.external(n) == FSDP_MODULE for n in names)


def _is_handed_on(view: FileView, test: ast.AST) -> bool:
    """``return isinstance(…)``, ``answer = isinstance(…)``, ``if isinstance(…): return True``."""
    statement = view.statement(test)
    if isinstance(statement, ast.If):
        first = statement.body[0]
        return isinstance(first, ast.Return) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, bool)
    return isinstance(statement, (ast.Return, ast.Assign, ast.AnnAssign)) and not any(
        isinstance(ancestor, ast.IfExp) and test in (ancestor.test, *ast.walk(ancestor.test)) for ancestor in view.ancestors(test)
    )
