"""What dynamic code did: which functions calls entered, and what variables held of what the repository defines.

For `to-fsdp2 trace`. A registry, a plugin, `hydra.utils.instantiate` hide from the text which code runs; here it is seen
by the interpreter's tracing. Only the repository's own files are followed, line by line.
"""

from __future__ import annotations

import ast
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType, MemberDescriptorType
from typing import Any

from .user_code import Function, Statement, UserFile, UserFiles

_MISSING = object()
_MOST_LOOKS = 8
"""How often the arguments of a function that other code calls from one place are looked at."""
_MOST_READS = 200
"""How often the owners of a statement's attributes are looked at."""
_SUSPENDED = 0x20 | 0x80 | 0x100 | 0x200
"""Flags of generators and coroutines, which are entered again wherever they have stopped."""

Fact = dict[str, Any]


class ObservedCalls:
    """Follows the repository's own code in all threads."""

    def __init__(self, root: str) -> None:
        self.files = UserFiles(root)
        self.numbers: Callable[[object], Fact | None] = lambda _: None
        """Names an object that training knows: ``{"wrap": 0}``, ``{"optimizer": 1}``."""
        self._calls: dict[tuple[str, int, int], dict[str, Fact]] = {}
        self._values: dict[tuple[str, int, int, str], dict[str, Fact]] = {}
        self._passed: dict[tuple[str, int, int, str, str], Fact] = {}
        self._owners: dict[tuple[str, int, int, str], dict[str, Fact]] = {}
        self._reads: dict[int, int] = {}
        self._entered: set[tuple[CodeType, int, CodeType, type | None]] = set()
        self._looks: dict[tuple[CodeType, int, CodeType], int] = {}
        self._returned: dict[int, tuple[weakref.ref[Any], Fact]] = {}

    def start(self) -> None:
        """Start in this thread and in those that start later."""
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def as_fields(self) -> dict[str, Any]:
        """The fields of the `observed` event."""
        return {
            "lines": {file.name: sorted(file.lines) for file in self.files.all()},
            "calls": [
                {"file": file, "end_line": line, "end_column": column, "called": list(called.values())}
                for (file, line, column), called in self._calls.items()
            ],
            "values": [
                {"file": file, "line": line, "column": column, "expression": text, "held": list(held.values())}
                for (file, line, column, text), held in self._values.items()
                if any(fact not in ({"other": True}, {"none": True}) for fact in held.values())
            ],
            "passed": list(self._passed.values()),
            "owners": [
                {"file": file, "line": line, "column": column, "expression": text, "held": list(held.values())}
                for (file, line, column, text), held in self._owners.items()
                if any("wrap" in fact for fact in held.values())
            ],
        }  # fmt: skip

    # --- tracing ------------------------------------------------------------------------------------------

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        file = self.files.of(code.co_filename)
        if file is None:
            return None
        function = file.function(code)
        file.lines.add(frame.f_lineno)
        if function is not None and function.name != "<module>" and not code.co_flags & _SUSPENDED:
            self._look_at_call(frame, file, function)
        statements = function.statements if function is not None else {}
        running: Statement | None = None
        lines = file.lines

        def follow(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal running
            if event == "line":
                number = frame.f_lineno
                lines.add(number)
                statement = statements.get(number)
                if statement is not running:
                    if running is not None:
                        self._look_at_bound(frame, file, running)
                    running = statement
                    if statement is not None and statement.owners:
                        self._look_at_owners(frame, file, statement)
            elif event == "exception":
                running = None  # what it would have bound holds something else
            elif event == "return":
                if running is not None:
                    self._look_at_bound(frame, file, running)
                if argument is not None and function is not None:
                    self._look_at_returned(frame, file, function, argument)
            return follow

        return follow

    def _look_at_bound(self, frame: FrameType, file: UserFile, statement: Statement) -> None:
        for (line, column), target in statement.bound:
            held = _read(frame, target)
            if held is not _MISSING:
                facts = self._values.setdefault((file.name, line, column, ast.unparse(target)), {})
                fact = self._describe(held)
                facts[str(fact)] = fact

    def _look_at_owners(self, frame: FrameType, file: UserFile, statement: Statement) -> None:
        """Which objects that training knows are asked for their attributes, and whether others are as well."""
        looks = self._reads[id(statement)] = self._reads.get(id(statement), 0) + 1
        if looks > _MOST_READS:
            return
        for (line, column), path in statement.owners:
            held = _read(frame, path)
            if held is not _MISSING:
                fact = self.numbers(held) or {"other": True}
                self._owners.setdefault((file.name, line, column, ast.unparse(path)), {})[str(fact)] = fact

    def _look_at_returned(self, frame: FrameType, file: UserFile, function: Function, value: object) -> None:
        """What the repository hands to other code, which may hand it back."""
        back = frame.f_back
        if back is None or self.files.of(back.f_code.co_filename) is not None or not self._is_of_interest(value):
            return
        try:
            reference = weakref.ref(value)
        except TypeError:
            return
        self._returned.setdefault(id(value), (reference, {"returned_by": _name(file, function)}))

    def _look_at_call(self, frame: FrameType, file: UserFile, function: Function) -> None:
        back = frame.f_back
        if back is None:
            return
        caller = self.files.of(back.f_code.co_filename)
        if caller is not None:
            self._look_at_direct_call(frame, file, function, back, caller)
            return
        while back is not None and caller is None:
            back = back.f_back
            caller = self.files.of(back.f_code.co_filename) if back is not None else None
        if back is not None and caller is not None:
            self._look_at_arguments(frame, file, function, back, caller)

    def _look_at_direct_call(
        self, frame: FrameType, file: UserFile, function: Function, back: FrameType, caller: UserFile
    ) -> None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        owner = first if isinstance(first, type) else type(first) if first is not None else None
        key = (back.f_code, back.f_lasti, code, owner)
        if key in self._entered:
            return
        self._entered.add(key)
        end = caller.end_of_call(back.f_code, back.f_lasti)
        if end is None:
            return
        fact = _name(file, function)
        defined = self._class(owner) if owner is not None else None
        if defined is not None:
            fact["receiver"] = {**defined, "is_class": isinstance(first, type)}
        self._calls.setdefault((caller.name, *end), {})[str(fact)] = fact

    def _look_at_arguments(
        self, frame: FrameType, file: UserFile, function: Function, back: FrameType, caller: UserFile
    ) -> None:
        """Which of the caller's variables other code handed on to a function's parameters."""
        code, within = frame.f_code, caller.function(back.f_code)
        key = (back.f_code, back.f_lasti, code)
        self._looks[key] = self._looks.get(key, 0) + 1
        statement = within.statements.get(back.f_lineno) if within is not None else None
        if statement is None or self._looks[key] > _MOST_LOOKS:
            return
        for parameter in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            value = frame.f_locals.get(parameter)
            if parameter in ("self", "cls") or not self._is_of_interest(value):
                continue
            for (line, column), path in statement.read:
                if _read(back, path) is value:
                    to = {**_name(file, function), "parameter": parameter}
                    text = ast.unparse(path)
                    fact = {"file": caller.name, "line": line, "column": column, "expression": text, "to": to}
                    self._passed[caller.name, line, column, text, str(to)] = fact

    # --- objects ------------------------------------------------------------------------------------------

    def _describe(self, value: object) -> Fact:
        """What an object is, in terms of what the repository defines and hands out."""
        if value is None:
            return {"none": True}
        number = self.numbers(value)
        known = self._returned.get(id(value))
        if known is not None and known[0]() is value:
            return {**known[1], **(number or {})}
        if number is not None:
            return number
        if isinstance(value, FunctionType):
            file = self.files.of(value.__code__.co_filename)
            function = file.function(value.__code__) if file is not None else None
            return {"other": True} if file is None or function is None else {"function": _name(file, function)}
        if isinstance(value, type):
            defined = self._class(value)
            return {"other": True} if defined is None else {"class": defined}
        defined = self._class(type(value))
        return {"other": True} if defined is None else {"instance": defined}

    def _is_of_interest(self, value: object) -> bool:
        if value is None or isinstance(value, (str, int, float, type)):
            return False
        return self.numbers(value) is not None or self._class(type(value)) is not None

    def _class(self, cls: type) -> Fact | None:
        """A class of the repository, where its text is: a decorator may have given it the name of another one."""
        module = sys.modules.get(cls.__module__)
        path, name = getattr(module, "__file__", None), cls.__qualname__
        bodies = _bodies(cls)
        if bodies and (path, name) not in bodies:
            path, name = bodies[0]
        file = self.files.of(path) if isinstance(path, str) else None
        return None if file is None else {"file": file.name, "name": name.replace("<locals>.", "")}


def _name(file: UserFile, function: Function) -> Fact:
    return {"file": file.name, "line": function.line, "name": function.name}


def _bodies(cls: type) -> list[tuple[str, str]]:
    """The files, and names, of the class bodies that the methods of a class stand in. Python 3.10 does not tell."""
    functions = [getattr(value, "fget", None) or value for value in vars(cls).values()]
    codes = [value.__code__ for value in functions if isinstance(value, FunctionType)]
    names = [(code.co_filename, getattr(code, "co_qualname", "").rpartition(".")[0]) for code in codes]
    return [(file, name) for file, name in names if name and not name.endswith("<locals>")]


def _read(frame: FrameType, path: ast.expr) -> object:
    """The value of a name or a dotted path, without running any code of the objects on the way."""
    names = list(_names(path))
    first = names.pop()
    value = frame.f_locals.get(first, frame.f_globals.get(first, _MISSING))
    while names and value is not _MISSING:
        value = _attribute(value, names.pop())
    return value


def _names(path: ast.expr) -> Iterator[str]:
    while isinstance(path, ast.Attribute):
        yield path.attr
        path = path.value
    assert isinstance(path, ast.Name)
    yield path.id


def _attribute(owner: object, name: str) -> object:
    try:
        own = object.__getattribute__(owner, "__dict__")
    except (AttributeError, TypeError):
        own = {}
    if name in own:
        return own[name]
    modules = own.get("_modules")
    if isinstance(modules, dict) and name in modules:
        return modules[name]
    for cls in type(owner).__mro__:
        if name in vars(cls):
            found = vars(cls)[name]
            if isinstance(found, MemberDescriptorType):
                return found.__get__(owner) if owner is not None else _MISSING
            return _MISSING if hasattr(type(found), "__get__") else found
    return _MISSING
