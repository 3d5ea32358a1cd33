"""Under what condition a place behind a rank guard is reached, as far as all ranks can tell in front of the guard.

A condition is repeated in front only if every rank surely finds the same: what is decided by a loss or a metric may
differ from rank to rank, and a gathering that some ranks skip hangs.
"""

from __future__ import annotations

import ast
import re
from typing import TypeGuard

from ..view import FileView
from .guards import Guard, GuardFinder, bound_between

_AGREED = re.compile(
    r"epoch|step|iter|idx|index|count|every|interval|freq|period|args|cfg|conf|opt(ion)?s?$|hparam|flag|distributed|ddp|"
    r"fsdp|world|total|max|debug|dir$|path$|save|checkpoint|ckpt|self|split|subset|phase|stage|mode$|^[a-z]$",
    re.IGNORECASE,
)
_DECIDED_LOCALLY = re.compile(
    r"loss|acc|metric|score|best|perplex|ppl|reward|bleu|error|nan|norm|time|improve|patience|result", re.IGNORECASE
)


def condition_in_front(finder: GuardFinder, view: FileView, guard: Guard, node: ast.AST) -> str:
    """The condition that can be repeated in front of a guard; empty where there is none."""
    return " and ".join(text for text, repeated in _conditions(finder, view, guard, node) if repeated)


def left_out(finder: GuardFinder, view: FileView, guard: Guard, node: ast.AST) -> list[str]:
    """Conditions that cannot be repeated, so that all ranks come also where these do not hold."""
    return [text for text, repeated in _conditions(finder, view, guard, node) if not repeated]


def _conditions(finder: GuardFinder, view: FileView, guard: Guard, node: ast.AST) -> list[tuple[str, bool]]:
    """(text, whether it can be repeated) of every condition that does not only select ranks, outermost first.

    A name that is bound behind the guard exists on some ranks alone, and what it says is news to these as well.
    """
    found: list[tuple[str, bool]] = []
    child = node
    bound = bound_between(view, guard, node)
    outside = view.parents[guard.statement]
    for ancestor in view.ancestors(node):
        if ancestor is outside:
            break
        if isinstance(ancestor, ast.If) and child is not ancestor.test:
            negated = child in ancestor.orelse
            operands = ancestor.test.values if _is_and(ancestor.test) else [ancestor.test]
            parts: list[tuple[str, bool]] = []
            for operand in operands:
                is_bound = bool(view.names_in(operand) & bound)
                if not is_bound and finder.conditions.selects_ranks(view, operand):
                    continue
                is_known = _is_pure(operand) and not is_bound and is_agreed(operand) and not (negated and len(operands) > 1)
                text = view.text(operand)
                text = f"not ({text})" if negated else _bracketed(operand, text, len(operands)) if is_known else text
                parts.append((text, is_known))
            found = [*parts, *found]
        child = ancestor
    return found


def is_agreed(test: ast.expr) -> bool:
    """Whether all ranks find a condition alike: it is about counters, splits and settings, told by their names."""
    names = [node.id for node in ast.walk(test) if isinstance(node, ast.Name)]
    names += [node.attr for node in ast.walk(test) if isinstance(node, ast.Attribute)]
    roots = [name for name in names if not _AGREED.search(name)]
    settings = any(re.search(r"args|cfg|conf|opt|hparam|flag", name, re.IGNORECASE) for name in names)
    if any(_DECIDED_LOCALLY.search(name) for name in names):
        return False
    return not roots or settings


def _is_and(test: ast.expr) -> TypeGuard[ast.BoolOp]:
    return isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)


def _bracketed(operand: ast.expr, text: str, operands: int) -> str:
    needs = isinstance(operand, (ast.BoolOp, ast.IfExp, ast.Lambda)) and operands == 1
    return f"({text})" if needs and not _is_and(operand) else text


def _is_pure(test: ast.expr) -> bool:
    """Whether an expression may be evaluated twice: no calls, nothing awaited or assigned."""
    active = (ast.Call, ast.Await, ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Lambda)
    return not any(isinstance(node, active) for node in ast.walk(test))
