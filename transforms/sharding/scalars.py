"""Parameters without dimensions, which fully_shard refuses: where a model's code defines them, and how they get one."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..analysis.library import PARAMETER
from ..analysis.values import ClassValue, Constant, Instance, Opaque, Value
from ..groups import Group
from ..migration import Migration
from ..text.patches import Patch
from ..training.passes import called_name, outside_name
from ..view import FileView
from .model_code import classes_of
from .unseen_models import groups_with_unseen_models

_SHAPED = frozenset(f"torch.{name}" for name in ("ones", "zeros", "empty", "rand", "randn", "full"))
_POINTWISE = frozenset(f"torch.{name}" for name in ("log", "exp", "sqrt", "log1p", "logit"))
_CONVERSIONS = frozenset({"float", "double", "half", "bfloat16", "to", "type", "cpu", "cuda", "clone", "detach"})
_REDUCTIONS = frozenset({"sum", "mean", "prod", "max", "min", "norm", "std", "var"})
_NUMBERS = ("math.", "numpy.log", "numpy.exp", "numpy.sqrt")
_MAKERS = ("open_clip.create_model", "open_clip.factory.create_model", "clip.load")
_WITH_SCALARS = frozenset({"CLIPModel", "SiglipModel", "AltCLIPModel", "ChineseCLIPModel", "ClapModel", "XCLIPModel"})
_WHY = "fully_shard takes parameters with a dimension"


@dataclass(frozen=True, eq=False)
class Scalar:
    """One definition: ``self.scale = nn.Parameter(torch.ones([]))``."""

    view: FileView
    owner: ast.ClassDef
    call: ast.Call
    """The call of ``nn.Parameter``."""
    group: Group

    @property
    def name(self) -> str | None:
        """The attribute of ``self`` that holds it; None where it is held in another way."""
        node: ast.AST = self.view.parents[self.call]
        while isinstance(node, ast.IfExp):
            node = self.view.parents[node]
        if isinstance(node, ast.Call) and called_name(node) == "register_parameter" and isinstance(node.args[0], ast.Constant):
            return str(node.args[0].value)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        target = targets[0] if len(targets) == 1 else None
        own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
        return target.attr if own and isinstance(target, ast.Attribute) else None


def scalars(migration: Migration) -> list[Scalar]:
    """The definitions of all models that DDP wraps; FSDP1 refuses such parameters itself."""
    return migration.once("scalars", None, lambda: list(_find(migration)))


def _find(migration: Migration) -> Iterator[Scalar]:
    for group in migration.groups.all:
        if group.stays_ddp or "DDP" not in group.kinds:
            continue
        known: set[ast.Call] = set()
        for value in sorted((v for v in group.raw if isinstance(v, Instance)), key=lambda v: (v.cls.file, v.cls.index, v.site)):
            for view, owner in classes_of(migration, value.cls):
                for node in ast.walk(owner):
                    if isinstance(node, ast.Call) and outside_name(view, node.func) in PARAMETER and node not in known:
                        known.add(node)
                        if node.args and _is_scalar(view, node.args[0]):
                            yield Scalar(view, owner, node, group)


def scalars_of_unseen(migration: Migration) -> Iterator[Scalar]:
    """The definitions in other modules of the repository, where DDP wraps a model that is not seen."""
    groups = groups_with_unseen_models(migration)
    known = {scalar.call for scalar in scalars(migration)}
    for view in migration.program.views_with("Parameter") if groups else ():
        for owner in view.nodes(ast.ClassDef):
            if not _is_module(migration, view, owner):
                continue
            for node in ast.walk(owner):
                if isinstance(node, ast.Call) and node not in known and outside_name(view, node.func) in PARAMETER:
                    known.add(node)
                    if node.args and _is_scalar(view, node.args[0]):
                        yield Scalar(view, owner, node, groups[0])


def _is_module(migration: Migration, view: FileView, owner: ast.ClassDef) -> bool:
    flow = migration.program.flow
    classes = [value for value in view.values(owner) if isinstance(value, ClassValue)]
    return any(name.startswith("torch.nn.") for value in classes for name in flow.external_bases(value))


def made_elsewhere(migration: Migration, models: Iterable[Value]) -> str:
    """A model with such a parameter that is, or holds a model that is, made by another package; empty if there is none."""
    for value in models:
        if isinstance(value, Opaque) and _has_scalars(value.name):
            return value.name
        for view, owner in classes_of(migration, value.cls) if isinstance(value, Instance) else ():
            for node in ast.walk(owner):
                name = outside_name(view, node.func) if isinstance(node, ast.Call) else None
                if name is not None and _has_scalars(name):
                    return name
    return ""


def _has_scalars(name: str) -> bool:
    in_transformers = name.startswith("transformers.") and any(part in _WITH_SCALARS for part in name.split("."))
    return in_transformers or name.startswith(_MAKERS)


# --- what is a scalar -----------------------------------------------------------------------------------------


def _is_scalar(view: FileView, node: ast.expr) -> bool:
    """``torch.tensor(0.07)``, ``torch.ones([])``, a sum, and arithmetic of one with numbers and with what is passed in."""
    if isinstance(node, ast.BinOp):
        sides = (node.left, node.right)
        return any(_is_scalar(view, side) for side in sides) and all(
            _is_scalar(view, side) or _is_number(view, side) or isinstance(side, ast.Name) for side in sides
        )
    if isinstance(node, ast.IfExp):
        return _is_scalar(view, node.body) or _is_scalar(view, node.orelse)
    if not isinstance(node, ast.Call):
        return False
    name = outside_name(view, node.func)
    if isinstance(node.func, ast.Attribute) and node.func.attr in _CONVERSIONS:
        return _is_scalar(view, node.func.value)
    if _is_reduction(view, node):
        return True
    if name in _POINTWISE or (name is None and f"torch.{called_name(node)}" in _POINTWISE):
        inner = node.args[0] if node.args else getattr(node.func, "value", None)
        return isinstance(inner, ast.expr) and _is_scalar(view, inner)
    if not node.args:
        return False
    if name == "torch.tensor":
        return _is_number(view, node.args[0])
    return name in _SHAPED and any(_empty_shapes(view, node.args[0]))


def _is_reduction(view: FileView, node: ast.AST) -> bool:
    """``torch.zeros(3).sum()``: one number of a tensor that is made there."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.args or node.keywords:
        return False
    reduced = node.func.value
    is_made = isinstance(reduced, ast.Call) and (outside_name(view, reduced.func) or "").startswith("torch.")
    return is_made and node.func.attr in _REDUCTIONS


def _empty_shapes(view: FileView, shape: ast.expr) -> Iterator[ast.expr]:
    """The ``[]`` and ``()`` that a shape may be: as it stands, on a side of a choice, or by a name that the function gives it."""
    if isinstance(shape, (ast.List, ast.Tuple)) and not shape.elts:
        yield shape
    elif isinstance(shape, ast.IfExp):
        yield from (*_empty_shapes(view, shape.body), *_empty_shapes(view, shape.orelse))
    elif isinstance(shape, ast.Name):
        for given in _assigned(view, shape):
            if not isinstance(given, ast.Name):
                yield from _empty_shapes(view, given)


def _assigned(view: FileView, name: ast.Name) -> list[ast.expr]:
    """What the function around a name assigns it."""
    function = view.function(name)
    return [
        node.value
        for node in (ast.walk(function) if function is not None else ())
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == name.id for target in node.targets)
    ]


def _is_number(view: FileView, node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_number(view, node.operand)
    if isinstance(node, ast.BinOp):
        return _is_number(view, node.left) and _is_number(view, node.right)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    if isinstance(node, ast.Call):
        return (outside_name(view, node.func) or "").startswith(_NUMBERS)
    values = view.values(node)
    if values and all(isinstance(value, Constant) and isinstance(value.value, (int, float)) for value in values):
        return True
    function = view.function(node)
    if not isinstance(node, ast.Name) or not isinstance(function, ast.FunctionDef):
        return False
    given = function.args
    named = [*given.posonlyargs, *given.args][::-1]
    defaults = dict(zip((arg.arg for arg in named), given.defaults[::-1], strict=False))
    defaults |= {arg.arg: value for arg, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value}
    annotated = any(a.arg == node.id and _means_number(a.annotation) for a in (*named, *given.kwonlyargs))
    return annotated or (node.id in defaults and _is_number(view, defaults[node.id]))


def _means_number(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id in ("int", "float")


# --- how it gets a dimension ------------------------------------------------------------------------------------


def with_dimension(scalar: Scalar) -> list[Patch] | None:
    """The patches that give a parameter one dimension of size 1; None where its shape may also be something else."""
    view, given = scalar.view, scalar.call.args[0]
    if any(_is_scalar(view, choice.body) != _is_scalar(view, choice.orelse) for choice in _choices(given)):
        return None
    patches = [_patch(view, leaf) for leaf in _leaves(view, given)]
    return None if None in patches else [patch for patch in patches if patch is not None]


def _choices(node: ast.expr) -> Iterator[ast.IfExp]:
    """The choices between tensors that a definition makes."""
    if isinstance(node, ast.IfExp):
        yield node
        yield from (*_choices(node.body), *_choices(node.orelse))
    elif isinstance(node, ast.BinOp):
        yield from (*_choices(node.left), *_choices(node.right))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _choices(node.func.value)


def is_chosen(scalar: Scalar) -> bool:
    """Whether the definition chooses between no dimension and one."""
    shapes = (leaf for leaf in _leaves(scalar.view, scalar.call.args[0]) if isinstance(leaf, (ast.List, ast.Tuple)))
    return any(isinstance(scalar.view.parents[shape], ast.IfExp) for shape in shapes)


def _leaves(view: FileView, node: ast.expr) -> Iterator[ast.expr]:
    """The numbers and the empty shapes that the tensors of a definition are made from, and the sums it takes."""
    reductions = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call) and _is_reduction(view, inner)]
    yield from reductions
    reduced = {inner for reduction in reductions for inner in ast.walk(reduction)}
    for inner in ast.walk(node):
        if inner in reduced:
            continue
        if not isinstance(inner, ast.Call) or not inner.args:
            continue
        name = outside_name(view, inner.func)
        if name == "torch.tensor":
            yield inner.args[0]
        elif name in _SHAPED:
            yield from _empty_shapes(view, inner.args[0])


def _patch(view: FileView, leaf: ast.expr) -> Patch | None:
    if _is_reduction(view, leaf):
        return view.replace(leaf, (view.keep(leaf), ".reshape(1)"), _WHY)
    if not isinstance(leaf, (ast.List, ast.Tuple)):
        return view.replace(leaf, ("[", view.keep(leaf), "]"), _WHY)
    parent = view.parents[leaf]
    if isinstance(parent, ast.Call):
        is_full = outside_name(view, parent.func) == "torch.full"
        return view.replace(leaf, "(1,)" if is_full else "1", _WHY)
    if isinstance(parent, ast.Assign) and not _serves_parameters_alone(view, parent):
        return None
    if not isinstance(parent, ast.IfExp):
        return view.replace(leaf, "[1]", _WHY)
    other = parent.orelse if leaf is parent.body else parent.body
    statement = view.parents[parent]
    if ast.unparse(other) not in ("[1]", "(1,)") or (
        isinstance(statement, ast.Assign) and not _serves_parameters_alone(view, statement)
    ):
        return None
    return view.replace(parent, (view.keep(other),), _WHY)


def _serves_parameters_alone(view: FileView, assignment: ast.Assign) -> bool:
    """Whether a shape is assigned to a name that only tensors of parameters are made with."""
    target = assignment.targets[0]
    function = view.function(assignment)
    if len(assignment.targets) != 1 or not isinstance(target, ast.Name) or function is None:
        return False
    uses = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == target.id and isinstance(n.ctx, ast.Load)]
    return all(_makes_a_parameter(view, use) for use in uses)


def _makes_a_parameter(view: FileView, shape: ast.Name) -> bool:
    calls = [node for node in view.ancestors(shape) if isinstance(node, ast.Call)]
    parameter = next((call for call in calls if outside_name(view, call.func) in PARAMETER), None)
    return parameter is not None and _is_scalar(view, parameter.args[0])
