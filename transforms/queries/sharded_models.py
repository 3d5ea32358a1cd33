"""Which expressions are models that the code itself hands to ``fully_shard``.

``fully_shard`` works in place, so a model is known by what it is, not by what the call gives back. An answer is given
only where nothing else can come to an expression.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..flow.flow import Flow
from ..flow.values import Constant, Container, Derived, FunctionValue, Instance, Opaque, Optimizer, Unknown, Value
from .file import File
from .program import Program
from .registered_functions import link_registered
from .written_models import WrittenModels

FULLY_SHARD = "torch.distributed.fsdp.fully_shard"
_DEEPEST = 4
_AROUND = ".checkpoint_wrapper"
"""What is put around a sharded model, and hands all that is asked of it on to the model."""


@dataclass(frozen=True, eq=False)
class ShardCall:
    """One call of ``fully_shard``; ``model`` is what it is given, None where that is not written."""

    file: File
    node: ast.Call
    model: ast.expr | None

    @property
    def line(self) -> int:
        """The line that it stands on."""
        return self.node.lineno


ShardCalls = tuple[ShardCall, ...]


class ShardedModels:
    """The models of one program that are given to ``fully_shard``."""

    def __init__(self, program: Program) -> None:
        self.program = program
        copies = _Copies(program.flow)
        registered = link_registered(program, set().union(*(copies.origins(call) for call in self.calls)))
        self.written = WrittenModels(program, self._known, registered)
        self._name_unknown()

    def _name_unknown(self) -> None:
        """Gives what is sharded, but comes from out of sight, a value of its own, so that it can be followed."""
        flow = self.program.flow
        copies = _Copies(flow)
        for variable in sorted(set().union(*(copies.origins(call) for call in self.calls))):
            if not flow.values_of(variable) and (variable not in copies.sources or variable in copies.made):
                flow.add(variable, Unknown(variable))
        flow.solve()

    @cached_property
    def calls(self) -> list[ShardCall]:
        """Every call of ``fully_shard``, in the order of the files."""
        results = [v for v in self.program.flow.values if isinstance(v, Opaque) and v.name == FULLY_SHARD]
        return [self._call(site) for site in sorted({value.site for value in results})]

    def _call(self, site: int) -> ShardCall:
        file, node = self.program.call_node(site)
        named = next((keyword.value for keyword in node.keywords if keyword.arg == "module"), None)
        given = node.args[0] if node.args and not isinstance(node.args[0], ast.Starred) else named
        return ShardCall(file, node, given)

    def of(self, file: File, node: ast.AST) -> ShardCalls:
        """The calls that shard what an expression is; none where it may be anything else, or nobody knows."""
        return self._known(file, node) or self.written.of(file, node)

    def _known(self, file: File, node: ast.AST) -> ShardCalls:
        return self._of_known(file, node, known_values(file, node))

    def called(self, file: File, call: ast.Call) -> ShardCalls:
        """The same of what a call calls: ``self.model`` has no value by itself in ``self.model(x)``."""
        values = [v for v in file.called_values(call) if not (isinstance(v, Constant) and v.value is None)]
        return self._of_known(file, call.func, values) or self.written.of(file, call.func)

    def _of_known(self, file: File, node: ast.AST, values: Sequence[Value]) -> ShardCalls:
        found = () if any(self._is_made_often(v) for v in values) else self.of_values(values)
        return found or self._by_name(file, node)

    def of_values(self, values: Sequence[Value]) -> ShardCalls:
        """The calls that shard every one of these values."""
        if not values:
            return ()
        found = [self._of_value(value) for value in values]
        return tuple(dict.fromkeys(call for calls in found for call in calls)) if all(found) else ()

    def of_owners(self, file: File, node: ast.AST, kinds: Iterable[str]) -> ShardCalls:
        """The calls that shard the models which an expression's parameters, gradients … are taken from, all of them."""
        values, kinds = known_values(file, node), tuple(kinds)
        if values and all(isinstance(v, Derived) and v.kind in kinds for v in values):
            if calls := self.of_derived(v for v in values if isinstance(v, Derived)):
                return calls
        return self.written.of_parts(file, node, kinds) if isinstance(node, ast.expr) else ()

    def of_derived(self, values: Iterable[Derived]) -> ShardCalls:
        """The calls that shard the models which all these values are taken from."""
        owners: list[Value] = []
        for value in values:
            owner: object = value
            while isinstance(owner, Derived):
                owner = owner.owner
            owners.append(owner)  # type: ignore[arg-type]
        if any(isinstance(owner, Optimizer) or self._is_made_often(owner) for owner in owners):
            return ()
        return self.of_values(owners)

    def of_optimizer(self, value: Optimizer) -> ShardCalls:
        """The calls that shard the models which all parameters of an optimizer are those of."""
        call = self.program.flow.calls[value.site]
        handed = call.arguments[0] if call.arguments else dict(call.keywords).get("params", -1)
        held = list(self._taken(self.program.flow.values_of(handed), 0)) if handed >= 0 else []
        derived = [v for v in held if isinstance(v, Derived)]
        found = self.of_derived(derived) if derived and len(derived) == len(held) else ()
        if found or not self.program.is_written_as_call(value.site):
            return found
        file, node = self.program.call_node(value.site)
        given = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "params"), None)
        return self.written.of_parts(file, given, ("parameters",)) if given is not None else ()

    def elements(self, value: Container) -> Iterator[Value]:
        """What a list, tuple or dict may hold."""
        for held in self.entries(value):
            yield from held

    def entries(self, value: Container) -> Iterator[list[Value]]:
        """What each entry of a list, tuple or dict may hold, but for None."""
        for variable in self._elements.get(self.program.flow.ids.get(value, -1), ()):
            held = self.program.flow.values_of(variable)
            yield [v for v in held if not (isinstance(v, Constant) and v.value is None)]

    def _taken(self, values: Iterable[Value], depth: int) -> Iterator[Value]:
        for value in values:
            if isinstance(value, Container) and depth < _DEEPEST:
                yield from self._taken(self.elements(value), depth + 1)
            elif not isinstance(value, Constant):
                yield value

    def _of_value(self, value: Value) -> ShardCalls:
        if isinstance(value, Opaque) and value.name == FULLY_SHARD:
            return (self._call(value.site),)
        if isinstance(value, Opaque) and value.name.endswith(_AROUND) and value not in self._handed:
            return self.of_values(self._put_inside(value))
        return tuple(self._handed.get(value, ()))

    def _put_inside(self, value: Instance | Opaque) -> list[Value]:
        """What a call was given first."""
        arguments = self.program.flow.calls[value.site].arguments
        return self.program.flow.values_of(arguments[0]) if arguments else []

    @cached_property
    def _handed(self) -> dict[Value, list[ShardCall]]:
        """What is given to ``fully_shard``, and by which calls."""
        found: dict[Value, list[ShardCall]] = defaultdict(list)
        for call in self.calls:
            for part in _parts(call.model):
                for value in known_values(call.file, part):
                    if isinstance(value, (Instance, Opaque)) or (isinstance(value, Unknown) and value.variable >= 0):
                        found[value].append(call)
        return dict(found)

    @cached_property
    def _elements(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for (owner, name), variable in list(self.program.flow.fields.items()):
            if name.startswith(("[", "**")):
                found[owner].append(variable)
        return dict(found)

    # --- what values do not tell --------------------------------------------------------------------------

    def _is_made_often(self, value: Value, depth: int = 0) -> bool:
        """Whether one call in the text makes several objects, since its function is called from several places."""
        name = getattr(value, "name", "")
        if not isinstance(value, (Instance, Opaque)) or value.site < 0 or name == FULLY_SHARD:
            return False
        if name.endswith(_AROUND) and value not in self._handed and self.of_values(held := self._put_inside(value)):
            return any(self._is_made_often(inner, depth + 1) for inner in held)
        return self._is_called_often(value.site, depth)

    def _is_called_often(self, site: int, depth: int) -> bool:
        flow = self.program.flow
        owner = flow.calls[site].owner
        if owner < 0 or depth > _DEEPEST:
            return False
        callers = flow.called.get(FunctionValue(flow.file_of_call(site), owner), set())
        return len(callers) > 1 or any(self._is_called_often(caller, depth + 1) for caller in callers)

    def _by_name(self, file: File, node: ast.AST) -> ShardCalls:
        """The calls that are given a variable itself, or what surely is handed on to it and to nothing else."""
        variable = file.variable(node)
        return tuple(self._same.get(variable, ())) if variable >= 0 else ()

    @cached_property
    def _same(self) -> dict[int, dict[ShardCall, None]]:
        """The variables that can hold nothing but what calls of ``fully_shard`` are given, and these calls."""
        copies = _Copies(self.program.flow)
        return copies.closed({call: copies.origins(call) for call in self.calls})


class _Copies:
    """From where to where values are copied, as far as the analysis has come."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.made = {call.result for call in flow.calls}
        """The results of calls."""
        self.sources: dict[int, list[int]] = defaultdict(list)
        for origin, targets in flow.copies.items():
            for target in targets:
                self.sources[target].append(origin)

    def origins(self, call: ShardCall) -> set[int]:
        """The variables whose values flow into what is sharded, back to the calls that made them."""
        reached = {variable for part in _parts(call.model) if (variable := call.file.variable(part)) >= 0}
        pending = list(reached)
        while pending:
            variable = pending.pop()
            for origin in self._from(variable):
                if origin not in reached:
                    reached.add(origin)
                    pending.append(origin)
        return reached

    def _from(self, variable: int) -> Iterable[int]:
        """Where a variable gets its values: what a call made is new, a method has what it is called on."""
        method = self._methods.get(variable)
        if method is not None:
            calls = (self.flow.calls[site] for site in sorted(self.flow.called.get(method, ())))
            return [call.function for call in calls if call.method is not None and call.function >= 0]
        return self.sources.get(variable, ()) if variable not in self.made else ()

    @cached_property
    def _methods(self) -> dict[int, FunctionValue]:
        """The methods by the variables of their objects."""
        return {
            function.positional[0][1] + self.flow.variable_offsets[number]: FunctionValue(number, index)
            for number, file in enumerate(self.flow.files)
            for index, function in enumerate(file.functions)
            if function.owner_class >= 0 and function.binding == "instance" and function.positional
        }

    def closed(self, origins: dict[ShardCall, set[int]]) -> dict[int, dict[ShardCall, None]]:
        """What the calls are given, and what gets all that it holds from there; each with the calls."""
        same: dict[int, dict[ShardCall, None]] = defaultdict(dict)
        for call, variables in origins.items():
            for variable in variables:
                same[variable][call] = None
        pending = list(same)
        while pending:
            variable = pending.pop()
            for target in self.flow.copies.get(variable, ()):
                known = same.get(target, {})
                if known.keys() >= same[variable].keys():
                    continue
                if all(source in same or self._is_nothing(source) for source in self.sources.get(target, ())):
                    same[target] = {**known, **same[variable]}
                    pending.append(target)
        return dict(same)

    def _is_nothing(self, variable: int) -> bool:
        """Whether a variable holds None alone."""
        values = self.flow.values_of(variable)
        return bool(values) and all(isinstance(v, Constant) and v.value is None for v in values)


def known_values(file: File, node: ast.AST) -> list[Value]:
    """What an expression may be, but for None."""
    return [v for v in file.values(node) if not (isinstance(v, Constant) and v.value is None)]


def _parts(model: ast.expr | None) -> list[ast.expr]:
    """What is sharded by one call: ``fully_shard`` takes a list as well."""
    if isinstance(model, (ast.List, ast.Tuple)):
        return [*model.elts]
    return [model] if model is not None else []
