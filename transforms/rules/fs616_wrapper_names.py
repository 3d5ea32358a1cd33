"""``type(model).__name__ == "DistributedDataParallel"``: wrappers asked for by the name of their class."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..analysis.symbols import DATA_PARALLEL, WRAPPERS
from ..analysis.values import Annotated, Wrapped
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..text.patches import Part
from ..training.class_tests import subject_of
from ..training.conditions import FSDP_MODULE
from ..training.passes import outside_name
from ..view import FileView

_SYMBOL = "torch.nn.Module.__class__.__name__"
_NAMES = {symbol.rpartition(".")[2]: kind for symbol, kind in WRAPPERS.items()}
_SPELLED = re.compile("Distributed|FullySharded|Parallel|DDP|FSDP")
_OTHERS = frozenset(symbol.rpartition(".")[2] for symbol in DATA_PARALLEL)


def find(migration: Migration) -> Iterator[Site]:
    """Comparisons of a class's name with that of a wrapper."""
    groups = migration.groups
    for view in migration.views():
        for node in view.nodes(ast.Compare):
            subject = _subject(view, node)
            if subject is None or not _NAMES.keys() & _texts(node):
                continue
            values = view.values(subject)
            group = groups.of(values) or _only(groups.all)
            if group is not None and not _takes_off_others(view, node):
                yield Site(view, node, _SYMBOL, "hazard", group, tuple(values))
        yield from _other_questions(migration, view)


def _other_questions(migration: Migration, view: FileView) -> Iterator[Site]:
    """A class's name that is looked up, searched or kept to be compared, in a file that spells the name of a wrapper."""
    if not any(isinstance(n.value, str) and _SPELLED.search(n.value) for n in view.nodes(ast.Constant)):
        return
    groups = migration.groups
    for node in view.nodes(ast.Attribute, ast.Call):
        subject = _named(view, node) or _spoken(view, node)
        values = view.values(subject) if subject is not None else ()
        group = groups.of(values)
        wrapped = any(isinstance(value, (Wrapped, Annotated)) for value in values)
        if group is not None and wrapped and _decides(view, node):
            yield Site(view, node, _SYMBOL, "hazard", group, tuple(values))


def check(site: Site, migration: Migration) -> Outcome:
    """The question becomes one for FSDPModule where it is for wrappers alone."""
    view, node = site.view, site.node
    if not isinstance(node, ast.Compare):
        return _held()
    subject = _subject(view, node)
    texts = _texts(node)
    operator = node.ops[0]
    asked = isinstance(operator, (ast.Eq, ast.NotEq, ast.In, ast.NotIn))
    kinds = {value.kind for value in site.values if isinstance(value, (Wrapped, Annotated))}
    kinds |= site.group.kinds if site.group is not None else set()
    is_for_all = kinds <= {_NAMES.get(text) for text in texts}
    if subject is None or not asked or not texts <= _NAMES.keys() or not is_for_all:
        return _held()
    outcome = Outcome(Level.REVIEW, "the wrapper was asked for by its name: the test asks for FSDPModule")
    module = migration.use(outcome, view, FSDP_MODULE, node)
    negative = isinstance(operator, (ast.NotEq, ast.NotIn))
    parts: list[Part] = ["not " if negative else "", "isinstance(", view.keep(subject), f", {module})"]
    outcome.patches.append(view.replace(node, parts, "a sharded model has another class"))
    return outcome


def _held() -> Outcome:
    return Outcome(
        Level.MANUAL,
        "this asks for a wrapper by the name of its class, which no sharded model has: the answer becomes no, without an error",
        "Ask isinstance(model, FSDPModule), and for the other classes beside it; models of both wrappers pass that.",
        holds=True,
    )


def _decides(view: FileView, node: ast.expr) -> bool:
    """Whether something is decided by a name: part of it is asked for, a table has it as a key, or it is compared later."""
    parent = view.parents[node]
    if isinstance(parent, ast.Return):
        return True  # whoever calls the function compares it, in this file by the name that it spells
    if isinstance(parent, ast.Attribute):
        return parent.attr in ("startswith", "endswith", "find", "count")
    if isinstance(parent, ast.Compare):
        return (len(parent.ops) != 1 or not _NAMES.keys() & _texts(parent) or _subject(view, parent) is None) and any(
            _SPELLED.search(text) for text in _texts(parent)
        )
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute) and parent.args[:1] == [node]:
        return parent.func.attr == "get"
    if isinstance(parent, ast.Subscript):
        return parent.slice is node
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        name, scope = parent.targets[0].id, view.function(parent)
        uses = (n for n in view.nodes(ast.Name) if n.id == name and isinstance(n.ctx, ast.Load))
        return any(view.function(use) is scope and _decides(view, use) for use in uses)
    return False


def _spoken(view: FileView, node: ast.expr) -> ast.expr | None:
    """``model`` in ``repr(model)``, ``str(model)`` and ``model._get_name()``, which begin with the name of its class."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr == "_get_name":
        return node.func.value
    is_text = outside_name(view, node.func) in ("builtins.repr", "builtins.str") and len(node.args) == 1
    return node.args[0] if is_text else None


def _only(groups: list[Group]) -> Group | None:
    return groups[0] if len(groups) == 1 else None


def _subject(view: FileView, node: ast.Compare) -> ast.expr | None:
    """The model whose class is asked for its name in a comparison."""
    if len(node.ops) != 1:
        return None
    sides = (node.left, node.comparators[0])
    return next((subject for side in sides if (subject := _named(view, side)) is not None), None)


def _named(view: FileView, node: ast.expr) -> ast.expr | None:
    """``model`` in ``type(model).__name__`` and ``str(model.__class__)``."""
    if isinstance(node, ast.Attribute) and node.attr in ("__name__", "__qualname__"):
        return subject_of(view, node.value)
    if isinstance(node, ast.Call) and outside_name(view, node.func) == "builtins.str" and len(node.args) == 1:
        return subject_of(view, node.args[0])
    return None


def _texts(node: ast.Compare) -> set[str]:
    """The strings that a comparison spells out."""
    found: set[str] = set()
    for side in (node.left, node.comparators[0]):
        for part in side.elts if isinstance(side, (ast.Tuple, ast.List, ast.Set)) else [side]:
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                found.add(part.value)
    return found


def _takes_off_others(view: FileView, node: ast.Compare) -> bool:
    """Whether the test lets DataParallel pass as well, and only decides about ``.module``: an FSDP2 model has none."""
    branch = view.parents[node]
    if not isinstance(branch, (ast.If, ast.IfExp)) or branch.test is not node or not _OTHERS & _texts(node):
        return False
    inside = branch.body if isinstance(branch.body, list) else [branch.body]
    return any(isinstance(n, ast.Attribute) and n.attr == "module" for child in inside for n in ast.walk(child))


_WRAP = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
"""
_ASKED = 'if type(model).__name__ == "FullyShardedDataParallel":\n    report(model)\n'
_MIXED = 'if type(model).__name__ in ("FullyShardedDataParallel", "PeftModel"):\n    report(model)\n'

RULE = Rule(
    id="FS616",
    title="Wrappers asked for by the name of their class",
    why=(
        "fully_shard makes a class FSDPNet for a model of class Net, so no name of a wrapper is found any more: what was "
        "done for wrapped models alone is left out, without an error."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    examples=(
        Example(
            _WRAP + _ASKED,
            "import torch\nfrom torch.distributed.fsdp import FSDPModule, fully_shard\n\nmodel = build()\nfully_shard(model)\n"
            "if isinstance(model, FSDPModule):\n    report(model)\n",
            Level.REVIEW,
        ),
        Example(_WRAP + _MIXED, _WRAP + _MIXED, Level.MANUAL),
    ),
)
