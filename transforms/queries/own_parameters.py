"""Parameters that a module reads off itself: whole tensors in its methods, as its forward has them.

A method of a module runs inside of a forward, or is called so that it gathers as one does (FS308). So the module's own
parameters, and those of its single layers, are whole there. What lies deeper may belong to a unit of its own, and what
was made elsewhere may be another model's.
"""

from __future__ import annotations

import ast

from ..facts.facts import NOTHING
from ..flow.library import MODULES_OF_MODULES, PARAMETER
from ..flow.values import ClassValue, Constant, Derived, Opaque, Value
from .file import File
from .sharding import ShardingQueries


def is_own_parameter(sharding: ShardingQueries, file: File, node: ast.expr) -> bool:
    """Whether an expression is ``self.weight``, or ``self.layer.weight`` of a single layer, in a method of its module."""
    while isinstance(node, ast.Attribute) and node.attr == "data":
        node = node.value
    cls = _class_of_self(sharding, file, node)
    if cls is None or not isinstance(node, ast.Attribute):
        return False
    owner = node if isinstance(node.value, ast.Name) else node.value
    if not (isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name)):
        return False
    values = [v for v in file.values(owner) if not (isinstance(v, Constant) and v.value is None)]
    return bool(values) and all(_is_made_by(file, cls, v, is_layer=owner is not node) for v in values)


def _class_of_self(sharding: ShardingQueries, file: File, node: ast.expr) -> ClassValue | None:
    """The class around an expression that begins with ``self``, if its objects are modules."""
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    around = file.enclosing_class(node) if isinstance(root, ast.Name) and root.id == "self" else None
    classes = [v for v in file.values(around) if isinstance(v, ClassValue)] if around is not None else []
    return next((cls for cls in classes if sharding.makes_modules(cls)), None)


def _is_made_by(file: File, cls: ClassValue, value: Value, is_layer: bool) -> bool:
    """Whether a parameter, or a layer of torch without parts, was made in a method of a class or one related to it."""
    made = value.owner if isinstance(value, Derived) and value.kind == "parameters" else value
    if not isinstance(made, Opaque) or not made.name.startswith("torch.nn.") or made.name in MODULES_OF_MODULES:
        return False
    if not is_layer and made.name not in PARAMETER:
        return False
    flow = file.program.flow
    index, function = flow.file_of_call(made.site), flow.calls[made.site].owner
    owner = flow.files[index].functions[function].owner_class if function >= 0 else NOTHING
    maker = ClassValue(index, owner)
    return owner != NOTHING and (maker in flow.ancestors(cls) or cls in flow.ancestors(maker))
