"""The migration of one repository in progress: what rules may ask, and the names that they ask for."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .facts.symbols import CONSTRUCTORS, DDP, FSDP1
from .findings import Level
from .flow.values import Annotated, ClassValue, Wrapped
from .guarded import STATE_READS
from .hidden import Hidden
from .queries.answers import Sharding
from .queries.before_wraps import BeforeWraps
from .queries.compiled_models import CompiledModels
from .queries.copied_models import is_left_to_wraps, may_copy_models
from .queries.exclusive_branches import ExclusiveBranches
from .queries.file import File
from .queries.fresh_models import FreshModels
from .queries.full_state import FullState, full_state
from .queries.given_up_windows import gives_up_by_hand, may_give_up_windows
from .queries.guards import Guards
from .queries.handed_self import is_self
from .queries.local_values import local_value
from .queries.migrated_wraps import migrated_kinds
from .queries.model_classes import changes_buffers
from .queries.observed_models import ObservedModels
from .queries.order import is_before_wrap
from .queries.parameter_math import reduces_own_parts
from .queries.parameter_names import asks_for_fsdp1_names
from .queries.program import Program
from .queries.programs import Programs
from .queries.results import is_result_used
from .queries.sharding import ShardingQueries
from .queries.surely_sharded import sharded_by_place
from .queries.trace import Trace
from .queries.unseen_wraps import wraps_nothing_seen
from .queries.unwrapping import unwrapping_choice
from .queries.whole_states import WholeStates
from .queries.wrapped_again import may_be_wrapped_again
from .rewrites.ddp_plan import DdpPlan, ddp_plan, shards_all, wants_buffers
from .rewrites.fsdp1_plan import Fsdp1Plan, fsdp1_plan, shards_alike
from .rewrites.names import Names
from .rewrites.needs import Needs
from .rewrites.wrap_place import wrapped_argument
from .sites import Site

_WRITTEN_BY_US = re.compile(r"fsdp2_helpers|shard_like_(?:ddp|fsdp1)|keep_state_dicts_whole|rebound_parameters")


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    target_torch: tuple[int, int] = (2, 6)
    """The oldest torch that generated code has to run on."""
    ddp: str = "shard"
    """``shard``, ``replicate`` or ``keep``."""
    checkpoint: str = "keep"
    """``keep`` for files of the old format, ``dcp`` for directories of Distributed Checkpoint."""
    select: frozenset[str] = frozenset()
    """Rules, or how their ids begin: programs without a finding of these are left out. Empty for all programs."""
    ignore: frozenset[str] = frozenset()
    """Programs with a finding of these rules are left out."""
    level: Level = Level.MANUAL
    """Programs with a finding above this level are left alone."""
    scripts: frozenset[str] = frozenset()
    """Modules that the project installs as commands."""
    helpers: str = ""
    """Folder for the helper module; empty for the lowest one that all who use it can import from."""
    idioms: bool = True
    """Off, every site gets its general rewrite: for tests of these."""
    wraps: bool = True
    """Off, wraps stay as they are while everything else is rewritten: for tests of what works under both."""
    contract: bool = False
    """On, code that has ``fully_shard`` already is held to the FSDP2 contract."""
    trace: Trace | None = None
    """What a run of the old programs has shown."""
    is_package: bool = False
    """Whether the project can be installed, so that code from outside may use what it defines."""
    blind: bool = False
    """On, nothing is known of values across functions: for tests of what needs no such knowledge."""


def _asked(site: Site) -> ast.AST:
    """``model.member``, also where the site is a call of it."""
    return site.call.func if site.call is not None else site.node


@dataclass
class Migration:
    """All that is known of the repository, shared by the rules."""

    program: Program
    options: Options
    sites: dict[str, list[Site]] = field(default_factory=dict)
    """The sites of each file with any, by path."""
    hidden: dict[ast.AST, list[Hidden]] = field(default_factory=dict)
    """What each rank guard hides, by its statement."""
    wraps_left_out: frozenset[int] = frozenset()
    """The calls of wrappers, by number, that comments in the code say are to be left alone, or that no program comes to."""
    wraps_that_stay: Mapping[int, str] = field(default_factory=dict)
    """Calls among them, and why DDP stays: ranks' models ``differ`` by their own gradients, or a ``library`` wraps them again."""
    unused: frozenset[ast.AST] = frozenset()
    """Wrappers that stay because no program comes to them."""
    before_run: Migration | None = None
    """The same, but for what a run has shown."""
    asked_by: dict[ast.stmt, Site] = field(default_factory=dict)
    """The guard, of those that lead to a statement, whose rewrite asks there for what they hold."""
    _plans: dict[ast.Call, Fsdp1Plan | None] = field(default_factory=dict)
    _acts_in_parts: dict[tuple[str, ...], bool] = field(default_factory=dict)
    _ddp_plans: dict[ast.Call, DdpPlan | None] = field(default_factory=dict)
    _needs: dict[tuple[str, ...], Needs] = field(default_factory=dict)
    _names: dict[str, Names] = field(default_factory=dict)

    @cached_property
    def sharding(self) -> ShardingQueries:
        """Questions about which values are sharded."""
        return ShardingQueries(self.program, self.programs, self.stays_wrapped)

    def stays_wrapped(self, value: Wrapped | Annotated) -> bool:
        """Whether a wrapper is not replaced: because of ``--ddp keep``, or because a comment at its call says so."""
        is_left = isinstance(value, Wrapped) and (value.site in self.wraps_left_out or wraps_nothing_seen(self.program, value))
        return is_left or (value.kind.lower() == "ddp" and self.options.ddp == "keep")

    @cached_property
    def programs(self) -> Programs:
        """Which programs a file is part of."""
        return Programs(self.program, self.options.scripts, self.options.is_package)

    def names(self, file: File) -> Names:
        """The names that generated code uses in a file."""
        if file.path not in self._names:
            self._names[file.path] = Names(file)
        return self._names[file.path]

    def torch(self, site: Site, symbol: str) -> str:
        """How generated code at a site spells a symbol of torch; its import comes if the name is used."""
        return self.names(site.file).torch(symbol)

    def helper(self, site: Site, name: str) -> str:
        """How generated code at a site spells a helper; its definition comes if the name is used."""
        return self.names(site.file).helper(name)

    def torch_has(self, major: int, minor: int) -> bool:
        """Whether generated code may use what this torch version brought."""
        return self.options.target_torch >= (major, minor)

    def acts_whole(self, found: Sharding | None, path: str) -> bool:
        """Whether what a file computes with a model's tensors needs no rewrite: what DDP held goes on to act whole.

        See ``helpers/mixed.py``, which every wrap of DDP calls in programs of which not every computation can be edited.
        """
        if ((found.wrappers if found is not None else None) or self.wrapper_kinds) != {"ddp"}:
            return False
        return not self.gathers_in_place(path)

    def gathers_in_place(self, path: str) -> bool:
        """Whether all that the programs of a file compute with parameters is edited where it stands, if it has to be."""
        return self.wrapper_kinds == {"ddp"} and not self.needs(path).whole_math

    def is_gathered_here(self, site: Site) -> bool:
        """Whether a read of a tensor is one of those that are edited where they stand."""
        needs = self.needs(site.file.path)
        return self.gathers_in_place(site.file.path) and needs.computations.reads_whole(site.file, site.receiver)

    def needs(self, *wraps: str) -> Needs:
        """What the code that shares programs with these files asks of models that were DDP's."""
        paths = tuple(sorted({path for wrap in wraps for path in self.programs.sharing_entries(wrap)}))
        if paths not in self._needs:
            can_edit = self.options.idioms and self.wrapper_kinds == {"ddp"}
            before, held = self.runs_before_wraps, self.is_held
            self._needs[paths] = Needs(self.sharding, self.sites, paths, before, held, can_edit, self.options.blind)
        return self._needs[paths]

    def is_held(self, file: File, node: ast.AST) -> bool | None:
        """Whether whoever comes to a place behind a guard holds all models whole there; None where every rank comes.

        Where nothing but states is read behind a guard, they may be gathered in front of it instead (FS414).
        """
        if not self.guards.of(file, node):
            return None
        return not self._held_places.isdisjoint((node, *file.ancestors(node)))

    @cached_property
    def _held_places(self) -> frozenset[ast.AST]:
        """What is behind guards behind which models are held whole."""
        held = [hidden for hidden in self.hidden.values() if any((item.site is None or item.site.symbol not in STATE_READS)
                                                                 and not item.is_deferred for item in hidden)]  # fmt: skip
        return frozenset(node for hidden in held for item in hidden for node in (item.node, item.site and item.site.node) if node)

    def acts_in_parts(self, path: str) -> bool:
        """Whether what a file computes with tensors of FSDP1's models is each rank's own, wherever they are sharded.

        See ``helpers/parts.py``, which every wrap of FSDP1 calls in programs that add such numbers up themselves.
        """
        paths = self.programs.sharing_entries(path)
        if (key := tuple(paths)) not in self._acts_in_parts:
            self._acts_in_parts[key] = reduces_own_parts(self.sharding, paths, self.runs_before_wraps)
        return self._acts_in_parts[key]

    @cached_property
    def native_programs(self) -> frozenset[str]:
        """The entries of programs that call fully_shard themselves: what is sharded there, their own code knows how to treat."""
        texts = {facts.path: self.program.text(facts.path) for facts in self.program.facts}
        named = [path for path, text in texts.items() if "fully_shard" in text and not _WRITTEN_BY_US.search(text)]
        own = [file for file in map(self.program.file, named) if any(_shards(file, call) for call in file.nodes(ast.Call))]
        return frozenset(entry for file in own for entry in self.programs.of(file.path))

    @cached_property
    def has_changing_buffers(self) -> bool:
        """Whether ranks may come to buffers of their own: layers with running statistics that they do not share."""
        statistics = r"BatchNorm\dd|track_running_stats|\btorchvision\.models\b|\btorchvision import models\b"
        if self.program.mentions(statistics):
            return True  # converted to SyncBatchNorm or not: most programs do that by a flag
        return any(changes_buffers(self.program.file(index)) for index in self.program.relevant_files())

    @cached_property
    def follows_buffers(self) -> bool:
        """Whether forwards of some model in DDP may send the first rank's buffers, because ranks may come to others."""
        wraps = (s for sites in self.sites.values() for s in sites if s.symbol == DDP and s.role in ("call", "value", "base"))
        return self.has_changing_buffers and any(site.call is None or wants_buffers(site.call) for site in wraps)

    def plan(self, site: Site) -> Fsdp1Plan | None:
        """How a constructor call of FSDP1 is written out with fully_shard; None where that is not certain to be right."""
        if site.call is None or not (self.options.idioms and self.options.wraps) or self.tells_apart:
            return None
        if site.call not in self._plans:
            paths = self.programs.sharing_entries(site.file.path)
            in_parts, needs, before = self.acts_in_parts(site.file.path), self.needs(site.file.path), self.runs_before_wraps
            self._plans[site.call] = fsdp1_plan(self.program, paths, self.sharding, site, before, needs, in_parts)
        return self._plans[site.call]

    def ddp_plan(self, site: Site) -> DdpPlan | None:
        """How a constructor call of DDP is written out with fully_shard; None where that is not certain to be right."""
        if (
            site.call is None
            or not (self.options.idioms and self.options.wraps)
            or self.options.ddp != "shard"
            or self.tells_apart
            or (len(self.wrapper_kinds) > 1 and self.program.once(asks_for_fsdp1_names))
        ):
            return None
        if site.call not in self._ddp_plans:
            copies, needs = self.may_copy_models(self.programs.sharing_entries(site.file.path)), self.needs(site.file.path)
            before = self.runs_before_wraps
            found = ddp_plan(self.program, self.programs, self.sharding, site, self.sites, before, copies, needs)
            self._ddp_plans[site.call] = None if found is not None and self._may_be_wrapped_again(site.call) else found
        return self._ddp_plans[site.call]

    def may_copy_models(self, paths: Iterable[str]) -> bool:
        """Whether some of these files may deep-copy a sharded model, and leave it to the wraps that this gives a plain one."""
        files = map(self.program.file, paths)
        return may_copy_models(self.sharding, files, self.is_copy_left, self.runs_before_wraps, self.is_fresh)

    def is_copy_left(self, file: File, copy: ast.AST) -> bool:
        """Whether a copy keeps its form, whatever it is of."""
        return is_left_to_wraps(self.sharding, file, copy, self.wrapper_kinds_near(file.path))

    def may_give_up_windows(self, path: str) -> bool:
        """Whether a program that a file is part of may throw gradients away that are not reduced yet."""
        paths = self.programs.sharing_entries(path)
        return may_give_up_windows(self.program, paths) or gives_up_by_hand(self.program, paths)

    def gives_up_by_hand(self, path: str) -> bool:
        """Whether it may do so by ``p.grad = None``, which does not reach them."""
        return gives_up_by_hand(self.program, self.programs.sharing_entries(path))

    def _may_be_wrapped_again(self, call: ast.Call) -> bool:
        """Whether a call of DDP may get a model that is sharded already, as shard_like_ddp() takes it."""
        found = (site for sites in self.sites.values() for site in sites if site.symbol == DDP and site.role == "call")
        calls = [(site.file, site.call) for site in found if site.call is not None]
        wraps = [(file, made, model) for file, made in calls if (model := wrapped_argument(made)) is not None]
        own = next((wrap for wrap in wraps if wrap[1] is call), None)
        return own is not None and may_be_wrapped_again(own, wraps, self.is_fresh)

    def full_state(self, site: Site) -> FullState | None:
        """What a context of FSDP1 for full state dicts is written out as; None where it stays one."""
        if site.call is None or site.receiver is not None or not self.options.idioms:
            return None
        return full_state(self.program, site.file, site.call)

    @cached_property
    def _absorbed(self) -> set[ast.AST]:
        """Nodes whose meaning goes into written-out calls of fully_shard."""
        wraps = (s for sites in self.sites.values() for s in sites if s.symbol == FSDP1 and s.role == "call")
        plans = [plan for plan in map(self.plan, wraps) if plan is not None]
        absorbed = [node for plan in plans for node in plan.arguments.absorbed]
        contexts = (s for sites in self.sites.values() for s in sites if s.symbol == f"{FSDP1}.state_dict_type")
        absorbed += [node for found in map(self.full_state, contexts) if found is not None for node in found.settings]
        return {inner for node in absorbed for inner in ast.walk(node)}

    def assignments_absorbed(self, file: File, settings: Iterable[ast.expr]) -> list[ast.stmt]:
        """The assignments of names among these settings that no other code reads, each for the setting that reads it first."""
        found = []
        for name in settings:
            value = local_value(file, name) if isinstance(name, ast.Name) else None
            if value is None or value.read_once or not isinstance(name, ast.Name):
                continue
            loads = [n for n in file.nodes(ast.Name) if n.id == name.id and isinstance(n.ctx, ast.Load)]
            said = sum(len(re.findall(rf"\b{name.id}\b", self.program.text(facts.path))) for facts in self.program.facts)
            if loads[0] is name and self._absorbed.issuperset(loads) and said == len(loads) + 1:
                found.append(value.statement)
        return found

    def is_absorbed(self, site: Site) -> bool:
        """Whether a setting is part of a constructor call that is written out, so that nothing of it stays."""
        return site.node in self._absorbed

    def is_sharded_here(self, site: Site) -> bool:
        """Whether what a site reads a member off is a sharded model whenever the site is reached."""
        if site.sharding is None or site.receiver is None or not self.options.wraps:
            return False
        return self._is_surely_sharded(site) or self.observed.always_sharded(site.file, _asked(site))

    def _is_surely_sharded(self, site: Site) -> bool:
        assert site.sharding is not None
        return site.sharding.certain or sharded_by_place(self.program, site.file, site.node, site.sharding)

    @cached_property
    def observed(self) -> ObservedModels:
        """What a run has shown of models in wrappers."""
        return ObservedModels(self.program, self.sharding)

    def is_sharded_alike(self, value: object) -> bool:
        """Whether a model is wrapped so that all its parameters are sharded over one mesh, with gradients on its devices."""
        return self._is_written_alike(value) or self.observed.are_sharded_alike(self.observed.made_by(value))

    def _is_written_alike(self, value: object) -> bool:
        if not isinstance(value, Wrapped):
            return False
        file, call = self.program.call_node(value.site)
        site = next((s for s in self.sites.get(file.path, ()) if s.call is call and s.role == "call"), None)
        if site is None or site.symbol == FSDP1:
            return site is not None and shards_alike(self.program, call)
        return self.ddp_plan(site) is not None or shards_all(self.program, self.programs, self.sharding, site)

    def is_plain_or_sharded_alike(self, value: object) -> bool:
        """Whether a model is in no wrapper but in ones that shard all of it alike, if it comes to one at all."""
        wraps = self.sharding.wraps_of(value)
        return wraps is not None and all(map(self.is_sharded_alike, wraps))

    def is_before_wrap(self, site: Site) -> bool:
        """Whether a site surely runs only while its model is still plain."""
        if self.runs_before_wraps(site.file, site.node):
            return True
        if site.receiver is not None and self.is_fresh(site.file, site.node, site.receiver):
            return True
        return site.sharding is not None and is_before_wrap(self.program, site.file, site.node, site.sharding)

    def runs_before_wraps(self, file: File, node: ast.AST) -> bool:
        """Whether a place surely is reached only while nothing in the repository is wrapped."""
        return self._is_in_front(file, node) or (not self.options.blind and self._exclusive_branches.holds(file, node))

    def _is_in_front(self, file: File, node: ast.AST) -> bool:
        before = self._before_wraps
        return before is not None and before.holds(before.program.file(file.path), node)

    def exclude_each_other(self, one: tuple[File, ast.AST], other: tuple[File, ast.AST]) -> bool:
        """Whether two places are surely never both reached in one run."""
        return self._exclusive_branches.exclude_each_other(one, other)

    @cached_property
    def _exclusive_branches(self) -> ExclusiveBranches:
        return ExclusiveBranches(self.program, self.programs, [place for place, _ in self._wraps], self._is_in_front)

    def is_fresh(self, file: File, node: ast.AST, model: ast.expr) -> bool:
        """Whether a model that a place works on was surely made on the way there, behind all wraps that may be its own."""
        fresh = self._fresh_models
        return fresh is not None and fresh.holds(file, node, model)

    def is_self(self, file: File, model: ast.expr) -> bool:
        """Whether an expression is the object whose method runs, in the method or in a function that it is handed to."""
        before = self._before_wraps
        return is_self(before if before is not None and before.program is self.program else None, file, model)

    def is_result_used(self, file: File, call: ast.Call) -> bool:
        """Whether anybody may read what a call gives back."""
        before = self._before_wraps
        return is_result_used(file, call, before if before is not None and before.program is self.program else None)

    @cached_property
    def _fresh_models(self) -> FreshModels | None:
        before = self._before_wraps
        return FreshModels(self.sharding, before) if before is not None and before.program is self.program else None

    @cached_property
    def _before_wraps(self) -> BeforeWraps | None:
        """Which places come before all wraps; None where nothing is known of calls."""
        if self.options.blind:
            return None
        return BeforeWraps(self._without_runs, self.programs, self._wraps)

    @property
    def _without_runs(self) -> Program:
        return self.program.baseline or self.program  # one run is no proof of an order

    @cached_property
    def _wraps(self) -> list[tuple[tuple[File, ast.AST], Wrapped | None]]:
        """The places where models are wrapped, with what is made there, and where wrappers are handed on."""
        program = self._without_runs
        wrapped = [v for v in program.flow.values if isinstance(v, Wrapped) and v.site >= 0 and not self.stays_wrapped(v)]
        wraps: list[tuple[tuple[File, ast.AST], Wrapped | None]] = [(program.call_node(v.site), v) for v in wrapped]
        for sites in self.sites.values():
            for site in sites:
                if site.symbol in CONSTRUCTORS and (site.role == "value" or (site.role == "base" and not self._is_made(site))):
                    wraps.append(((program.file(site.file.path), site.node), None))
        return wraps

    def _is_made(self, site: Site) -> bool:
        """Whether every object of a class with this base is seen to be made."""
        around = next((a for a in site.file.ancestors(site.node) if isinstance(a, ast.ClassDef)), None)
        classes = [v for v in site.file.values(around) if isinstance(v, ClassValue)] if around is not None else []
        made = [one for cls in classes for one in self.program.flow.instances.get(cls, ())]
        return bool(made) and all(one.site >= 0 for one in made)

    @cached_property
    def compiled_models(self) -> CompiledModels:
        """Which wrapped models torch.compile gets."""
        return CompiledModels(self.program)

    @cached_property
    def whole_states(self) -> WholeStates:
        """Whose state dicts are whole without an edit."""
        return WholeStates(self.program, self.wrapper_kinds_near)

    def stays_whole(self, site: Site) -> bool:
        """Whether a state dict that a site takes or loads is whole by itself."""
        assert site.receiver is not None and site.sharding is not None
        wrappers = site.sharding.wrappers | self.sharding.of_optimizer(site.file, site.receiver).wrappers
        return self.whole_states.of(site.file, site.receiver, wrappers)

    @cached_property
    def wrapper_kinds(self) -> frozenset[str]:
        """The wrappers (``fsdp1``, ``ddp``) that the repository constructs or names."""
        return frozenset[str]().union(*map(self._kinds_in, self.sites))

    def wrapper_kinds_near(self, path: str) -> frozenset[str]:
        """The wrappers that programs construct or name which a file is part of; those of all if nothing shows which."""
        return frozenset[str]().union(*map(self._kinds_in, self.programs.sharing_entries(path))) or self.wrapper_kinds

    def wraps_near(self, path: str) -> list[Wrapped]:
        """What calls of wrappers make in the programs that a file is part of."""
        paths = set(self.programs.sharing_entries(path))
        wraps = (wrap for wrap in self.program.wraps if wrap.site >= 0)
        return [wrap for wrap in wraps if self.program.call_node(wrap.site)[0].path in paths]

    def _kinds_in(self, path: str) -> frozenset[str]:
        sites = [site for site in self.sites.get(path, ()) if site.node not in self.unused]
        symbols = {site.symbol for site in sites if site.role in ("call", "value", "base")}
        ends = {"fsdp1": "FullyShardedDataParallel", "ddp": "DistributedDataParallel"}
        found = {kind for kind, end in ends.items() if any(symbol.endswith(end) for symbol in symbols)}
        return frozenset(found | self.program.once(migrated_kinds).get(path, frozenset()))

    @cached_property
    def tells_apart(self) -> bool:
        """Whether the program has models of both wrappers and asks somewhere which of the two one is in."""
        if len(self.wrapper_kinds) < 2:
            return False
        for sites in self.sites.values():
            tests = [s for s in sites if s.role == "test" and s.symbol in (FSDP1, DDP)]
            for site in tests:
                asked = {s.symbol for s in tests if s.call is site.call}
                if len(asked) == 1 and unwrapping_choice(site.file, site.node) is None:
                    return True
        return False

    @cached_property
    def guards(self) -> Guards:
        """Which guards decide what ranks come to a place."""
        return Guards(self.program)

    def paths_importing(self, path: str, name: str) -> Collection[str]:
        """Files of the repository that import a name from a file."""
        return [importer for importer, imported in self._imports.get(self.program.index(path), ()) if imported in (name, "*")]

    @cached_property
    def _imports(self) -> dict[int, list[tuple[str, str]]]:
        """What is imported from each file: by its index, the importing files and the names, ``*`` for all."""
        found: dict[int, list[tuple[str, str]]] = {}
        find = self.program.flow.modules.find
        for number, facts in enumerate(self.program.facts):
            imported = [(find(number, item.module), item.name) for item in facts.imports if item.name is not None]
            imported += [(target, "*") for target in dict.fromkeys(find(number, star) for star in facts.stars)]
            for target, name in imported:
                if target is not None:
                    found.setdefault(target, []).append((facts.path, name))
        return found


def _shards(file: File, call: ast.Call) -> bool:
    """Whether a call is one of torch's ``fully_shard``."""
    symbol = file.external(call.func) or ""
    return symbol.startswith("torch.") and symbol.endswith(".fully_shard")
