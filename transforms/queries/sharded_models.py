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

FULLY_SHARD = "torch.distributed.fsdp.fully_shard"
_DEEPEST = 4


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
        return self._of_known(file, node, known_values(file, node))

    def called(self, file: File, call: ast.Call) -> ShardCalls:
        """The same of what a call calls: ``self.model`` has no value by itself in ``self.model(x)``."""
        values = [v for v in file.called_values(call) if not (isinstance(v, Constant) and v.value is None)]
        return self._of_known(file, call.func, values)

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
        values = known_values(file, node)
        if not values or not all(isinstance(v, Derived) and v.kind in kinds for v in values):
            return ()
        return self.of_derived(v for v in values if isinstance(v, Derived))

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
        return self.of_derived(derived) if derived and len(derived) == len(held) else ()

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
        return tuple(self._handed.get(value, ()))

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
        if not isinstance(value, (Instance, Opaque)) or value.site < 0 or getattr(value, "name", "") == FULLY_SHARD:
            return False
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
        return tuple(call for call, same in self._same if variable in same) if variable >= 0 else ()

    @cached_property
    def _same(self) -> list[tuple[ShardCall, set[int]]]:
        """For each call the variables that can hold nothing but what it is given."""
        copies = _Copies(self.program.flow)
        return [(call, copies.closed(copies.origins(call))) for call in self.calls]


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
            for origin in self.sources.get(variable, ()) if variable not in self.made else ():
                if origin not in reached:
                    reached.add(origin)
                    pending.append(origin)
        return reached

    def closed(self, variables: set[int]) -> set[int]:
        """These variables, and those that get what they hold from these alone."""
        same = set(variables)
        pending = list(variables)
        while pending:
            for target in self.flow.copies.get(pending.pop(), ()):
                if target not in same and all(s in same or self._is_nothing(s) for s in self.sources.get(target, ())):
                    same.add(target)
                    pending.append(target)
        return same

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
