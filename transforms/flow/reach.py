"""Which files a wrapped model travels through, so that a huge repository need not be read whole.

A value passes from file to file only where one imports the other. So the files next to a carrier (a file in which
a wrapped model, or a function or class that hands one on, is seen) are enough to find the next carriers.
"""

from __future__ import annotations

from collections.abc import Callable

from .flow import Flow
from .values import Annotated, Bound, ClassValue, Derived, FunctionValue, Instance, Wrapped


def carriers(flow: Flow) -> dict[int, set[str]]:
    """The files in which anything to do with a wrapped model is seen, by index.

    With each, the module-level names through which another file could take part: whoever imports the file and
    mentions none of them cannot.
    """
    models = {
        number
        for number, value in enumerate(flow.values)
        if isinstance(value.owner if isinstance(value, Derived) else value, (Wrapped, Annotated))
    }
    into_wraps = flow.reaching([flow.field(value, "module") for value in flow.values if isinstance(value, Wrapped)])

    def holds_model(variable: int) -> bool:
        held = flow.points_to[variable]
        return variable in into_wraps or (held is not None and not models.isdisjoint(held))

    functions, classes = _telling_definitions(flow, holds_model)
    telling = set(models)
    for number, value in enumerate(flow.values):
        function = value.function if isinstance(value, Bound) else value
        cls = value.cls if isinstance(value, Instance) else value
        if function in functions or cls in classes:
            telling.add(number)
    found: dict[int, set[str]] = {}
    for index, file in enumerate(flow.files):
        start = flow.variable_offsets[index]
        if any(_overlap(flow, variable, telling) for variable in range(start, start + len(file.lines))):
            found[index] = {name for name, cell in file.names.items() if _overlap(flow, cell + start, telling)}
    return found


def _overlap(flow: Flow, variable: int, numbers: set[int]) -> bool:
    held = flow.points_to[variable]
    return held is not None and not numbers.isdisjoint(held)


def _telling_definitions(
    flow: Flow, holds_model: Callable[[int], bool]
) -> tuple[set[FunctionValue], set[ClassValue]]:
    """Functions that take or return a model, and classes with such a method or with a model in an attribute."""
    functions: set[FunctionValue] = set()
    classes: set[ClassValue] = set()
    for index, file in enumerate(flow.files):
        offset = flow.variable_offsets[index]
        for position, function in enumerate(file.functions):
            passed = [function.returns, *(v for _, v in [*function.positional, *function.keyword_only])]
            if any(holds_model(variable + offset) for variable in passed):
                functions.add(FunctionValue(index, position))
                if function.owner_class >= 0:
                    classes.add(ClassValue(index, function.owner_class))
    for (number, _), variable in flow.fields.items():
        value = flow.values[number]
        if isinstance(value, Instance) and holds_model(variable):
            classes.add(value.cls)
    return functions, classes
