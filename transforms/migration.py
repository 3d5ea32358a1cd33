"""The migration of one repository in progress: what rules may ask, and where their outcomes are kept."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from .analysis.library import TENSORS
from .analysis.symbols import canonical, is_old, is_old_module
from .analysis.values import Annotated, Derived, External, Instance, Opaque, Unknown, Wrapped
from .findings import Level
from .groups import Group, Groups, Wrap
from .introspection.type_tests import asks_for_wrappers
from .keeping import keep_ddp, reason_to_keep
from .order import Order
from .program import Program
from .rule import Need, Outcome
from .shared_optimizers import unite
from .sites import RAW_MEMBERS, Site, SiteFinder
from .text.spelling import spelling
from .view import FileView

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    target_torch: tuple[int, int] = (2, 6)
    """The oldest torch that generated code has to run on."""
    ddp: str = "shard"
    """``shard``, ``replicate`` or ``keep``."""
    select: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()
    level: Level = Level.REVIEW
    """Groups with findings above this level are not applied (manual findings that hold nothing do not count)."""
    annotate: bool = False


@dataclass
class Migration:
    """All that is known of the repository, shared by the rules."""

    program: Program
    options: Options
    groups: Groups
    order: Order
    sites: dict[str, list[Site]] = field(default_factory=dict)
    lent: dict[ast.Call, set[ast.Call]] = field(default_factory=dict)
    """For each wrap, the earlier ones whose definitions it uses."""
    apart: set[ast.Call] = field(default_factory=set)
    """Wraps that turned out to stay, so that no other one may use theirs."""
    _cache: dict[tuple[str, object], Any] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, options: Options) -> Migration:
        """Finds groups and sites; groups that one site serves together become one."""
        relevant = relevant_files(program)
        program.flow.seed_unknown(relevant)
        groups = Groups(program)
        more = files_by_calls(program, groups) | files_by_tensors(program, groups) | files_by_tests(program, relevant)
        more.difference_update(relevant)
        if more:
            program.flow.seed_unknown(sorted(more))
            groups = Groups(program)
        views = sorted(map(program.view, {*relevant, *more}), key=lambda view: view.path)
        finders = [SiteFinder(view) for view in views]
        sites = find_sites(groups, finders)
        reason = reason_to_keep(program, options.ddp, groups, sites)
        if reason:
            keep_ddp(program, reason)
            groups = Groups(program)
            sites = find_sites(groups, finders)
        return cls(program, options, groups, Order(program), sites)

    # --- asking -------------------------------------------------------------------------------------------

    def views(self) -> list[FileView]:
        """The files in which sites lie or values of interest are seen, in the order of their paths."""
        return [self.program.view(path) for path in sorted(self.sites)]

    def sites_of(self, group: Group) -> list[Site]:
        """All sites of a group, file by file."""
        return [site for path in sorted(self.sites) for site in self.sites[path] if site.group is group]

    def wrap_at(self, site: Site) -> Wrap | None:
        """The wrap whose constructor call a site is, or is a keyword of."""
        if site.call is None:
            return None
        number = site.view.call_site(site.call)
        return next((w for g in self.groups.all for w in g.wraps if w.value.site == number), None)

    def torch_has(self, major: int, minor: int) -> bool:
        """Whether generated code may use what this torch version brought."""
        return self.options.target_torch >= (major, minor)

    def once(self, name: str, key: object, make: Callable[[], T]) -> T:
        """Computes something shared by several rules (the plan of a wrap, say) the first time it is asked for."""
        if (name, key) not in self._cache:
            self._cache[name, key] = make()
        return self._cache[name, key]

    def judge_again(self, apart: set[ast.Call]) -> None:
        """Forgets what was decided, now that these wraps are known to stay."""
        self.apart |= apart
        self.lent.clear()
        self._cache.clear()

    def sharded_when(self, site: Site) -> str:
        """``always`` or ``maybe``: whether a plain model can reach a use as well."""
        return "maybe" if site.maybe_plain or not site.certain else "always"

    # --- writing ------------------------------------------------------------------------------------------

    def use(self, outcome: Outcome, view: FileView, symbol: str, node: ast.AST) -> str:
        """How generated code at ``node`` spells a torch symbol; notes the import that this takes."""
        outcome.needs.append(Need(view, symbol, node))
        return spelling(view, symbol, node)


def find_sites(groups: Groups, finders: Sequence[SiteFinder]) -> dict[str, list[Site]]:
    """The sites of all files; groups that one of them serves together become one."""
    sites = {finder.view.path: finder.find(groups) for finder in finders}
    merged = [groups.merge(site.values) for found in sites.values() for site in found]
    merged.append(unite(groups))
    if any(merged):
        groups.rebuild()
        sites = {finder.view.path: finder.find(groups) for finder in finders}
    return sites


def relevant_files(program: Program) -> list[int]:
    """Files with an old symbol, or into which a wrapped model (or what is taken from it) flows."""
    flow = program.flow
    interesting = {
        number
        for number, value in enumerate(flow.values)
        if isinstance(value, (Wrapped, Annotated))
        or (isinstance(value, Derived) and isinstance(value.owner, (Wrapped, Annotated)))
        or (isinstance(value, External) and is_old(value.name))
    }
    found = files_holding(program, interesting)
    for index, file in enumerate(program.files):
        if any(is_old_module(item.module) or is_old(f"{item.module}.{item.name}") for item in file.imports):
            found.add(index)
            continue
        if any(call.method in _TELLTALE for call in file.calls) or any(load[2] in _TELLTALE for load in file.loads):
            found.add(index)
    return sorted(found)


def files_holding(program: Program, interesting: set[int]) -> set[int]:
    """Files with a variable that may hold any of these values, given by number."""
    flow = program.flow
    found: set[int] = set()
    for index, file in enumerate(program.files):
        start = flow.variable_offsets[index]
        held = filter(None, flow.points_to[start : start + len(file.lines)])
        if not all(map(interesting.isdisjoint, held)):
            found.add(index)
    return found


def files_by_tensors(program: Program, groups: Groups) -> set[int]:
    """Files that work on parameters or gradients of a model that is wrapped elsewhere."""
    values = program.flow.values
    interesting = {
        number
        for number, value in enumerate(values)
        if isinstance(value, Derived) and value.kind in TENSORS and groups.of_tensors([value]) is not None
    }
    return files_holding(program, interesting)


def files_by_calls(program: Program, groups: Groups) -> set[int]:
    """Files whose only sign of the old world are calls.

    They take or load the state of a model that is wrapped elsewhere (with FSDP2 it is the same object), or they call
    an old function of a module that has others, too (``dcp.save_state_dict``).
    """
    raw = {value for group in groups.all for value in group.raw}
    found: set[int] = set()
    for number, call in enumerate(program.flow.calls):
        if call.method is None:
            continue
        for value in program.flow.values_of(call.function):
            if isinstance(value, External):
                relevant = is_old(canonical(f"{value.name}.{call.method}"))
            else:
                relevant = call.method in RAW_MEMBERS and value in raw
            if relevant:
                found.add(program.flow.file_of_call(number))
                break
    return found


def files_by_tests(program: Program, relevant: list[int]) -> set[int]:
    """Files that take ``.module`` off something, and ask a function that knows the old wrappers about it."""
    offsets, within = program.flow.call_offsets, frozenset(relevant)
    asks = cache(lambda callee: asks_for_wrappers(*program.function_node(callee)))
    return {
        index
        for index, file in enumerate(program.files)
        if index not in within
        and any(load[2] == "module" for load in file.loads)
        and any(
            callee.file in within and asks(callee)
            for number in range(len(file.calls))
            for callee in program.flow.callees.get(offsets[index] + number, ())
            if callee.file != index
        )
    }


_TELLTALE = frozenset({"require_backward_grad_sync", "summon_full_params", "no_sync", "_fsdp_wrapped_module"})


def models_among(values: Iterable[object]) -> list[object]:
    """Values that may be models."""
    return [v for v in values if isinstance(v, (Wrapped, Annotated, Instance, Opaque, Unknown))]
