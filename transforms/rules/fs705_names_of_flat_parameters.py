"""Tests of parameters' names behind an FSDP1 that made flat parameters: no name was that of a layer's own parameter."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Derived, Value, Wrapped
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.constructor import constructor_of
from ..sites import Site
from ..training.local_reads import runs_behind_the_wrap
from ..view import FileView

_SYMBOL = "torch.nn.Module.named_parameters.flat"
_TESTS = ("startswith", "endswith")


def find(migration: Migration) -> Iterator[Site]:
    """Names from ``named_parameters()`` of an FSDP1 model with flat parameters that are compared with text."""
    flat: dict[Group, bool] = {}
    for view in migration.views():
        for node in view.nodes(ast.Call, ast.Compare):
            name = _tested(view, node)
            values = _of_models(view, name) if name is not None else ()
            group = migration.groups.of(values) if values else None
            if group is None or not flat.setdefault(group, _makes_flat_parameters(migration, group)):
                continue
            if runs_behind_the_wrap(migration, view, node, group):
                yield Site(view, node, _SYMBOL, "hazard", group, values)


def _tested(view: FileView, node: ast.AST) -> ast.expr | None:
    """What a comparison with text tests."""
    if isinstance(node, ast.Call):
        by_method = isinstance(node.func, ast.Attribute) and node.func.attr in _TESTS and node.args
        return node.func.value if by_method and isinstance(node.func, ast.Attribute) else None
    assert isinstance(node, ast.Compare)
    if len(node.ops) != 1:
        return None
    left, right = node.left, node.comparators[0]
    if isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
        return left if _is_text(view, right) else None
    if isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return right if _is_text(view, left) else left if _are_texts(right) else None
    return None


def _is_text(view: FileView, node: ast.expr) -> bool:
    """Whether an expression is text, or the variable of a loop over texts."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    if not isinstance(node, ast.Name):
        return False
    loops = [a for a in view.ancestors(node) if isinstance(a, (ast.ListComp, ast.SetComp, ast.GeneratorExp))]
    generators = [generator for loop in loops for generator in loop.generators]
    return any(isinstance(g.target, ast.Name) and g.target.id == node.id and _are_texts(g.iter) for g in generators)


def _are_texts(node: ast.expr) -> bool:
    elements = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else []
    return bool(elements) and all(isinstance(e, ast.Constant) and isinstance(e.value, str) for e in elements)


def _of_models(view: FileView, node: ast.expr) -> tuple[Value, ...]:
    """The wrapped models whose parameters' names an expression may be, if it can be nothing else."""
    values = tuple(view.values(node))
    whole = all(isinstance(v, Derived) and v.kind == "parameters" and isinstance(v.owner, Wrapped) for v in values)
    return values if whole else ()


def _makes_flat_parameters(migration: Migration, group: Group) -> bool:
    """Whether FSDP1 wraps the model at some place where ``use_orig_params`` is not surely true."""
    for wrap in group.wraps:
        if wrap.value.kind == "FSDP1" and wrap.subclass is None and wrap.names_wrapper:
            argument = constructor_of(migration, wrap.view, wrap.node, group).arguments.get("use_orig_params")
            if argument is None or argument.constant() is not True:
                return True
    return False


def check(site: Site, migration: Migration) -> Outcome:
    return Outcome(
        Level.REVIEW,
        "without use_orig_params FSDP1 names one flat parameter for each unit, so this test said the same for all that a "
        "unit holds; with FSDP2 every parameter has its own name, and what the test decides follows it",
        "Usually that is what was meant all along. To train exactly as before, replace the test by what it gave.",
    )


_HEAD = "import torch\nfrom torch.distributed.fsdp import {0}\n\nmodel = {1}\n"
_GROUPS = """\
biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
optimizer = torch.optim.AdamW(biases or model.parameters())
"""

RULE = Rule(
    id="FS705",
    title="Tests of the names of flat parameters",
    why=(
        "With use_orig_params=False, FSDP1's default, named_parameters() of the wrapped model gives names like "
        "blocks.0._fsdp_wrapped_module._flat_param: a test for bias or norm is never true, and groups that are built by it "
        "are empty. FSDP2 gives the model's own names, so the same code puts parameters into these groups: better, and "
        "different training."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("https://docs.pytorch.org/docs/stable/fsdp.html (use_orig_params)", "run on torch 2.13"),
    examples=(
        Example(
            _HEAD.format("FullyShardedDataParallel as FSDP", "FSDP(build())") + _GROUPS,
            _HEAD.format("fully_shard", "build()\nfully_shard(model)") + _GROUPS,
            Level.REVIEW,
        ),
    ),
)
