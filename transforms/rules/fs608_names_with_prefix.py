"""Names of parameters and modules that are compared or cut up as the wrapper spelled them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..analysis.values import Annotated, Constant, Container, Derived, Value, Wrapped
from ..findings import Level
from ..groups import Group
from ..introspection.name_patterns import MATCHES, is_anchored
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.local_reads import runs_behind_the_wrap
from ..training.wrapped_parameters import asked_of_the_parameter
from ..view import FileView

PREFIX = "module."
_MARKS = ("_fsdp_wrapped_module", "_flat_param")
"""What FSDP1 puts into names."""
_CUTS = frozenset({"removeprefix", "removesuffix", "replace", "lower", "strip", "lstrip", "rstrip"})
"""Methods of strings whose result still holds the rest of the name."""
_INSIDE_A_BLOCK = re.compile(r"\d\.\w")
_NAMED = frozenset({"parameters", "modules", "buffers"})
_SYMBOL = "torch.nn.Module.names"


def find(migration: Migration) -> Iterator[Site]:
    """String tests and cuts of names that a wrapped model gave, where the wrapper's prefix counts."""
    for view in migration.views():
        for node in view.nodes(ast.Call, ast.Compare, ast.Subscript):
            for name, kind in _works_on_names(view, node):
                values = _names(view, name) or (_names(view, _uncut(view, name)) if kind == "contains" else ())
                group = migration.groups.of(values) if values else None
                if group is None or not (
                    _counts(view, name, node, values, kind)
                    or _asks_for_mark(view, node, kind, group)
                    or _crosses_a_unit(view, name, node, kind, group)
                ):
                    continue
                if runs_behind_the_wrap(migration, view, node, group):
                    yield Site(view, node, f"{_SYMBOL}.{kind}", "hazard", group, values)
                    break


def _names(view: FileView, node: ast.expr) -> tuple[Value, ...]:
    """What a name was taken from, if that is a model."""
    return tuple(v for v in view.values(node) if isinstance(v, Derived) and v.kind in _NAMED)


def _uncut(view: FileView, name: ast.expr) -> ast.expr:
    """What a name was before ends were cut off it, here or where it was given to the same variable again."""
    while True:
        given = _given_again(view, name) if isinstance(name, ast.Name) else name
        if not isinstance(given, ast.Call) or not isinstance(given.func, ast.Attribute) or given.func.attr not in _CUTS:
            return name
        if any(mark in view.text(given) for mark in _MARKS):
            return given  # nothing of FSDP1's is left to be found
        name = given.func.value


def _given_again(view: FileView, name: ast.Name) -> ast.expr | None:
    """The value of the last assignment to a name in front of its use."""
    scope = view.function(name) or view.tree
    stores = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Store)]
    before = [store for store in stores if store.lineno < name.lineno]
    statement = view.parents[max(before, key=lambda store: store.lineno)] if before else None
    return statement.value if isinstance(statement, ast.Assign) else None


def _is_wrapped(values: tuple[Value, ...]) -> bool:
    return any(isinstance(v, Derived) and isinstance(v.owner, (Wrapped, Annotated)) for v in values)


def _asks_for_mark(view: FileView, node: ast.AST, kind: str, group: Group) -> bool:
    """``"fsdp" in name``: whether FSDP1 has wrapped the module that a parameter is in."""
    texts = _texts(view, node, kind) if kind == "contains" and "FSDP1" in group.kinds else []
    return any(text in mark and ("fsdp" in text or "flat_param" in text) for text in texts for mark in _MARKS)


def _crosses_a_unit(view: FileView, name: ast.expr, node: ast.AST, kind: str, group: Group) -> bool:
    """``"blocks.0.up" in name``: FSDP1's mark stands between the two, if the block is a unit."""
    if kind != "contains" or "FSDP1" not in group.kinds or not _is_wrapped(_names(view, name)):
        return False
    has_units = len(group.wraps) > 1 or any(k.arg in ("auto_wrap_policy", None) for w in group.wraps for k in w.node.keywords)
    return has_units and any(_INSIDE_A_BLOCK.search(text) for text in _texts(view, node, kind))


def _asks_for_flat(view: FileView, node: ast.AST) -> bool:
    """Whether the mark is that of flat parameters, which FSDP1 had on some settings only."""
    return any("fsdp" not in text for text in _texts(view, node, "contains"))


def _works_on_names(view: FileView, node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """(expression that may be a name, what is done with it) for one node of a tree."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("startswith", "endswith") and node.args:
            yield node.func.value, node.func.attr
        elif node.func.attr in ("split", "partition") and _cuts_from_the_left(view, node):
            yield node.func.value, "split"
        elif node.func.attr == "get" and node.args:
            yield node.args[0], "key"
        elif node.func.attr in MATCHES:
            yield from ((argument, "pattern") for argument in node.args[:2])
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        if isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            yield node.left, "equals"
        elif isinstance(node.ops[0], (ast.In, ast.NotIn)):
            yield node.left, "member"
            yield node.comparators[0], "contains"
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and node.slice.lower is not None:
        yield node.value, "cut"


def _cuts_from_the_left(view: FileView, call: ast.Call) -> bool:
    """Whether the parts are counted from the first one: ``[-1]`` and ``"head" in …`` are not."""
    parent = view.parents[call]
    if isinstance(parent, ast.Compare):
        return False
    if isinstance(parent, ast.Subscript):
        return not isinstance(parent.slice, ast.UnaryOp)
    return True


def _counts(view: FileView, name: ast.expr, node: ast.AST, values: tuple[Value, ...], kind: str) -> bool:
    """Whether the answer depends on the prefix that the wrapper puts before the names."""
    if not _is_wrapped(values):
        return False
    always = all(isinstance(v, Derived) and isinstance(v.owner, (Wrapped, Annotated)) for v in view.values(name))
    if kind in ("split", "cut"):
        # Behind `if name.startswith("module.")` names without it never come here.
        return always and _is_text_cut(node) and not _asks_for_prefix_before(view, node)
    if kind == "pattern":
        return always and is_anchored(view, node, name) is not False
    texts = _texts(view, node, kind)
    prefixed = [text for text in texts if text.startswith(PREFIX) and text != PREFIX]
    if prefixed or kind in ("contains", "endswith"):
        return bool(prefixed)
    return always and any(text[:1].isalpha() and text != PREFIX for text in texts)


def _is_text_cut(node: ast.AST) -> bool:
    """A slice that a list of parameters would not have: from a length of text, or as long as the prefix."""
    if isinstance(node, ast.Call):
        return bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == "."
    assert isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
    return node.slice.upper is None and _length(node.slice.lower) == len(PREFIX)


def _length(node: ast.expr | None) -> int | None:
    """The number that ``7`` or ``len("module.")`` stands for."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1:
        text = node.args[0]
        return len(text.value) if isinstance(text, ast.Constant) and isinstance(text.value, str) else None
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def _texts(view: FileView, node: ast.AST, kind: str) -> list[str]:
    """The strings that a name is compared with."""
    other: ast.expr
    if kind == "key":
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        return _keys(view, node.func.value)
    if isinstance(node, ast.Call):
        other = node.args[0]
    else:
        assert isinstance(node, ast.Compare)
        other = node.left if kind == "contains" else node.comparators[0]
    texts = [constant.value for constant in _constants(other)]
    found = view.program.elements(view.values(other))
    texts += [v.value for v in found if isinstance(v, Constant) and isinstance(v.value, str)]
    return list(dict.fromkeys(str(text) for text in texts))


def _keys(view: FileView, node: ast.expr) -> list[str]:
    """The strings that a dictionary which is written out somewhere is asked for."""
    found: list[str] = []
    for container in (value for value in view.values(node) if isinstance(value, Container) and value.kind == "dict"):
        file = view.program.file_of_variable(container.variable)
        at = view if file is None else view.program.view(file)
        made = (display for display in at.nodes(ast.Dict) if at.variable(display) == container.variable)
        found += [str(text.value) for display in made for key in display.keys if key is not None for text in _constants(key)]
    return found


def _constants(node: ast.expr) -> list[ast.Constant]:
    """The strings that an expression spells out itself, alone or in a display."""
    parts = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
    return [part for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def _asks_for_prefix_before(view: FileView, node: ast.AST) -> bool:
    for ancestor in view.ancestors(node):
        tests: list[ast.expr] = []
        if isinstance(ancestor, (ast.If, ast.IfExp)):
            tests = [ancestor.test]
        elif isinstance(ancestor, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            tests = [test for generator in ancestor.generators for test in generator.ifs]
        for test in tests:
            if any(isinstance(n, ast.Constant) and n.value in (PREFIX, "module") for n in ast.walk(test)):
                return True
    return False


def check(site: Site, migration: Migration) -> Outcome:
    view, node, group = site.view, site.node, site.group
    assert group is not None
    wrapper = "DDP" if group.kinds == {"DDP"} else "FSDP1" if group.kinds == {"FSDP1"} else "the wrapper"
    if _asks_for_mark(view, node, site.member, group):
        outcome = asked_of_the_parameter(migration, site) if not _asks_for_flat(view, node) else None
        if outcome is not None:
            return outcome
        return Outcome(
            Level.MANUAL,
            f"{view.text(node)} asks whether FSDP1 has wrapped a parameter's module; fully_shard changes no names, so this "
            "is never true any more, and what it decides about (what is saved, trained or clipped) changes without an error",
            "Ask the parameter: isinstance(parameter, DTensor) is true for all that fully_shard has sharded, those of a "
            "model that DDP wrapped before included.",
            holds=True,
        )
    if site.member == "pattern" and _is_unseen_pattern(view, node):
        return Outcome(
            Level.REVIEW,
            f"{view.text(node)} matches names against patterns that are not seen here: one that starts at the first letter met "
            f"the prefix that {wrapper} puts before names, and meets the model's own names now",
            "Look whether the patterns are anchored (^, re.match, fnmatch): those that never matched begin to.",
        )
    if site.member == "contains" and not _counts_prefix(view, node):
        return Outcome(
            Level.MANUAL,
            f"{view.text(node)}: FSDP1 puts _fsdp_wrapped_module. into names at every unit, so that a name which goes on inside "
            "a block was not found; names of a sharded model are whole, and it would be, without an error",
            "Look whether what this picks is what was meant, and take out what it never found if training shall stay as it was.",
            holds=True,
        )
    always = all(isinstance(v, Derived) and isinstance(v.owner, Wrapped) for v in site.values)
    if always and wrapper == "DDP":
        outcome = _without_prefix(view, node, site.member)
        if outcome is not None:
            return outcome
    return Outcome(
        Level.MANUAL,
        f"{view.text(node)} goes by the prefix that {wrapper} puts before names, and names of a sharded model have none: "
        "it would pick other parameters than before, without an error",
        "Write the names as the model itself spells them, or take them from the model before it is wrapped, and look "
        "whether what this picks is what was meant.",
        holds=True,
    )


def _counts_prefix(view: FileView, node: ast.AST) -> bool:
    return any(text.startswith(PREFIX) for text in _texts(view, node, "contains"))


def _is_unseen_pattern(view: FileView, node: ast.AST) -> bool:
    names = (argument for argument in getattr(node, "args", ())[:2] if _names(view, argument))
    return all(is_anchored(view, node, name) is None for name in names)


def _without_prefix(view: FileView, node: ast.AST, kind: str) -> Outcome | None:
    """The same test on names without the prefix; None where it is not the same by necessity."""
    if kind == "cut":
        assert isinstance(node, ast.Subscript)
        outcome = Outcome(Level.REVIEW, "names of a sharded model start with no module. that would have to be cut off")
        outcome.patches.append(view.replace(node, (view.keep(node.value),), "fully_shard changes no names"))
        return outcome
    if kind not in ("startswith", "equals", "member"):
        return None
    assert isinstance(node, (ast.Call, ast.Compare))
    other = node.args[0] if isinstance(node, ast.Call) else node.comparators[0]
    constants = _constants(other)
    whole = len(getattr(other, "elts", [other])) == len(constants)
    if not constants or not whole or not all(str(c.value).startswith(PREFIX) for c in constants):
        return None
    outcome = Outcome(Level.REVIEW, "DDP put module. before every name; the names of a sharded model are its own")
    for constant in constants:
        text = view.text(constant)
        if PREFIX not in text or constant.value == PREFIX:
            return None
        outcome.patches.append(view.replace(constant, text.replace(PREFIX, "", 1), "fully_shard changes no names"))
    return outcome


_HEAD = (
    "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\n"
    "model = DDP(build(), broadcast_buffers=False)\n"
)
_SHARD = (
    "import torch\nimport torch.distributed as dist\nfrom torch.distributed.fsdp import fully_shard\n\nmodel = build()\n"
    "for tensor in [*model.parameters(), *model.buffers()]:\n    dist.broadcast(tensor.detach(), src=0)\n"
    "fully_shard(model)\n"
)
_PICKED = 'head = [p for n, p in model.named_parameters() if n.startswith("{0}head.")]\n'
_NEVER = _HEAD + 'head = [p for n, p in model.named_parameters() if n.startswith("head.")]\n'

_MARKED = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
state = {name: p.numel() for name, p in model.named_parameters() if "fsdp" in name}
"""
_ASKED = """\
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

model = build()
fully_shard(model)
state = {name: p.numel() for name, p in model.named_parameters() if isinstance(p, DTensor)}
"""
_FLAT = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
flat = [p for name, p in model.named_parameters() if "_flat_param" in name]
"""

RULE = Rule(
    id="FS608",
    title="Names compared with the wrapper's prefix in mind",
    why=(
        "DDP puts module. before every parameter name, FSDP1 _fsdp_wrapped_module.; fully_shard changes no name. "
        "Parameter groups and frozen layers are often picked by name: a test that matched finds nothing any more, and "
        "one that never matched begins to. A model trained with another learning rate for its head that way, without an "
        "error."
    ),
    symbols=(f"{_SYMBOL}.*",),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("names of DDP, FSDP1 and FSDP2 models compared on torch 2.13",),
    examples=(
        Example(_HEAD + _PICKED.format("module."), _SHARD + _PICKED.format(""), Level.REVIEW),
        Example(_NEVER, _NEVER, Level.MANUAL, "under DDP no name starts like this"),
        Example(_MARKED, _ASKED, Level.REVIEW),
        Example(_FLAT, _FLAT, Level.MANUAL, "whether FSDP1 made flat parameters depends on use_orig_params"),
    ),
)
