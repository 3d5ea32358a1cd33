"""The places that may call a function, as far as the text shows them.

A way that is not seen whole (a function that is handed on, called by its name, or run by a class of somebody else) leaves the
callers open.
"""

from __future__ import annotations

import ast
import re
from functools import cached_property

from ..facts.facts import NOTHING
from ..flow.values import ClassValue, FunctionValue, Instance, ModuleValue, Opaque, Unknown
from .file import File
from .found_by_name import NAMES_PUT_TOGETHER, FoundByName
from .names_at_run_time import finds_by_name, imports_by_name
from .packages import is_test
from .program import Program
from .programs import Programs

HARMLESS_BASES = ("torch.nn.Module", "builtins.object", "abc.", "typing.", "enum.", "torch.utils.data.")
"""Bases that call no methods of their own accord but those in ``CALLED_BY_TORCH``."""
CALLED_BY_TORCH = frozenset(
    {"forward", "state_dict", "load_state_dict", "train", "eval", "to", "apply", "parameters", "named_parameters", "modules",
     "children", "zero_grad", "extra_repr", "reset_parameters", "get_extra_state", "set_extra_state", "share_memory"}
)  # fmt: skip
_MOST_CALLERS = 24
HARMLESS_DECORATORS = re.compile(
    r"(staticmethod|classmethod|property|cached_property|lru_cache|cache|wraps|contextmanager|abstractmethod|dataclass|no_grad"
    r"|record|(torch|functools|contextlib|abc|pytest|unittest|typing|dataclasses)\.[\w.]+)(\(.*\))?",
    re.DOTALL,
)
"""Decorators that hand what they get to nobody."""

Place = tuple[File, ast.AST]


class VisibleCallers:
    """Answers for the functions of a repository."""

    def __init__(self, program: Program, programs: Programs) -> None:
        self.program = program
        self.programs = programs

    def of(self, function: FunctionValue) -> list[Place] | None:
        """Every place that may call a function; None where there may be others."""
        flow = self.program.flow
        if function.index == NOTHING or function in flow.called_by_name or function in flow.deferred:
            return None
        facts = flow.files[function.file].functions[function.index]
        sites = sorted(flow.called.get(function, ()))
        if not all(map(self.program.is_written_as_call, sites)):
            return None
        places = (self.program.call_node(site) for site in sites)
        found: list[Place] = [place for place in places if not self._is_by_decorator(function, *place)]
        is_method = facts.owner_class != NOTHING
        if is_method and not self._is_called_by_own_code(ClassValue(function.file, facts.owner_class), facts.name):
            return None
        if not is_method or facts.name != "__init__":
            calls, handed_on = self._named.get(facts.name, ([], []))
            may_call = (c for c in calls if self._may_name(c[0], c[1].func, is_method))  # type: ignore[attr-defined]
            found += [c for c in may_call if is_method or self._sees(c[0], function)]
            for file, node in (place for place in handed_on if self._may_name(*place, is_method)):
                parent = file.parents[node]
                is_followed = isinstance(parent, ast.Call) and function in self.program.callees(file, parent)
                if not is_followed and (is_method or self._sees(file, function)):
                    launch = self._launch(file, node)
                    if launch is None:
                        return None
                    found.append((file, launch))
        return found if len(found) <= _MOST_CALLERS else None

    def _is_by_decorator(self, function: FunctionValue, file: File, call: ast.AST) -> bool:
        """Whether a decorator made the function in which a call of what it decorates stands: who calls the name comes there."""
        inner = file.function(call)
        outer = file.function(inner) if isinstance(inner, ast.FunctionDef) else None
        if not isinstance(inner, ast.FunctionDef) or outer is None:
            return False
        uses = [n for n in file.names_by_id.get(inner.name, ()) if isinstance(n.ctx, ast.Load)]
        if not uses or not all(isinstance(file.parents[n], ast.Return) and file.function(n) is outer for n in uses):
            return False
        owner, node = self.program.function_node(function)
        made = (v for d in getattr(node, "decorator_list", ()) for v in owner.values(d) if isinstance(v, FunctionValue))
        return any(self.program.function_node(v)[1] is outer for v in made)

    def places_that_let_call(self, function: FunctionValue) -> list[Place]:
        """The places from which on code out of sight may call a function: where it is handed on, called on what nobody knows,
        or where the objects are made that it is a method of. None at all if there may be others."""
        flow = self.program.flow
        if function.index == NOTHING or function in flow.called_by_name:
            return []
        facts = flow.files[function.file].functions[function.index]
        known = sorted(flow.called.get(function, set()) | flow.deferred.get(function, set()))
        found = [*map(self.program.call_node, filter(self.program.is_written_as_call, known))]
        if facts.owner_class != NOTHING:
            made = flow.instances.get(ClassValue(function.file, facts.owner_class), set())
            sites = [one.site for one in made if isinstance(one, Instance)]
            are_seen = bool(sites) and min(sites) >= 0 and all(map(self.program.is_written_as_call, sites))
            return [*found, *map(self.program.call_node, sorted(sites))] if are_seen else []
        owner, node = self.program.function_node(function)
        calls, handed_on = self._named.get(facts.name, ([], []))
        handed_on = [*handed_on, *((owner, decorator) for decorator in _decorators(node))]
        handed_on = [place for place in handed_on if self._may_be(function, place)]
        calls = [c for c in calls if self._sees(c[0], function) or finds_by_name(self.program, c[0].source.text)]
        return [*found, *calls, *handed_on]

    def _may_be(self, function: FunctionValue, place: Place) -> bool:
        """Whether a name may stand for a function there."""
        file, node = place
        if isinstance(file.parents[node], (ast.FunctionDef, ast.AsyncFunctionDef)):
            return True  # its decorator
        around = [a for a in file.ancestors(node) if isinstance(a, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))]
        arguments = {argument.arg for a in around for argument in ast.walk(a.args) if isinstance(argument, ast.arg)}
        values = file.values(node)
        if values or (isinstance(node, ast.Name) and node.id in arguments):
            return function in values
        return self._sees(file, function)

    def is_never_named(self, function: FunctionValue) -> bool:
        """Whether nothing in the repository says a function's name but its own definition, and no framework finds it by that."""
        name = self.program.flow.files[function.file].functions[function.index].name
        file, node = self.program.function_node(function)
        if isinstance(node, ast.Lambda) or name.startswith("test") or is_test(file.path) or _decorators(node):
            return False
        return not self._finds_by_name and name not in self._names_said

    def is_for_outside(self, function: FunctionValue) -> bool:
        """Whether a function that no visible call reaches is there for users alone: no decorator takes it, no string names it."""
        node = self.program.function_node(function)[1]
        name = self.program.flow.files[function.file].functions[function.index].name
        if isinstance(node, ast.Lambda) or _decorators(node) or name in self._names_in_quotes:
            return False
        return not self._found_by_name.may_find(self.program.facts[function.file].path, name)

    @cached_property
    def _found_by_name(self) -> FoundByName:
        return FoundByName(self.program)

    @cached_property
    def _names_in_quotes(self) -> frozenset[str]:
        """All strings that may be names, or end with one."""
        files = map(self.program.file, self.program.relevant_files())
        strings = (node.value for file in files for node in file.nodes(ast.Constant) if isinstance(node.value, str))
        return frozenset(text.rpartition(".")[2] for text in strings)

    @cached_property
    def _finds_by_name(self) -> bool:
        """Whether something in the repository may find functions by names that are put together."""
        texts = self.program.all_texts
        return any(NAMES_PUT_TOGETHER.search(text) or finds_by_name(self.program, text) for text in texts.values())

    @cached_property
    def _names_said(self) -> frozenset[str]:
        """All names that the repository uses, in quotes too; of files that are not looked at, all words."""
        relevant = {self.program.facts[index].path for index in self.program.relevant_files()}
        others = (text for path, text in self.program.all_texts.items() if path not in relevant)
        found = {word for text in others for word in re.findall(r"\w+", text)}
        for file in map(self.program.file, sorted(relevant)):
            found.update(n.id if isinstance(n, ast.Name) else n.attr for n in file.nodes(ast.Name, ast.Attribute))
            found.update(n.name for n in file.nodes(ast.alias))
            found.update(n.value for n in file.nodes(ast.Constant) if isinstance(n.value, str))
        return frozenset(found)

    def _sees(self, file: File, function: FunctionValue) -> bool:
        name = self.program.flow.files[function.file].functions[function.index].name
        return file.index == function.file or name in file.imported_names or bool(self.program.facts[file.index].stars)

    def _may_name(self, file: File, node: ast.AST, is_method: bool) -> bool:
        """Whether a name or an attribute may stand for a method, which goes by an object, or for a function, by a module."""
        if is_method or not isinstance(node, ast.Attribute):
            return is_method == isinstance(node, ast.Attribute)
        is_module = any(isinstance(v, ModuleValue) for v in file.values(node.value))
        return is_module or (self._imports_by_name and may_be_ours(file, node))

    @cached_property
    def _imports_by_name(self) -> bool:
        return any(imports_by_name(self.program, text) for text in self.program.all_texts.values())

    def _is_called_by_own_code(self, cls: ClassValue, name: str) -> bool:
        """Whether nothing but visible calls runs a method: no base from outside, no registry that makes the objects."""
        flow = self.program.flow
        if name in CALLED_BY_TORCH or (name.startswith("__") and name != "__init__"):
            return False
        if name != "__init__":
            return all(base.startswith(HARMLESS_BASES) for base in flow.external_bases(cls))
        family = [cls, *self._derived.get(cls, ())] if self._is_unmade(cls) else [cls]
        written = (flow.files[one.file].classes[one.index].name for one in family)
        is_made = all(not self._is_unmade(one) or one in self._derived for one in family)
        return is_made and not any(self._named.get(one, ([], []))[1] for one in written)

    def _is_unmade(self, cls: ClassValue) -> bool:
        """Whether no visible call makes an object of a class itself."""
        return any(one.site < 0 for one in self.program.flow.instances.get(cls, ()) if isinstance(one, Instance))

    @cached_property
    def _derived(self) -> dict[ClassValue, list[ClassValue]]:
        """By class: those that derive from it, in however many steps."""
        found: dict[ClassValue, list[ClassValue]] = {}
        for cls in sorted(self.program.flow.instances, key=lambda one: (one.file, one.index)):
            for base in self.program.flow.ancestors(cls)[1:]:
                found.setdefault(base, []).append(cls)
        return found

    def _launch(self, file: File, node: ast.AST) -> ast.Call | None:
        """The call at module level of a script that is handed a function, as ``fire.Fire(main)``: it runs it there."""
        parent = file.parents[node]
        if file.function(node) is None and isinstance(parent, ast.Call) and file.index in self.programs.entries:
            return parent if isinstance(file.parents[parent], ast.Expr) else None
        return None

    @cached_property
    def _named(self) -> dict[str, tuple[list[Place], list[Place]]]:
        """By name: the calls of which nobody knows what they call, and the places that hand something on."""
        found: dict[str, tuple[list[Place], list[Place]]] = {}
        for file in map(self.program.file, self.program.relevant_files()):
            for node in file.nodes(ast.Name, ast.Attribute):
                if not isinstance(node.ctx, ast.Load):
                    continue
                name = node.id if isinstance(node, ast.Name) else node.attr
                parent = file.parents[node]
                calls, handed_on = found.setdefault(name, ([], []))
                if isinstance(parent, ast.Call) and parent.func is node:
                    if not self.program.callees(file, parent) and may_be_ours(file, node):
                        calls.append((file, parent))
                elif not _only_names(parent, node):
                    handed_on.append((file, node))
        return found


def _decorators(function: ast.AST) -> list[ast.expr]:
    """The decorators that may hand a function on, or call it themselves."""
    decorators: list[ast.expr] = getattr(function, "decorator_list", [])
    return [decorator for decorator in decorators if not HARMLESS_DECORATORS.fullmatch(ast.unparse(decorator))]


def may_be_ours(file: File, function: ast.Name | ast.Attribute) -> bool:
    """Whether what a call reaches may be a function of the repository, where the analysis knows none."""
    owner = function.value if isinstance(function, ast.Attribute) else function
    if isinstance(owner, ast.Call) and file.external(owner.func) == "importlib.import_module":
        return True
    values = file.values(owner)
    return not values or any(isinstance(v, Unknown) or (isinstance(v, Opaque) and v.name == "?") for v in values)


def _only_names(parent: ast.AST, node: ast.AST) -> bool:
    """Whether a function or class is only named here: a base, an annotation, the owner of an attribute, part of a test."""
    if isinstance(parent, (ast.Attribute, ast.ClassDef, ast.arg, ast.AnnAssign, ast.Compare)):
        return True
    if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return parent.returns is node
    return isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id in ("isinstance", "super")
