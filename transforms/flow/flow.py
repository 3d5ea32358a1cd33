"""Which values reach which variables, over the whole repository: a fixpoint over the files' constraints.

Inclusion constraints in the manner of Andersen's points-to analysis: what flows into a variable flows on to all
that is copied from it; reads and writes of attributes and calls add new flows as their receivers become known.
"""

from __future__ import annotations

import builtins
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property

from ..facts.facts import ANY_KEY, NOTHING, FileFacts
from ..facts.symbols import AVERAGES, canonical
from .relays import shifted_call
from .unseen_optimizers import UnseenOptimizers
from .values import ClassValue, Constant, Container, External, FunctionValue, ModuleValue, Unknown

_BUILTINS = frozenset(dir(builtins))
_NEVER_REPLACED = frozenset(
    {"isinstance", "issubclass", "type", "hasattr", "getattr", "setattr", "delattr", "callable", "super", "len", "id", "vars"}
)
"""Builtins that no package has another one of, for ``from package import *`` to bring in; numpy has its own ``sum``."""


class Flow(UnseenOptimizers):
    """The constraints of all files and their solution."""

    def __init__(
        self, files: Sequence[FileFacts], blind: bool = False, paths: Collection[str] = (), links: Mapping[str, str] | None = None
    ) -> None:
        """``blind``: nothing is followed through calls and attributes; names of one scope and imports are.

        ``paths`` are all files of the repository: those without facts tell which folders are packages; ``links``
        are symbolic links to files and folders.
        """
        super().__init__(files)
        self.modules.add_packages(paths)
        self.modules.add_links(links or {}, [file.path for file in files])
        self.modules.name_root((index, item.module, item.name) for index, file in enumerate(files) for item in file.imports)
        self.literals = {}
        self.instances = {}
        self.dictionaries = {}
        self.getters = {}
        self.packages = {}
        self.super_reads = {}
        self._ancestors = {}
        self.calls = []
        self.wrapped_models = {}
        self.calls_on = {}
        self.called = {}
        self.callees = {}
        self.deferred = {}
        self.handed_on = {}
        self.applied = {}
        self.applied_at = set()
        self.resolved = set()
        self.read_and_called = {}
        self.computed_from = {}
        self.named_by = {}
        self.called_by_name = set()
        self.made_by_factories = set()
        self.made_in_factories = set()
        self.seed_names()
        self.solve()
        if blind:
            self.seed_blind()
            return
        self.seed_calls()
        self.solve()
        self.seed_receivers()
        self.solve()
        self.seed_objects_out_of_sight()
        self.seed_methods_of_mixins()
        self.solve()
        self.seed_models_out_of_sight()
        self.solve()
        self.seed_trained_models()
        self.solve()
        candidates = self.mark_unseen_optimizers()
        self.solve()
        self.make_unseen_optimizers(candidates)
        self.solve()
        self.seed_own_optimizers()
        self.solve()
        self.seed_unknown_entries()
        self.solve()

    def seed_names(self) -> None:
        """Everything but calls: imports, definitions, constants, assignments, attributes."""
        for index, file in enumerate(self.files):
            offset = self.variable_offsets[index]
            for to, origin in file.copies:
                self.copies.setdefault(origin + offset, []).append(to + offset)
            for to, base, attribute in file.loads:
                self.loads.setdefault(base + offset, {})[to + offset, attribute] = None
            for base, attribute, origin in file.stores:
                self.stores.setdefault(base + offset, {})[attribute, origin + offset] = None
        for index, file in enumerate(self.files):
            offset = self.variable_offsets[index]
            for variable, value in file.constants:
                self.add(variable + offset, Constant(value, type(value).__name__))
                self.note_literal(variable + offset, value)
            for variable, kind in file.containers:
                self.add(variable + offset, Container(variable + offset, kind))
            for variable, function in file.function_values:
                self.add(variable + offset, FunctionValue(index, function))
            for variable, cls in file.class_values:
                self.add(variable + offset, ClassValue(index, cls))
            for name, variable in file.names.items():
                if name not in file.defined:
                    self.bind_undefined(index, name, variable + offset)
            for variable, module, name in file.imports:
                self.bind_import(index, variable + offset, module, name)

    def bind_undefined(self, file: int, name: str, variable: int) -> None:
        """A name that its module never assigns: from a star import, or a builtin."""
        found, outside = False, []
        for star in self.files[file].stars:
            target = self.modules.find(file, star)
            if target is not None:
                exported = self.exported(target, name, set())
                if exported is not None:
                    self.connect(exported, variable)
                    found = True
            elif not star.startswith(".") and not name.startswith("_") and name not in _NEVER_REPLACED:
                outside.append(canonical(f"{star}.{name}"))
        known = [one for one in outside if any(fnmatchcase(one, pattern) for pattern in AVERAGES)]
        for one in known or outside:  # of several modules, the one that is known to have it
            self.add(variable, External(one))
        if not found and (name == "super" or not self.files[file].stars or name in _BUILTINS):
            self.add(variable, External(f"builtins.{name}"))

    def bind_import(self, file: int, variable: int, module: str, name: str | None) -> None:
        target = self.modules.find(file, module)
        if name is None:
            if target is not None:
                self.add(variable, ModuleValue(target))
                self.note_packages(module, target)
            else:
                self.add(variable, External(canonical(module)))
            return
        if target is not None:
            exported = self.exported(target, name, set())
            if exported is not None:
                self.connect(exported, variable)
        submodule = self.modules.find(file, f"{module}.{name}" if module.strip(".") else f"{module}{name}")
        if submodule is not None:
            self.add(variable, ModuleValue(submodule))
        elif target is None or self.exported(target, name, set()) is None:
            dotted = ".".join(self.modules.absolute(file, module)) if module.startswith(".") else module
            full = canonical(f"{dotted}.{name}")
            self.add(variable, External(full))
            if target is not None:
                for star in self.files[target].stars:
                    if self.modules.find(target, star) is None and not star.startswith("."):
                        self.add(variable, External(canonical(f"{star}.{name}")))

    def note_packages(self, module: str, target: int) -> None:
        """``import training.steps`` binds ``training``, which has no file if it is a folder without ``__init__.py``."""
        names = module.split(".")
        parts = self.modules.parts[target]
        for depth in range(1, len(names)):
            self.packages[".".join(names[:depth])] = parts[: len(parts) - len(names) + depth]

    def seed_calls(self) -> None:
        """Calls, once classes and their bases are known, and what annotations say."""
        for index, file in enumerate(self.files):
            offset = self.variable_offsets[index]
            self.calls.extend(shifted_call(call, lambda variable, by=offset: variable + by) for call in file.calls)
        for site, call in enumerate(list(self.calls)):
            self.register_call(site, call)
        for index, file in enumerate(self.files):
            offset = self.variable_offsets[index]
            for variable, annotation in file.annotations:
                self.annotate(variable + offset, annotation + offset)

    def seed_blind(self) -> None:
        """The calls, for their numbers alone."""
        for index, file in enumerate(self.files):
            offset = self.variable_offsets[index]
            self.calls.extend(shifted_call(call, lambda variable, by=offset: variable + by) for call in file.calls)

    def seed_receivers(self) -> None:
        """Gives the methods of classes that nothing instantiates a receiver of their own class."""
        for index, file in enumerate(self.files):
            for position in range(len(file.classes)):
                cls = ClassValue(index, position)
                if not self.instances.get(cls):
                    self.new_instance(cls, -1)

    def seed_unknown_entries(self) -> None:
        """Says of containers that they hold more than what is known of, where entries come from code out of sight.

        ``for name, cls in inspect.getmembers(torch.optim): registry[name] = cls`` leaves the classes that the repository
        registers as the only known ones.
        """
        for base, writers in list(self.stores.items()):
            if any(attribute == ANY_KEY and not self.points_to[origin] for attribute, origin in writers):
                for value in self.values_of(base):
                    if isinstance(value, Container) and self.points_to[self.field(value, "[any]")]:
                        self.add(self.field(value, "[any]"), Unknown(NOTHING))
                        self.add(self.field(value, ANY_KEY), Unknown(NOTHING))

    @cached_property
    def partly_unseen(self) -> frozenset[int]:
        """The variables that get what calls give which lead nowhere, whatever else is known to come there.

        ``model, state = workload.init(rng)``, and ``model = {}`` elsewhere: the dictionary is not all that there is.
        """
        pending = [call.result for call in self.calls if call.result != NOTHING and not self.points_to[call.result]]
        found = set(pending)
        while pending:
            variable = pending.pop()
            read = (to for to, _ in self.loads.get(variable, ())) if not self.points_to[variable] else ()
            new = {*self.copies.get(variable, ()), *read} - found
            found |= new
            pending += new
        return frozenset(found)

    def reaching(self, variables: Iterable[int]) -> set[int]:
        """The variables whose values flow into these, by plain copies."""
        origins: defaultdict[int, list[int]] = defaultdict(list)
        for origin, targets in self.copies.items():
            for target in targets:
                origins[target].append(origin)
        found = set(variables)
        pending = list(found)
        while pending:
            for origin in origins.get(pending.pop(), ()):
                if origin not in found:
                    found.add(origin)
                    pending.append(origin)
        return found

    def solve(self) -> None:
        """Runs until nothing flows any more."""
        queue, pending, copies, add_all = self.queue, self.pending, self.copies, self.add_all
        while queue:
            variable = queue.popleft()
            new = pending.pop(variable)
            for to in copies.get(variable, ()):
                add_all(to, new, variable)
            loads, stores = self.loads.get(variable), self.stores.get(variable)
            binds, calls = self.binds.get(variable), self.calls_on.get(variable)
            computed = self.computed_from.get(variable)
            named, of_super = self.named_by.get(variable), self.super_reads.get(variable)
            if not (loads or stores or binds or calls or computed or named or of_super):
                continue
            for number in new:
                value = self.values[number]
                for to, attribute in list(loads or ()):
                    self.load(value, attribute, to, variable)
                for attribute, origin in list(stores or ()):
                    self.store(value, attribute, origin)
                for cls, attribute, to in list(of_super or ()):
                    self.load_from_base(cls, attribute, to, value)
                for to, receiver in binds or ():
                    self.bind(value, to, receiver, variable)
                for result, kind in list(computed or ()):
                    self.compute(value, result, kind, variable)
                for access, kind in list(named or ()):
                    self.access(access, kind, value)
                for call in list(calls or ()):
                    self.call(call, value, variable)
