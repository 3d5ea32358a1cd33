"""The FSDP1 constructor, argument by argument: what each adds to the sharding plan, and how sure that is."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..analysis.values import Constant, Container, Unknown, Value
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..program import Program
from ..rule import Outcome
from ..sites import Site
from ..text.patches import Patch
from ..text.spelling import quoted
from ..training.generating import METHOD, generating_calls, surely_generates
from ..view import FileView
from .checkpointing import statements_behind
from .placement import CannotPlace, place
from .plan import MODEL, Code, ShardingPlan, code
from .shared_definitions import share_definitions
from .subclass_findings import built_subclass
from .wrap_blocks import inner_wrap, is_enable_wrap, outer_wrap, settings_of

if TYPE_CHECKING:
    from .spread import Dictionary

PARAMETERS = (
    "module", "process_group", "sharding_strategy", "cpu_offload", "auto_wrap_policy", "backward_prefetch",
    "mixed_precision", "ignored_modules", "param_init_fn", "device_id", "sync_module_states", "forward_prefetch",
    "limit_all_gathers", "use_orig_params", "ignored_states", "device_mesh",
)  # fmt: skip
"""Parameters of FullyShardedDataParallel in the order in which they may be given by position (torch 2.13)."""


@dataclass
class Argument:
    """One argument of a constructor: ``node`` is its value, in the file ``view``."""

    name: str
    view: FileView
    node: ast.expr
    written: Code | None = None
    """How it is written where the wrap stands, if that is another function."""

    @property
    def values(self) -> list[Value]:
        """What the argument may be."""
        return self.view.values(self.node)

    @property
    def is_none(self) -> bool:
        return isinstance(self.node, ast.Constant) and self.node.value is None

    def constant(self) -> object:
        """The one constant that the argument surely is; ``...`` where it is not one."""
        if isinstance(self.node, ast.Constant):
            return self.node.value
        values = self.values
        return values[0].value if len(values) == 1 and isinstance(values[0], Constant) else ...

    def may_be_none(self) -> bool:
        """Whether nothing rules None out."""
        values = self.values
        return not values or any(
            isinstance(v, Unknown) or (isinstance(v, Constant) and v.value is None) for v in values
        )

    def keep(self) -> Code:
        """The argument's text, re-indented for a statement of its own, in parentheses where it spans lines bare."""
        if self.written is not None:
            return self.written
        indent = self.view.indent(self.node)
        text = self.view.text(self.node)
        if "\n" in text and not isinstance(self.node, (ast.Call, ast.Set, ast.List, ast.Dict, ast.ListComp)):
            return ("(\n    ", self.view.keep(self.node, indent + "    "), "\n)")
        return (self.view.keep(self.node, indent),)


@dataclass
class Constructor:
    """One constructor call with its plan, and an outcome for every argument."""

    migration: Migration
    view: FileView
    call: ast.Call
    group: Group | None
    skipped: int = 0
    """Arguments of the call that come before those of the constructor: one for ``functools.partial(FSDP, …)``."""
    overrides: Sequence[ast.keyword] = ()
    """Arguments of ``wrap`` itself, where the call is that of ``enable_wrap``."""
    is_shared: bool = False
    """Whether the plan may serve several models, of which one may be a part of another."""
    is_elsewhere: bool = False
    """Whether only the arguments stand here, and the wraps in a function that they are passed to."""
    is_doubled: bool = False
    """Whether FSDP1 wraps the wrapper once more, so that it is no root and frees its parameters."""
    arguments: dict[str, Argument] = field(default_factory=dict)
    spread: list[ast.keyword] = field(default_factory=list)
    """``**kwargs`` that cannot be read."""
    opened: list[ast.keyword] = field(default_factory=list)
    """``**kwargs`` that come from outside the repository, and go to ``fully_shard`` as they are."""
    unused: list[ast.keyword] = field(default_factory=list)
    """``**kwargs`` in which nothing in the repository passes anything."""
    dictionaries: list[tuple[ast.keyword, Dictionary]] = field(default_factory=list)
    from_dictionaries: list[str] = field(default_factory=list)
    """Arguments that stand in a dictionary written out nearby."""
    with_mesh: list[tuple[ast.keyword, list[ast.Assign]]] = field(default_factory=list)
    """``**kwargs`` that hold a mesh on some ways, and the statements that put it there."""
    passed_on: set[str] = field(default_factory=set)
    """Arguments of ``fully_shard`` that stand in a dictionary which a caller passes in."""
    sets_device: bool = False
    """Whether the current device has to be set before the model is sharded."""
    casts_buffers: bool = False
    """Whether the plan casts float buffers as FSDP1 did."""
    ignored: tuple[str, Code] | None = None
    """The local name of the parameters that are left alone, and the statement that collects them."""
    chosen: tuple[Code, list[str]] | None = None
    """The name of the strategy, where it is chosen at run time, and the names that it may be."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    patches: list[Patch] = field(default_factory=list)
    """Changes elsewhere that the plan takes (the definition of a mesh, a helper function)."""

    def __post_init__(self) -> None:
        self.plan = ShardingPlan(self.view, self.call, None)

    @property
    def program(self) -> Program:
        return self.migration.program

    def positional(self, name: str) -> bool:
        """Whether an argument is given by position, so that it has no site of its own."""
        named = any(k.arg == name for k in self.call.keywords)
        return name in self.arguments and not named and name not in self.from_dictionaries

    def together(self, names: list[str], message: str) -> Outcome:
        """One outcome for several arguments: the worst level, with what is to be said of each."""
        outcomes = [self.outcomes[name] for name in names]
        manual = next((outcome for outcome in outcomes if outcome.level is Level.MANUAL), None)
        if manual is not None:
            return manual
        notes = [outcome.message for outcome in outcomes if outcome.level is Level.REVIEW]
        return Outcome(Level.REVIEW if notes else Level.SAFE, "; ".join([message, *notes]))


Translator = Callable[[Constructor, Argument], Outcome]
_TRANSLATORS: dict[str, Translator] = {}


def translates(*names: str) -> Callable[[Translator], Translator]:
    """Registers how arguments of these names are carried over."""

    def register(translator: Translator) -> Translator:
        _TRANSLATORS.update(dict.fromkeys(names, translator))
        return translator

    return register


def constructor_of(migration: Migration, view: FileView, call: ast.Call, group: Group | None) -> Constructor:
    """A constructor call, translated (once)."""
    settings = settings_of(view, call)
    if settings is not None:
        return _of_block(migration, view, call, settings, group)
    return migration.once("constructor", call, lambda: _translate(Constructor(migration, view, call, group)))


def _of_block(
    migration: Migration, view: FileView, call: ast.Call, settings: ast.Call, group: Group | None
) -> Constructor:
    """A call of ``wrap``: one constructor for all calls of a block that wrap alike."""
    is_doubled = (inner_wrap(view, call) or outer_wrap(view, call)) is not None
    overrides = [keyword for keyword in call.keywords if keyword.arg != "module"]
    key = (settings, is_doubled, *sorted(view.text(keyword) for keyword in overrides))
    constructor = Constructor(
        migration, view, settings, group, overrides=overrides, is_shared=True, is_doubled=is_doubled
    )
    return migration.once("constructor", key, lambda: _translate(constructor))


def factory_of(migration: Migration, view: FileView, call: ast.Call, group: Group | None) -> Constructor:
    """``functools.partial(FSDP, …)``, translated as the constructor that it calls."""
    return migration.once(
        "constructor", call, lambda: _translate(Constructor(migration, view, call, group, 1))
    )


def is_partial(view: FileView, call: ast.Call, function: ast.AST) -> bool:
    """Whether a call is ``functools.partial(function, …)``."""
    return view.external(call.func) == "functools.partial" and bool(call.args) and call.args[0] is function


def _translate(constructor: Constructor) -> Constructor:
    from . import initialization, meshes, offloading, performance, policies, precision, spread, strategy  # noqa: F401 - they register here

    _read_arguments(constructor)
    model = constructor.arguments.pop("module", None)
    constructor.plan.model = model.node if model is not None else None
    translate(constructor, [name for name in constructor.arguments if name not in constructor.outcomes])
    meshes.choose_mesh(constructor)
    initialization.prepare(constructor)
    for keyword in constructor.unused:
        text = constructor.view.keep(keyword.value)
        refusal = code("if ", text, ':\n    raise TypeError(f"fully_shard takes none of {list(', text, ')}")')
        constructor.plan.before.insert(0, refusal)
    for keyword, dictionary in constructor.dictionaries:
        spread.settle(constructor, keyword, dictionary)
    for keyword, items in constructor.with_mesh:
        spread.keep_mesh(constructor, keyword, items)
    if constructor.is_doubled and _frees_by_default(constructor):
        constructor.plan.root_arguments["reshard_after_forward"] = ("True",)
    if not (constructor.skipped or constructor.is_shared or constructor.is_elsewhere):
        _register_generate(constructor)
    if model is not None:
        constructor.plan.moved_up = statements_behind(
            constructor.migration, constructor.view, constructor.call, model.node
        )
    return constructor


def _register_generate(constructor: Constructor) -> None:
    """Where ``summon_full_params`` gave ``generate`` the parameters of the root, the method gathers them by itself."""
    plan, group = constructor.plan, constructor.group
    if group is None or not generating_calls(constructor.migration, group):
        return
    register = plan.name("torch.distributed.fsdp.register_fsdp_forward_method")
    method = quoted(constructor.view, METHOD)
    statement = code(register, "(", MODEL, f", {method})")
    if not surely_generates(constructor.migration, group):
        statement = code("if hasattr(", MODEL, f", {method}):\n    ", statement)
    plan.after.append(statement)


def translate(constructor: Constructor, names: Iterable[str]) -> None:
    """Adds arguments to the plan, each with its outcome."""
    for name in sorted(names, key=_order):
        argument = constructor.arguments[name]
        translator = _TRANSLATORS.get(name)
        constructor.outcomes[name] = translator(constructor, argument) if translator else _unknown(argument)


def _frees_by_default(constructor: Constructor) -> bool:
    """Whether FSDP1 frees the parameters of every unit but the root after the forward."""
    from .strategy import frees_parameters

    plan, strategy = constructor.plan, constructor.arguments.get("sharding_strategy")
    chosen = {*plan.arguments, *plan.unit_arguments, *constructor.passed_on}
    return "reshard_after_forward" not in chosen and (strategy is None or frees_parameters(strategy))


def _order(name: str) -> tuple[int, str]:
    """Policies first, since precision asks which units there are; then by the signature."""
    return (0 if name == "auto_wrap_policy" else 1 + _PLACE.get(name, len(_PLACE)), name)


_PLACE = {name: place for place, name in enumerate(PARAMETERS)}


def _read_arguments(constructor: Constructor) -> None:
    view, call = constructor.view, constructor.call
    for name, node in zip(PARAMETERS, call.args[constructor.skipped :], strict=False):
        if isinstance(node, ast.Starred):
            break
        constructor.arguments[name] = Argument(name, view, node)
    for keyword in [*call.keywords, *constructor.overrides]:
        if keyword.arg == "wrapper_cls" and is_enable_wrap(view, call):
            continue
        if keyword.arg is not None:
            constructor.arguments[keyword.arg] = Argument(keyword.arg, view, keyword.value)
        elif _is_empty(constructor.program, view, keyword.value):
            constructor.unused.append(keyword)
        else:
            _read_dictionary(constructor, keyword)


def _read_dictionary(constructor: Constructor, keyword: ast.keyword) -> None:
    from .open_dictionary import read_open
    from .passed import passed_dictionary, read_passed
    from .spread import dictionary_of, mesh_items

    is_wrap = wrapping_calls(constructor.migration).__contains__
    found = dictionary_of(constructor.view, keyword, is_wrap)
    if found is None:
        items = mesh_items(constructor.view, keyword, is_wrap)
        passed = passed_dictionary(constructor.program, constructor.view, keyword, is_wrap)
        if items:
            constructor.with_mesh.append((keyword, items))
        elif passed is not None and read_passed(constructor, keyword, passed):
            return
        elif read_open(constructor, keyword):
            constructor.opened.append(keyword)
        else:
            constructor.spread.append(keyword)
        return
    for name, node in found.entries.items():
        constructor.arguments[name] = Argument(name, constructor.view, node)
        constructor.from_dictionaries.append(name)
    constructor.dictionaries.append((keyword, found))


def wrapping_calls(migration: Migration) -> set[ast.AST]:
    """The calls that take arguments of FSDP1: constructors, and the ``enable_wrap`` of calls of ``wrap``."""

    def find() -> set[ast.AST]:
        found: set[ast.AST] = set()
        for group in migration.groups.all:
            for wrap in group.wraps:
                if "FSDP1" in group.kinds:
                    settings = settings_of(wrap.view, wrap.node)
                    found.update(call for call in (wrap.node, settings) if call is not None)
        return found

    return migration.once("wrapping calls", None, find)


def _is_empty(program: Program, view: FileView, node: ast.expr) -> bool:
    """Whether a ``**kwargs`` surely brings nothing: the callers of the function around it pass nothing more."""
    values = view.values(node)
    containers = [value for value in values if isinstance(value, Container)]
    if not values or len(containers) != len(values):
        return False
    for container in containers:
        number = program.flow.identify(container)
        fields = [name for owner, name in program.flow.fields if owner == number]
        if any(name not in ("[any]", "[*]", "**") for name in fields):
            return False
        if any(isinstance(v, Unknown) for v in program.elements([container])):
            return False
    return True


def _unknown(argument: Argument) -> Outcome:
    return Outcome(
        Level.MANUAL,
        f"{argument.name} is not an argument of FSDP1 in torch 1.12 to 2.13",
        "Take it out, or write down what it stands for; the wrap can be migrated then.",
        holds=True,
    )


# --- what the rules return ----------------------------------------------------------------------------------


def check_keyword(site: Site, migration: Migration) -> Outcome:
    """The outcome of one keyword of a constructor."""
    assert site.call is not None and site.keyword is not None
    constructor = constructor_of(migration, site.view, site.call, site.group)
    name = site.keyword.arg or ""
    if name == "module":
        return Outcome(Level.SAFE, "the model itself", silent=True)
    return constructor.outcomes.get(name, Outcome(Level.SAFE, "part of the constructor", silent=True))


def is_left_out(site: Site, migration: Migration) -> bool:
    """Whether the text of a site goes where a wrap is rewritten: an entry of its dictionary, a local that it read."""
    start, end = site.view.source.span(site.node)
    for patch in migration.once("left out", None, lambda: list(_changes_elsewhere(migration))):
        inside = patch.file == site.view.path and patch.start <= start and end <= patch.end
        if inside and not any(first <= start and end <= last for first, last in patch.spans):
            return True
    return False


def _changes_elsewhere(migration: Migration) -> Iterator[Patch]:
    for group in migration.groups.all:
        for wrap in group.wraps:
            if wrap.value.kind == "FSDP1":
                yield from constructor_of(migration, wrap.view, wrap.node, group).patches


def check_call(site: Site, migration: Migration) -> Outcome:
    """The outcome of the constructor call: the statements of its plan in its place."""
    assert site.call is not None
    subclass = built_subclass(site)
    if subclass is not None:
        return subclass
    constructor = constructor_of(migration, site.view, site.call, site.group)
    plan = constructor.plan
    outcome = constructor.together(
        [name for name in constructor.outcomes if constructor.positional(name)], _message(plan)
    )
    if outcome.level is Level.MANUAL or constructor.spread:
        return outcome
    share_definitions(migration, plan)
    try:
        patches = [*place(plan), *constructor.patches]
    except CannotPlace as error:
        return Outcome(
            Level.MANUAL,
            f"the wrap cannot be taken apart where it stands: {error}",
            "Give the wrap a statement of its own, model = FSDP(model, …), and run again.",
            holds=True,
        )
    outcome.patches.extend(patches)
    outcome.needs.extend(plan.needs)
    return outcome


def _message(plan: ShardingPlan) -> str:
    if not plan.has_units:
        return "fully_shard on the model; without units of their own all parameters are gathered at once, as before"
    return "fully_shard on each unit from the leaves up, and on the model last"
