"""The lists of blocks in a model that become units of their own: ``layers``, ``transformer.h``, ``encoder.layers``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..flow.values import Instance, Opaque, Value
from .file import File
from .model_classes import class_of
from .model_structure import Class, ModelStructure

_LISTS = frozenset({"torch.nn.ModuleList", "torch.nn.Sequential"})
_ARRANGE = frozenset({"enumerate", "zip", "reversed", "list", "tuple", "len", "iter", "range"})
_DEEPEST = 4


@dataclass(frozen=True)
class Blocks:
    """The paths of the lists, from the model on, and the classes in them.

    ``are_looked_for`` says that the paths are not all, so that the blocks have to be found when the program runs.
    """

    paths: tuple[str, ...]
    classes: tuple[Class, ...]
    are_looked_for: bool = False


def blocks_of(structure: ModelStructure) -> Blocks | None:
    """The blocks of a model; None where some are not just called, as a unit has to be.

    Paths lead to lists that a constructor surely makes, of classes of the repository with layers of their own.
    """
    found: dict[tuple[str, ...], tuple[Class, ...]] = {}
    for model in dict.fromkeys(v.cls for v in structure.models if isinstance(v, Instance)):
        place = class_of(structure.program, Instance(model, -1))
        if place is None:
            return None
        lists = list(_lists_of(structure, place, "", 0))
        names = {path.rpartition(".")[2] for path, _ in lists}
        if not all(_is_called(structure, name) for name in names) or any(_has_ties(structure, cls) for _, cls in lists):
            return None
        if any(_is_in_loops(structure, name) for path, _ in lists for name in path.split(".")):
            return None
        found[tuple(dict.fromkeys(path for path, _ in lists))] = tuple(cls for _, cls in lists)
    paths, classes = found.popitem() if len(found) == 1 else ((), ())
    others = _other_lists(structure, classes)
    if not found and not others:
        return Blocks(paths, classes)
    if structure.ties or not all(_is_called(structure, name) for name in others) or _are_in_loops(structure, others):
        return None
    return Blocks((), tuple(cls for held in others.values() for cls in held), are_looked_for=True)


def _other_lists(structure: ModelStructure, blocks: Sequence[Class]) -> dict[str, list[Class]]:
    """The attributes with lists of modules of the repository, but for those of blocks and in blocks, and their classes."""
    flow, sharding = structure.program.flow, structure.sharding
    cls_of = {v: class_of(structure.program, Instance(v.cls, -1)) for v in structure.held if isinstance(v, Instance)}
    nodes = {cls for _, cls in blocks}
    units = [v for v, place in cls_of.items() if place is not None and place[1] in nodes]
    inside = {cls_of[v][1] for v in sharding.held_values(units) if cls_of.get(v)}  # type: ignore[index]
    owners = {flow.ids[v] for v, place in cls_of.items() if place is not None and place[1] not in inside}
    found: dict[str, list[Class]] = {}
    for (owner, name), variable in flow.fields.items():
        lists = [v for v in flow.values_of(variable) if isinstance(v, Opaque) and v.name in _LISTS] if owner in owners else []
        held = [place for v in (sharding.held_values(lists) if lists else ()) if (place := cls_of.get(v)) is not None]  # type: ignore[call-overload]
        outer = [place for place in held if place[1] not in inside and _has_layers(structure, place)]
        if outer:
            found.setdefault(name, []).extend(outer)
    return found


def _lists_of(structure: ModelStructure, cls: Class, prefix: str, depth: int) -> Iterator[tuple[str, Class]]:
    """Each list with a class of blocks in it."""
    file, node = cls
    constructor = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
    if constructor is None or depth > _DEEPEST:
        return
    for statement in constructor.body:
        attribute = _own_attribute(statement)
        if attribute is None or not isinstance(statement, ast.Assign):
            continue
        path = f"{prefix}{attribute}"
        for inner, block in _elements(structure, file, constructor, attribute, statement.value):
            yield path + inner, block
        part = _module_class(structure, file.values(statement.value))
        if part is not None:
            yield from _lists_of(structure, part, f"{path}.", depth + 1)


def _elements(
    structure: ModelStructure, file: File, constructor: ast.FunctionDef, attribute: str, value: ast.expr
) -> Iterator[tuple[str, Class]]:
    """The classes of blocks in a container, each with the path of its list behind the attribute."""
    if not isinstance(value, ast.Call):
        return
    name = file.external(value.func)
    if name == "torch.nn.ModuleDict":
        for key, inner in _entries(value):
            yield from ((f".{key}{path}", block) for path, block in _elements(structure, file, constructor, attribute, inner))
    if name not in _LISTS:
        return
    made = [_comprehended(argument) for argument in value.args]
    if name == "torch.nn.ModuleList" and (not value.args or (isinstance(value.args[0], ast.List) and not value.args[0].elts)):
        made = list(_appended(constructor, attribute))
    for element in made:
        block = _module_class(structure, file.values(element)) if isinstance(element, ast.Call) else None
        if block is not None and _has_layers(structure, block):
            yield "", block


def _entries(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """The entries of a ModuleDict that are written out."""
    for argument in call.args:
        if isinstance(argument, ast.Call) and isinstance(argument.func, ast.Name) and argument.func.id == "dict":
            yield from ((k.arg, k.value) for k in argument.keywords if k.arg)
        elif isinstance(argument, ast.Dict):
            for key, value in zip(argument.keys, argument.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value.isidentifier():
                    yield key.value, value


def _comprehended(argument: ast.expr) -> ast.expr | None:
    """What each round of a comprehension makes."""
    value = argument.value if isinstance(argument, ast.Starred) else argument
    return value.elt if isinstance(value, ast.ListComp | ast.GeneratorExp) else None


def _appended(constructor: ast.FunctionDef, attribute: str) -> Iterator[ast.expr]:
    """What a constructor appends to a list of modules."""
    for call in (n for n in ast.walk(constructor) if isinstance(n, ast.Call) and n.args):
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "append"
            and ast.unparse(call.func.value) == f"self.{attribute}"
        ):
            yield call.args[0]


def _own_attribute(statement: ast.stmt) -> str | None:
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    is_own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    return target.attr if is_own and isinstance(target, ast.Attribute) else None


def _module_class(structure: ModelStructure, values: list[Value]) -> Class | None:
    """The one class of the repository that all these values are modules of."""
    classes = {v.cls if isinstance(v, Instance) and not structure.sharding.is_no_module(v) else None for v in values}
    cls = classes.pop() if len(classes) == 1 else None
    return class_of(structure.program, Instance(cls, -1)) if cls is not None else None


def _has_layers(structure: ModelStructure, block: Class) -> bool:
    """Whether a block holds modules, so that it is worth a gather of its own."""
    file, cls = block
    calls = (n for n in ast.walk(cls) if isinstance(n, ast.Call))
    return any(
        (file.external(call.func) or "").startswith("torch.nn.") or _module_class(structure, file.values(call)) for call in calls
    )


# --- how blocks are used --------------------------------------------------------------------------------------


def _is_called(structure: ModelStructure, name: str) -> bool:
    """Whether the methods that a forward runs only call the blocks of each list of this name."""
    for file, method in structure.forward_methods:
        for node in (n for n in ast.walk(method) if isinstance(n, ast.Attribute) and n.attr == name):
            if not _are_called(file, node):
                return False
    return True


def _is_in_loops(structure: ModelStructure, name: str) -> bool:
    """Whether a forward may run what an attribute holds another number of times on each rank: in a loop over something else."""
    for file, method in structure.forward_methods:
        for node in (n for n in ast.walk(method) if isinstance(n, ast.Attribute) and n.attr == name):
            inside: ast.AST = node
            for around in file.ancestors(node):
                if around is method:
                    break
                heads = getattr(around, "generators", [around] if isinstance(around, (ast.For, ast.AsyncFor, ast.While)) else [])
                passed = [ast.unparse(head.iter) for head in heads if hasattr(head, "iter") and inside not in (head, head.iter)]
                if isinstance(around, ast.While) or any(f".{name}" not in over for over in passed):
                    return True
                inside = around
    return False


def _are_in_loops(structure: ModelStructure, lists: dict[str, list[Class]]) -> bool:
    """Whether some of these lists, or parts that hold their blocks, may run another number of times on each rank."""
    read = {n.attr for _, method in structure.forward_methods for n in ast.walk(method) if isinstance(n, ast.Attribute)}
    flow, held = structure.program.flow, set(structure.held)
    blocks = {node for classes in lists.values() for _, node in classes}
    for (owner, name), variable in flow.fields.items():
        if name in read and flow.values[owner] in held and _is_in_loops(structure, name):
            parts = [v for v in flow.values_of(variable) if isinstance(v, (Instance, Opaque))]
            inside = [*parts, *structure.sharding.held_values(parts)]
            places = (class_of(structure.program, Instance(v.cls, -1)) for v in inside if isinstance(v, Instance))
            if any(place is not None and place[1] in blocks for place in places):
                return True
    return False


def _are_called(file: File, node: ast.expr) -> bool:
    """Whether a list that is read here is looped over, indexed or called so that its blocks are only called."""
    parent = file.parents[node]
    if isinstance(parent, ast.Subscript) and parent.value is node:
        return _is_just_called(file, parent) or _are_called(file, parent)
    if isinstance(parent, ast.Call) and parent.func is node:
        return True  # Sequential
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id in _ARRANGE:
        return parent.func.id == "len" or _are_called(file, parent)
    if isinstance(parent, ast.For | ast.comprehension) and parent.iter is node:
        names = {n.id for n in ast.walk(parent.target) if isinstance(n, ast.Name)}
        loop = parent if isinstance(parent, ast.For) else file.parents[parent]
        uses = (n for n in ast.walk(loop) if isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load))
        return all(_is_just_called(file, use) or _is_counter(file, parent.target, use) for use in uses)
    return isinstance(parent, ast.Expr | ast.Compare | ast.If | ast.IfExp | ast.BoolOp)


def _is_just_called(file: File, node: ast.expr) -> bool:
    parent = file.parents[node]
    if not isinstance(parent, ast.Call):
        return False
    return parent.func is node or "checkpoint" in ast.unparse(parent.func)


def _is_counter(file: File, target: ast.expr, use: ast.Name) -> bool:
    """Whether a loop's variable is the number that enumerate() gives."""
    loop = file.parents[target]
    iterated = getattr(loop, "iter", None)
    if not (isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Name) and isinstance(target, ast.Tuple)):
        return False
    if iterated.func.id == "enumerate":
        return isinstance(target.elts[0], ast.Name) and target.elts[0].id == use.id
    if iterated.func.id != "zip" or len(target.elts) != len(iterated.args):
        return False
    at = next((i for i, e in enumerate(target.elts) if isinstance(e, ast.Name) and e.id == use.id), None)
    return at is not None and not isinstance(iterated.args[at], ast.Attribute)


def _has_ties(structure: ModelStructure, block: Class) -> bool:
    """Whether a block may share parameters with something outside of it."""
    file, cls = block
    return any(around is file and file.enclosing_class(tie) is cls for around, tie in structure.ties)
