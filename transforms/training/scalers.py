"""Choices between the scaler of FSDP1 and torch's own: it is one scaler now, so they go."""

from __future__ import annotations

import ast

from ..leaving.harmless import is_harmless
from ..text.patches import Part, Patch
from ..view import FileView

OLD = "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler"
_SCALERS = frozenset({OLD, "torch.cuda.amp.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler", "torch.amp.GradScaler"})
_WHY = "it is the same scaler either way"


def without_choice(view: FileView, call: ast.Call, name: str) -> Patch | None:
    """One scaler in the place of a choice between this call and one of torch's own scaler with the same arguments."""
    parent = view.parents[call]
    if isinstance(parent, ast.IfExp):
        other = parent.orelse if call is parent.body else parent.body
        is_choice = call is not parent.test and _is_same(view, call, other) and is_harmless(view, parent.test)
        return view.replace(parent, _made(view, call, name), _WHY) if is_choice and "#" not in view.text(parent) else None
    statement = view.statement(call)
    holder = view.parents[statement]
    if not isinstance(statement, ast.Assign) or not isinstance(holder, ast.If):
        return None
    outer = view.parents[holder]
    first = outer if isinstance(outer, ast.If) and outer.orelse == [holder] else holder
    second = first.orelse[0] if len(first.orelse) == 1 else None
    if not isinstance(second, ast.If) or second.orelse or "#" in view.text(first):
        return None
    return _of_chain(view, call, name, first, second)


def _of_chain(view: FileView, call: ast.Call, name: str, first: ast.If, second: ast.If) -> Patch | None:
    """``if fp16 and sharded: … elif fp16 and not sharded: …``: both ways are ``if fp16: …``."""
    one, other = _assigned(first), _assigned(second)
    common = _common(first.test, second.test)
    if one is None or other is None or ast.dump(one[0]) != ast.dump(other[0]) or call not in (one[1], other[1]):
        return None
    is_same = _is_same(view, call, other[1] if one[1] is call else one[1])
    if not common or not is_same or not view.stands_alone(first) or view.text(first).startswith("elif"):
        return None
    head: list[Part] = ["if "]
    for number, test in enumerate(common):
        head.extend((" and ",) if number else ())
        head.append(view.keep(test))
    body = f":\n{view.indent(first.body[0])}{view.text(one[0])} = "
    return view.replace(first, [*head, body, *_made(view, call, name)], _WHY)


def same_annotation(view: FileView, node: ast.AST) -> ast.expr | None:
    """``Union[GradScaler, ShardedGradScaler]`` around a name, where all in it are scalers."""
    choice = view.parents[node]
    union = view.parents[choice]
    if not isinstance(choice, ast.Tuple) or not isinstance(union, ast.Subscript) or view.external(union.value) != "typing.Union":
        return None
    return union if all(view.external(element) in _SCALERS for element in choice.elts) else None


def _assigned(branch: ast.If) -> tuple[ast.expr, ast.expr] | None:
    statement = branch.body[0] if len(branch.body) == 1 else None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    return statement.targets[0], statement.value


def _common(first: ast.expr, second: ast.expr) -> list[ast.expr]:
    """What two conditions share, if they differ in nothing but one part that is the opposite of the other's."""
    one, other = ({ast.dump(part): part for part in _parts(test)} for test in (first, second))
    mine = [part for text, part in one.items() if text not in other]
    theirs = [part for text, part in other.items() if text not in one]
    if len(mine) != 1 or len(theirs) != 1 or not (_negates(mine[0], theirs[0]) or _negates(theirs[0], mine[0])):
        return []
    return [part for text, part in one.items() if text in other]


def _parts(test: ast.expr) -> list[ast.expr]:
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def _negates(test: ast.expr, other: ast.expr) -> bool:
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and ast.dump(test.operand) == ast.dump(other)


def _is_same(view: FileView, call: ast.Call, other: ast.expr) -> bool:
    """Whether another expression makes torch's own scaler with the same arguments, given by name."""
    if not isinstance(other, ast.Call) or view.external(other.func) not in _SCALERS or call.args or other.args:
        return False
    return [ast.dump(k) for k in call.keywords] == [ast.dump(k) for k in other.keywords]


def _made(view: FileView, call: ast.Call, name: str) -> list[Part]:
    parts: list[Part] = [f"{name}("]
    for number, keyword in enumerate(call.keywords):
        parts.extend((", ",) if number else ())
        parts.append(view.keep(keyword))
    return [*parts, ")"]
