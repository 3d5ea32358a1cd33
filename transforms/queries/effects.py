"""What a function does with parameters: whether it computes with them, or only asks for names, shapes and counts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from ..facts.facts import ANY_KEY
from ..flow.library import has_no_parameters
from ..flow.values import Bound, ClassValue, Constant, Container, Derived, FunctionValue, Opaque, Unknown, Value
from .annotated_types import says_text
from .assignments import assigned_values
from .file import File
from .plain_objects import makes_modules
from .program import Program

_ASKING = frozenset(
    {"numel", "nelement", "size", "dim", "parameters", "named_parameters", "modules", "named_modules", "children", "buffers",
     "named_children", "named_buffers", "items", "keys", "values", "append", "extend", "add", "join", "format", "startswith",
     "endswith", "split", "replace", "info", "debug", "warning", "get", "element_size", "is_floating_point", "update",
     "signature", "lower", "upper", "requires_grad_", "train", "eval", "sort", "setdefault", "pop", "copy", "union", "strip",
     "add_param_group"}
)  # fmt: skip
"""Methods that read no numbers out of a parameter, or do nothing with tensors at all."""
_PLAIN_MODULES = ("builtins.", "inspect.", "math.", "logging.", "torch.optim.", "re.", "os.", "json.", "collections.",
                  "itertools.", "functools.", "typing.", "time.", "warnings.", "torch.device", "torch.cuda.",
                  "torch.distributed.optim.")  # fmt: skip
_TAKES_TEXTS = re.compile(r"(?i)(tokeni[sz]er|(\b|_)(dict(ionary)?|vocab(ulary)?))$")
"""What turns texts into numbers; a tokenizer of images is a model."""
_DEEPEST = 3
_MOST_FUNCTIONS = 60


def only_asks(program: Program, file: File, call: ast.Call, seen: set[FunctionValue] | None = None) -> bool:
    """Whether all that a call can run asks for names, shapes and counts, so that no parameter has to be whole."""
    values = file.called_values(call)
    functions = program.callees(file, call) or [v for v in values if isinstance(v, FunctionValue)]
    if not functions and not values:
        functions = [method for method in _methods_of_modules(program, call) if method not in (seen or ())]
    own = seen is None and all(_leaves_its_object_alone(*program.function_node(function)) for function in functions)
    seen = set() if seen is None else seen
    return bool(functions) and (own or all(_function_only_asks(program, function, seen) for function in functions))


def _methods_of_modules(program: Program, call: ast.Call) -> list[FunctionValue]:
    """The methods by the name that is called on something unknown, where all of that name are of modules."""
    flow = program.flow
    methods = list(flow.methods_by_name().get(call.func.attr, ())) if isinstance(call.func, ast.Attribute) else []
    owners = [ClassValue(m.file, flow.files[m.file].functions[m.index].owner_class) for m in methods]
    return methods if all(makes_modules(flow, owner) for owner in owners) else []


def _function_only_asks(program: Program, value: FunctionValue, seen: set[FunctionValue]) -> bool:
    if value in seen or len(seen) > _MOST_FUNCTIONS:
        return value in seen
    file, function = program.function_node(value)
    seen.add(value)
    for node in ast.walk(function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return False
        if isinstance(node, ast.Call) and not _call_only_asks(program, file, node, seen):
            return False
    return True


def _leaves_its_object_alone(file: File, function: ast.AST) -> bool:
    """Whether a method reads nothing off the object that it is called on but numbers, strings, tables of such, and modules
    without parameters, such as a loss."""
    if not isinstance(function, ast.FunctionDef) or not isinstance(file.parents.get(function), ast.ClassDef):
        return False
    if not function.args.args or (own := function.args.args[0].arg) not in ("self", "cls"):
        return False
    named = [n for n in ast.walk(function) if isinstance(n, ast.Name)]
    if not {n.id for n in named}.isdisjoint({"super", "__class__"}):
        return False
    return all(_is_of_literals(file, file.parents[n]) for n in named if n.id == own)


def _is_of_literals(file: File, node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute):
        return False
    if values := file.values(node):
        return all(_has_no_parameters(file.program, value) for value in values)
    made = assigned_values(file, node)  # of a class of which no object is seen
    names = [file.external(one.func) if isinstance(one, ast.Call) else None for one in made]
    return bool(made) and all(name is not None and has_no_parameters(name) for name in names)


def _has_no_parameters(program: Program, value: Value, depth: int = 0) -> bool:
    if isinstance(value, Container) and depth < _DEEPEST:
        flow = program.flow
        fields = (flow.fields.get((flow.ids[value], key)) for key in _ENTRIES)
        held = (v for field in fields if field is not None for v in flow.values_of(field))
        return all(_has_no_parameters(program, v, depth + 1) for v in held)
    is_entry = isinstance(value, Unknown) and depth > 0  # of a table, which is no part of a module
    return is_entry or isinstance(value, Constant) or (isinstance(value, Opaque) and has_no_parameters(value.name))


_ENTRIES = (ANY_KEY, "[any]", "[0]", "[1]")


def _call_only_asks(program: Program, file: File, call: ast.Call, seen: set[FunctionValue]) -> bool:
    name = file.external(call.func)
    if name is not None:
        return name.startswith(_PLAIN_MODULES)
    if isinstance(call.func, ast.Attribute) and call.func.attr in _ASKING:
        return True
    if isinstance(call.func, ast.Name) and call.func.id in ("cls", "super"):
        return True
    if isinstance(call.func, ast.Attribute) and _TAKES_TEXTS.search(ast.unparse(call.func.value)):
        return bool(call.args) and says_text(file, call.args[0])
    owner = file.values(call.func.value) if isinstance(call.func, ast.Attribute) else []
    if owner and all(isinstance(v, Constant) and v.value is None for v in owner):
        return True  # a part that this model was made without
    return only_asks(program, file, call, seen)


def computes_with_parameters(program: Program, file: File, method: ast.Attribute) -> bool:
    """Whether ``model.parameters``, or its kin, is called for a loop that does more than ask for names, shapes and counts."""
    call = file.parents[method]
    if method.attr not in ("parameters", "named_parameters") or not isinstance(call, ast.Call) or call.func is not method:
        return False
    inside: ast.AST = call
    for around in file.ancestors(call):
        if isinstance(around, (ast.For, ast.AsyncFor)) and inside is around.iter:
            return not all(_statement_only_asks(program, file, statement) for statement in around.body)
        if isinstance(around, _COMPREHENSIONS) and isinstance(inside, ast.comprehension):
            made = [around.key, around.value] if isinstance(around, ast.DictComp) else [around.elt]
            return not all(_statement_only_asks(program, file, part) for part in (*made, *inside.ifs))
        if isinstance(around, ast.stmt):
            break
        inside = around
    return False


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _statement_only_asks(program: Program, file: File, node: ast.AST) -> bool:
    """Whether part of a loop over parameters reads no numbers out of them."""
    return not any(
        (isinstance(inner, ast.Call) and not _call_only_asks(program, file, inner, set()))
        or (isinstance(inner, ast.BinOp) and any(isinstance(side, (ast.Name, ast.Attribute)) and not _is_asked(side)
                                                 for side in (inner.left, inner.right)) and _is_of_tensors(file, inner))
        for inner in ast.walk(node)
    )  # fmt: skip


def _is_asked(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("shape", "dtype", "ndim", "device")


def _is_of_tensors(file: File, node: ast.BinOp) -> bool:
    return any(isinstance(v, Derived) for side in (node.left, node.right) for v in file.values(side))


_WRITES = frozenset({"copy_", "add_", "sub_", "mul_", "div_", "lerp_", "fill_", "zero_", "clamp_", "normal_", "uniform_",
                     "renorm_", "addcmul_", "addcdiv_"})  # fmt: skip


_REBUILDS = re.compile(r"torch\.nn\.utils\.((remove_)?(weight|spectral)_norm$|prune\.|parametriz)")


def edits_parameters(program: Program, values: Iterable[Value]) -> bool:
    """Whether a method of a model gives nothing back, and works on gradients or writes tensors in place."""
    for function in [v.function if isinstance(v, Bound) else v for v in values if isinstance(v, (Bound, FunctionValue))]:
        file, node = program.function_node(function)
        nodes = list(ast.walk(node))
        gives = any(isinstance(node, (ast.Return, ast.Yield)) and node.value is not None for node in nodes)
        trains = any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in nodes)
        if not gives and not trains and (any(map(_edits, nodes)) or _initializes(program, file, node, 0)):
            return True
    return False


def rebuilds_parameters(program: Program, values: Iterable[Value]) -> bool:
    """Whether methods of models give nothing back, and take parameters away or give others, by those of their parts too."""
    functions = [v.function if isinstance(v, Bound) else v for v in values if isinstance(v, (Bound, FunctionValue))]
    places = list(map(program.function_node, functions))
    gives = any(isinstance(n, (ast.Return, ast.Yield)) and n.value is not None for _, node in places for n in ast.walk(node))
    return not gives and any(_rebuilds(program, *place) for place in places)


def replaces_own_parts(program: Program, values: Iterable[Value]) -> bool:
    """Whether a method gives its object other parameters, or layers, than it was made with: ``self.head = nn.Linear(4, 9)``."""
    functions = [v.function if isinstance(v, Bound) else v for v in values if isinstance(v, (Bound, FunctionValue))]
    for file, node in map(program.function_node, functions):
        assigned = [n for n in ast.walk(node) if isinstance(n, ast.Assign)]
        copied = [t for n in assigned if getattr(n.value, "id", "") == "self" for t in n.targets]
        own = {"self", *(t.id for t in copied if isinstance(t, ast.Name))}
        for assign in assigned:
            is_own = any(isinstance(t, ast.Attribute) and getattr(t.value, "id", "") in own for t in assign.targets)
            made = file.external(assign.value.func) or "" if isinstance(assign.value, ast.Call) else ""
            if is_own and re.fullmatch(r"torch\.nn\.(\w+\.)*[A-Z]\w*", made):
                return True
    return False


def goes_by_own_state(program: Program, values: Iterable[Value]) -> bool:
    """Whether methods of models load their own state dict, or read it: which gathers, or distributes, by itself."""
    functions = [v.function if isinstance(v, Bound) else v for v in values if isinstance(v, (Bound, FunctionValue))]
    nodes = (n for _, node in map(program.function_node, functions) for n in ast.walk(node) if isinstance(n, ast.Attribute))
    return any(n.attr in ("state_dict", "load_state_dict") and getattr(n.value, "id", "") == "self" for n in nodes)


def _rebuilds(program: Program, file: File, function: ast.AST, depth: int = 0) -> bool:
    for call in (n for n in ast.walk(function) if isinstance(n, ast.Call)):
        if _REBUILDS.match(file.external(call.func) or ""):
            return True
        called = map(program.function_node, program.callees(file, call)) if depth < _DEEPEST else ()
        if any(_rebuilds(program, owner, node, depth + 1) for owner, node in called):
            return True
    return False


def _initializes(program: Program, file: File, function: ast.AST, depth: int) -> bool:
    """Whether a function fills parameters as when a model is made, in those that it calls too."""
    for call in (n for n in ast.walk(function) if isinstance(n, ast.Call)):
        if (file.external(call.func) or "").startswith("torch.nn.init.") or getattr(call.func, "attr", "") == "reset_parameters":
            return True
        called = map(program.function_node, program.callees(file, call)) if depth < _DEEPEST else ()
        if any(_initializes(program, owner, node, depth + 1) for owner, node in called):
            return True
    return False


def _edits(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and node.attr == "grad":
        return True
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(_is_data_of_self(target) for target in targets)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _WRITES


def _is_data_of_self(node: ast.expr) -> bool:
    """``self.weight.data``, ``self.weight.data[0]``."""
    base, is_data = node, False
    while isinstance(base, (ast.Attribute, ast.Subscript)):
        is_data = is_data or (isinstance(base, ast.Attribute) and base.attr == "data")
        base = base.value
    return is_data and isinstance(base, ast.Name) and base.id == "self"
