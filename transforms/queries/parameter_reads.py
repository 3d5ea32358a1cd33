"""Parameters that are read off a model by their names, as ``model.head.weight``, and computed with."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from ..flow.values import Constant, Instance
from .answers import Sharding
from .file import File
from .own_parameters import is_own_parameter
from .program import Program
from .sharding import ShardingQueries

OF_LAYERS = re.compile(
    r"weight|bias|(in|q|k|v)_proj_(weight|bias)|bias_[kv]|weight_(orig|g|v)|(weight|bias)_[ih]h_l\d+(_reverse)?"
)
"""What torch's own layers call their parameters."""
_MADE = re.compile(
    r"self\.(\w+)(?:\s*:\s*[^=\n]+)?\s*=\s*(?:torch\.)?(?:nn\.)?(?:parameter\.)?Parameter\(|register_parameter\(\s*[\"'](\w+)"
)
ASKED = frozenset(
    {"shape", "dtype", "device", "requires_grad", "grad", "is_cuda", "ndim", "layout", "is_leaf", "grad_fn", "numel", "size",
     "dim", "element_size", "data_ptr", "untyped_storage", "stride", "is_contiguous", "register_hook", "type", "get_device",
     "register_post_accumulate_grad_hook", "is_floating_point", "is_complex", "nelement", "names"}
)  # fmt: skip
"""What a sharded tensor answers, or takes, as a whole one does."""
_NO_MATH = re.compile(
    r"torch\.(optim|nn\.init|nn\.utils|nn\.Parameter|nn\.parameter|distributed|save|is_tensor|is_complex|is_floating_point|numel|nn\.[A-Z])"
)


@lru_cache(maxsize=4)
def parameter_names(program: Program) -> frozenset[str]:
    """Names under which a class of the repository keeps a parameter."""
    texts = (program.text(facts.path) for facts in program.facts)
    return frozenset(name for text in texts if "Parameter(" in text or "register_parameter" in text
                     for found in _MADE.findall(text) for name in found if name)  # fmt: skip


def parameters_read(file: File, sharding: ShardingQueries) -> Iterator[tuple[ast.expr, ast.expr, Sharding]]:
    """Each such parameter of a model in a wrapper, outside of the model's own methods, with the model that it is read off.

    Where a parameter gets a name first, each place that computes with the name: it goes on to be the live one.
    """
    own = parameter_names(file.program)
    for node in file.nodes(ast.Attribute):
        if not isinstance(node.ctx, ast.Load) or not (node.attr in own or OF_LAYERS.fullmatch(node.attr)):
            continue
        if any(isinstance(v, Constant | Instance) for v in file.values(node)):
            continue
        uses = [use for use in (node, *_uses_of_name(file, node)) if _is_computed_with(file, use)]
        found = _model_of(file, sharding, node) if uses and not is_own_parameter(sharding, file, node) else None
        if found is not None:
            yield from ((use, *found) for use in uses)


def _uses_of_name(file: File, node: ast.expr) -> list[ast.expr]:
    """The places further down in the same block that read the name which an expression is assigned to, until it is bound anew."""
    assign = file.parents[node]
    if not isinstance(assign, ast.Assign) or len(assign.targets) != 1 or not isinstance(assign.targets[0], ast.Name):
        return []
    block, index = file.block_of(assign)
    uses: list[ast.expr] = []
    for statement in block[index + 1 :]:
        names = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == assign.targets[0].id]
        uses += [name for name in names if isinstance(name.ctx, ast.Load)]
        if len(names) > sum(isinstance(name.ctx, ast.Load) for name in names):
            break
    return uses


def _model_of(file: File, sharding: ShardingQueries, node: ast.expr) -> tuple[ast.expr, Sharding] | None:
    """The model that a parameter is read off, or the part of one where nothing on the way is a whole one."""
    part: tuple[ast.expr, Sharding] | None = None
    while True:
        if isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and len(node.args) > 1 and file.external(node.func) == "builtins.getattr":
            node = node.args[0]
        else:
            return part
        if isinstance(node, ast.Name) and node.id in ("self", "cls"):
            return part
        if (found := sharding.of(file, node)).wrappers:
            return node, found
        if (found := sharding.of_owners(file.values(node), path=file.path)).wrappers:
            part = node, found


def _is_computed_with(file: File, node: ast.expr) -> bool:
    """Whether an expression, taken for a tensor, is an operand: not where it is only asked, written, kept or compared."""
    parent = file.parents[node]
    if isinstance(parent, ast.BinOp | ast.UnaryOp):
        return not isinstance(getattr(parent, "op", None), ast.Not)
    if isinstance(parent, ast.Attribute | ast.Subscript):
        return parent.value is node and is_read_through(file, node)
    if isinstance(parent, ast.Assign):
        return any(isinstance(target, ast.Subscript) and _is_of_tensor(target) for target in parent.targets)
    if isinstance(parent, ast.keyword):
        if parent.arg == "out":
            return False
        parent = file.parents[parent]
    if not isinstance(parent, ast.Call) or parent.func is node:
        return False
    name = file.external(parent.func)
    if name is not None:
        return name.startswith("torch.") and _NO_MATH.match(name) is None and not name.endswith("_")
    return isinstance(parent.func, ast.Attribute) and parent.func.attr in _METHODS


def is_read_through(file: File, node: ast.expr) -> bool:
    """Whether a chain of attributes, methods and items that begins with a parameter computes, and writes nothing in place."""
    computes = False
    while True:
        parent = file.parents[node]
        if isinstance(parent, ast.Attribute) and parent.value is node:
            if not isinstance(parent.ctx, ast.Load) or parent.attr.endswith("_") or parent.attr in ASKED:
                return computes and parent.attr in ASKED
            called = file.parents[parent]
            is_method = isinstance(called, ast.Call) and called.func is parent
            computes = computes or is_method or parent.attr in ("T", "mT")
            node = called if is_method else parent  # type: ignore[assignment]
        elif isinstance(parent, ast.Subscript) and parent.value is node:
            if not isinstance(parent.ctx, ast.Load):
                return False
            computes, node = True, parent
        else:
            return (computes or _is_computed_with(file, node)) and not _is_name_written(file, node)


def _is_name_written(file: File, value: ast.expr) -> bool:
    """Whether an expression gets a name that is written in place: a view of a parameter writes the parameter."""
    assign = file.parents[value]
    if not isinstance(assign, ast.Assign):
        return False
    targets = {n.id for target in assign.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    scope = file.function(value)
    for name in (n for n in file.nodes(ast.Name) if n.id in targets and file.function(n) is scope):
        node: ast.AST = name
        while isinstance(parent := file.parents[node], ast.Attribute | ast.Subscript) or getattr(parent, "func", None) is node:
            in_place = isinstance(parent, ast.Attribute) and parent.attr.endswith("_")
            if in_place or isinstance(getattr(parent, "ctx", None), ast.Store) or isinstance(file.parents[parent], ast.AugAssign):
                return True
            node = parent
        if isinstance(parent, ast.AugAssign) and parent.target is node:
            return True
    return False


_METHODS = frozenset({"mm", "matmul", "bmm", "dot", "mul", "add", "sub", "div", "addmm", "baddbmm", "lerp", "where"})
"""Methods of tensors that compute with their argument."""


def _is_of_tensor(target: ast.Subscript) -> bool:
    """Whether an item that is assigned surely is a part of a tensor, by how it is chosen: a slice, or a mask."""
    parts = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
    return any(isinstance(part, ast.Slice | ast.UnaryOp | ast.Compare) or _is_mask(part) for part in parts)


_MASK = re.compile(r"(?i)mask|^null_|^is_|^not_|exist|valid|drop|empty|missing")


def _is_mask(index: ast.expr) -> bool:
    """``clips[is_missing] = …``: conditions have such names, keys have not."""
    return isinstance(index, ast.Name) and _MASK.search(index.id) is not None
