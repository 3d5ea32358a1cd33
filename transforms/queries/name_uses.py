"""What one use of a parameter's name makes of what the wrappers put into it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from enum import Enum

from .file import File
from .local_names import loop_of

_PRINTS = re.compile(r"builtins\.print|logging\.|warnings\.")
_LOGS = frozenset({"debug", "info", "warning", "error", "print"})
_WRITES_OUT = frozenset({"json.dumps", "pprint.pformat", "builtins.str", "builtins.repr"})
_FILLS = frozenset({"append", "add", "setdefault", "update", "insert", "extend"})
"""Methods that put a name into a collection."""


class Prefix(Enum):
    """What a wrapper puts into names: DDP in front of all of them, FSDP1 there and in front of what each unit holds."""

    DDP = "module."
    FSDP1 = "_fsdp_wrapped_module."
    FLAT = "_flat_param"
    """What FSDP1 called all parameters of a unit where it showed them as one."""


class NameUse(Enum):
    """ASKED: something is decided by the whole name; KEPT: it is stored or handed on; NONE: the prefix makes no difference."""

    NONE = "none"
    ASKED = "asked"
    KEPT = "kept"


def name_use(file: File, use: ast.Name, prefix: Prefix, lacks: Callable[[str], bool]) -> NameUse:
    """What is made of a name where it is read, but for collections of names, which their own uses tell of.

    ``lacks`` says which attributes the model itself surely has not.
    """
    parent = file.parents[use]
    if is_printed(file, use) or _is_stripped(file, use, prefix):
        return NameUse.NONE
    if prefix is Prefix.FLAT:
        return NameUse.ASKED if isinstance(parent, (ast.Compare, ast.Attribute, ast.Call)) else NameUse.KEPT
    if isinstance(parent, ast.Compare):
        inside = len(parent.ops) == 1 and isinstance(parent.ops[0], (ast.In, ast.NotIn)) and parent.comparators[0] is use
        return NameUse.NONE if inside and _is_inner_text(file, parent.left, prefix) else NameUse.ASKED
    if isinstance(parent, ast.Attribute):
        return NameUse.NONE if _asks_for_end(file, parent, prefix, lacks) else NameUse.ASKED
    if isinstance(parent, ast.Call):
        return NameUse.KEPT if getattr(parent.func, "attr", "") in _FILLS else NameUse.ASKED
    return NameUse.KEPT


def is_printed(file: File, use: ast.AST) -> bool:
    """Whether a name, or a collection of names, only goes into a text that is printed or logged."""
    for around in file.ancestors(use):
        if isinstance(around, ast.Call):
            method = around.func.attr if isinstance(around.func, ast.Attribute) else ""
            name = file.external(around.func) or ""
            if name in _WRITES_OUT or (method in ("join", "format") and not name):
                continue
            return bool(_PRINTS.match(name)) or method in _LOGS
        if isinstance(around, ast.Raise):
            return True
        if not isinstance(around, ast.JoinedStr | ast.FormattedValue | ast.BinOp | ast.Tuple):
            return False
    return False


def _is_stripped(file: File, use: ast.Name, prefix: Prefix) -> bool:
    """Whether all that the wrapper put into a name is taken out again, here or in a function that gets it."""
    parent = file.parents[use]
    if prefix is not Prefix.FLAT and isinstance(parent, ast.Attribute) and parent.attr == "replace":
        call = file.parents[parent]
        given = [a.value for a in call.args if isinstance(a, ast.Constant)] if isinstance(call, ast.Call) else []
        return given == [prefix.value, ""]
    if prefix is Prefix.FLAT or not isinstance(parent, ast.Call) or use not in parent.args:
        return False
    bodies = [file.program.function_node(callee)[1] for callee in file.program.callees(file, parent)]
    return bool(bodies) and all(_takes_out(body, prefix) for body in bodies)


def _takes_out(function: ast.AST, prefix: Prefix) -> bool:
    """Whether a function says what only FSDP1 put in; or replaces ``module.``, or cuts a name behind it."""
    nodes = list(ast.walk(function))
    if prefix is Prefix.FSDP1:
        return any(isinstance(n, ast.Constant) and prefix.value.rstrip(".") in str(n.value) for n in nodes)
    calls = [n for n in nodes if isinstance(n, ast.Call) and n.args and getattr(n.args[0], "value", "") == prefix.value]
    methods = {getattr(call.func, "attr", "") for call in calls}
    cuts = any(isinstance(n, ast.Slice) and n.lower is not None for n in nodes)
    return not methods.isdisjoint({"replace", "removeprefix"}) or ("startswith" in methods and cuts)


def _asks_for_end(file: File, method: ast.Attribute, prefix: Prefix, lacks: Callable[[str], bool]) -> bool:
    """Whether ``name.endswith(text)`` or ``name.split(".")[-1]`` is asked, where the wrapper puts nothing in."""
    call = file.parents[method]
    if not isinstance(call, ast.Call) or call.func is not method:
        return False
    if method.attr == "endswith":
        texts = _texts_of(file, call.args[0]) if call.args else None
        if prefix is Prefix.DDP:  # it stands in front of all names, and gives those of the model's own attributes a dot
            own = [text.split(".")[1] for text in texts or () if text.startswith(".")]
            return texts is not None and not any("module" in text for text in texts) and all(map(lacks, own))
        return texts is not None and not any(_touches(text, prefix) for text in texts)
    part = file.parents[call]
    if method.attr not in ("split", "rsplit", "rpartition") or not isinstance(part, ast.Subscript):
        return False
    index = part.slice.operand if isinstance(part.slice, ast.UnaryOp) and isinstance(part.slice.op, ast.USub) else None
    number = index.value if isinstance(index, ast.Constant) else None
    return number == 1 or (number is not None and prefix is Prefix.DDP and method.attr == "split")


def _is_inner_text(file: File, text: ast.expr, prefix: Prefix) -> bool:
    """Whether a text is found in a name with the prefix exactly if it is found in the name without it."""
    texts = _texts_of(file, text)
    return texts is not None and not any(_touches(one, prefix) for one in texts)


def _texts_of(file: File, text: ast.expr) -> list[str] | None:
    """The texts that an expression may be, or that a loop takes it from; None if they are not all seen."""
    if isinstance(text, ast.Constant):
        return [text.value] if isinstance(text.value, str) else None
    if isinstance(text, ast.Tuple):
        return _written_texts(file, text)
    bound = file.assignments.get(ast.dump(text), ()) if isinstance(text, ast.Name) else ()
    if bound and len(bound) == len(file.bindings.get(ast.unparse(text), ())):
        written = [value.value for _, value in bound if isinstance(value, ast.Constant) and isinstance(value.value, str)]
        return written if len(written) == len(bound) else None
    loop = loop_of(file, text) if isinstance(text, ast.Name) else None
    return _written_texts(file, loop.iter) if loop is not None else None


def _written_texts(file: File, node: ast.expr) -> list[str] | None:
    """The texts in a list that is written out, here or where its name is bound."""
    if isinstance(node, ast.Name):
        bound = [value for _, value in file.assignments.get(ast.dump(node), ())]
        changed = rf"\b{node.id}\s*(?:\+=|\.(?:append|extend|insert|add|update)\()"
        node = bound[0] if len(bound) == 1 and not re.search(changed, file.source.text) else node
    if not isinstance(node, ast.List | ast.Tuple | ast.Set):
        return None
    if not all(isinstance(e, ast.Constant) and isinstance(e.value, str) for e in node.elts):
        return None
    return [str(e.value) for e in node.elts if isinstance(e, ast.Constant)]


def _touches(text: str, prefix: Prefix) -> bool:
    if prefix is Prefix.FSDP1:  # it stands anywhere between two parts of a name
        inner = text.rstrip(".")
        return "." in inner or inner in prefix.value
    return not text or text.startswith(".") or any(text in end for end in ("module.", "module")) or "module." in text


def loop_targets(loop: ast.AST) -> Iterator[str]:
    """The variable that a loop over pairs of names and tensors, or over names, has each name in."""
    target = getattr(loop, "target", None)
    if isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[0]
    if isinstance(target, ast.Name):
        yield target.id
