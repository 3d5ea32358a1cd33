"""The FSDP2 contract: what is true of any code with ``fully_shard``, and what its rules may ask.

A rule of the contract says only what is surely wrong, or silently a hazard; where the facts do not tell, it is silent.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from .findings import Finding, Form, Level
from .flow.values import Value
from .queries.file import File
from .queries.gathered_places import GatheredPlaces
from .queries.guards import Guards
from .queries.held_whole import HeldWhole
from .queries.program import Program
from .queries.programs import Programs
from .queries.sharded_models import ShardCalls, ShardedModels, known_values
from .queries.sharding_modes import ShardingModes
from .queries.sharding_order import ShardingOrder
from .queries.taken_apart import TakenApart
from .rewrites.helper_source import definitions
from .rule import ContractRule
from .text.generated import is_generated
from .text.suppressions import Suppressions


@dataclass(frozen=True)
class Breach:
    """One place that does not keep the contract. ``model`` is the expression whose way there explains it."""

    file: File
    node: ast.AST
    message: str
    symbol: str = ""
    level: Level = Level.MANUAL
    model: ast.expr | None = None


class Contract:
    """What the rules of the contract may ask about one repository."""

    def __init__(self, program: Program, programs: Programs) -> None:
        self.program = program
        self.programs = programs
        self.models = ShardedModels(program)
        self.order = ShardingOrder(program, programs)
        self.modes = ShardingModes(program)
        self.gathered = GatheredPlaces(program, self.models)
        self.guards = Guards(program)
        self._held = HeldWhole(program)
        self._apart = TakenApart(program)

    @cached_property
    def files(self) -> list[File]:
        """The files that may hold a breach: all but generated modules, and none where nothing is sharded."""
        return [self.program.file(index) for index in self.program.relevant_files()] if self.models.calls else []

    def calls(self, *names: str) -> Iterator[tuple[File, ast.Call, str]]:
        """The calls of these symbols from outside the repository, each with its symbol."""
        last = {name.rpartition(".")[2] for name in names}
        for file in self.files:
            for call in file.nodes(ast.Call):
                written = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                if written in last or written in file.imported_names:
                    symbol = file.external(call.func)
                    if symbol in names:
                        yield file, call, symbol

    def methods(self, *names: str) -> Iterator[tuple[File, ast.Call, ast.Attribute]]:
        """The calls of methods of these names."""
        for file in self.files:
            for call in file.nodes(ast.Call):
                if isinstance(call.func, ast.Attribute) and call.func.attr in names:
                    yield file, call, call.func

    def sharded(self, file: File, node: ast.expr) -> ShardCalls:
        """The calls that shard what an expression surely is when it is reached; none where that is not sure."""
        calls = self.models.of(file, node)
        return calls if calls and self.is_certain(file, node, calls) else ()

    def sharded_parts(self, file: File, node: ast.expr, *kinds: str) -> ShardCalls:
        """The same for the model whose parameters, gradients … an expression is."""
        calls = self.models.of_owners(file, node, kinds)
        return calls if calls and self.is_certain(file, node, calls) and not self._apart.holds(file, node) else ()

    def is_certain(self, file: File, node: ast.AST, calls: ShardCalls) -> bool:
        """Whether nothing on the way to a place tells models that are not sharded: not at all, not yet, not there."""
        if not self.modes.agree(file, node, calls) or self.order.is_before(file, node, calls):
            return False
        return not self.gathered.hold(file, node)

    def gives_plain_numbers(self, calls: ShardCalls) -> bool:
        """Whether the tool has let what the program computes with sharded tensors be plain: of the whole, or of a rank's part."""
        return any(self._held.with_all(helper, calls) for helper in ("compute_as_whole", "compute_with_parts"))

    def has_whole_states(self, calls: ShardCalls) -> bool:
        """Whether the tool has let a model's state dicts, and those of its optimizers, come and go whole."""
        return self._held.by("keep_state_dicts_whole", calls)

    def is_copied_plain(self, calls: ShardCalls) -> bool:
        """Whether the tool has let copies of a model be plain ones."""
        return self._held.by("copy_as_plain", calls)

    def gathers_for_parts(self, calls: ShardCalls) -> bool:
        """Whether the tool has let parts of a model that are called by themselves gather what they need."""
        return self._held.by("gather_for_parts", calls)

    def runs_parameter_hooks(self, calls: ShardCalls) -> bool:
        """Whether the tool has let hooks run that parameters had before they were sharded."""
        return self._held.by("keep_parameter_hooks", calls)

    def is_of_helpers(self, file: File, node: ast.AST) -> bool:
        """Whether a place is in a helper that the tool wrote, into the file or into a module of helpers."""
        return is_generated(file.source.text) or _is_copied(file, node)

    def is_after(self, file: File, node: ast.AST, calls: ShardCalls, model: ast.expr | None = None) -> bool:
        """Whether a place is surely reached only when its ``model`` has been sharded."""
        return self.order.is_after(file, node, calls, model)

    def values(self, file: File, node: ast.AST) -> list[Value]:
        """What an expression may be, but for None."""
        return known_values(file, node)


def contract_findings(contract: Contract, rules: tuple[ContractRule, ...]) -> Iterator[Finding]:
    """The findings of these rules, in the order of the rules."""
    for rule in rules:
        said: set[ast.AST] = set()
        for breach in rule.breaches(contract):
            if breach.node not in said and not _is_copied(breach.file, breach.node):
                said.add(breach.node)
                yield _finding(contract, rule, breach)


def _is_copied(file: File, node: ast.AST) -> bool:
    """Whether a place is in a helper that the tool wrote into the file."""
    outer = [a for a in [node, *file.ancestors(node)] if file.parents.get(a) is file.tree]
    return bool(outer) and getattr(outer[-1], "name", "") in definitions()


def _finding(contract: Contract, rule: ContractRule, breach: Breach) -> Finding:
    source = breach.file.source
    start, end = source.span(breach.node)
    position, end_position = source.position(start), source.position(end)
    return Finding(
        rule.id, breach.level, breach.file.path, *position, *end_position, breach.symbol, breach.message, rule.why,
        rule.advice, Form.NOTE, contract.programs.of(breach.file.path), _provenance(contract, breach),
        Suppressions(source).cover(rule.id, position[0], end_position[0]),
    )  # fmt: skip


def _provenance(contract: Contract, breach: Breach):
    if breach.model is None:
        return ()
    values = contract.values(breach.file, breach.model)
    return contract.program.provenance(breach.file, breach.model, values[0]) if values else ()
