"""Sites: every reference to an old symbol, and every use of a value that FSDP2 may shard."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .facts.symbols import AVERAGES, DDP, is_old, is_old_module
from .facts.wrapper_members import MEMBERS, OF_ALL_MODULES, OF_BOTH, ONLY_KNOWN
from .flow.library import is_optimizer
from .flow.values import (
    Bound,
    ClassValue,
    Derived,
    External,
    FunctionValue,
    Instance,
    ModuleValue,
    Opaque,
    Optimizer,
    Unknown,
    Value,
    Wrapped,
)
from .queries import number_reads
from .queries.answers import Sharding
from .queries.average_classes import averages_made, updates_average
from .queries.backward_inputs import inputs_of_backwards
from .queries.class_reads import classes_read
from .queries.class_tests import TESTS, tests_of
from .queries.file import File
from .queries.hidden_attributes import hidden_attributes
from .queries.library_checkpointers import own_checkpointers
from .queries.local_parameters import parameters_left_behind
from .queries.named_methods import may_have_method
from .queries.narrowed import wrapper_asked_for
from .queries.own_parameters import is_own_parameter
from .queries.parameter_reads import parameters_read
from .queries.past_ddp import runs_past_ddp
from .queries.reshaped_parameters import parameters_reshaped
from .queries.second_backwards import second_backwards
from .queries.sharding import ShardingQueries
from .queries.summoned import summoned_around
from .queries.uneven_forwards import called_in_uneven_loops
from .queries.whole_optimizers import optimizers_made, steps_on_wholes
from .queries.whole_reads import whole_reads

MODULE_METHODS = "torch.nn.Module.(method)"
"""The symbol of methods that a model's own class defines."""
OWN_ATTRIBUTE = "torch.nn.Module.(attribute)"
"""The symbol of attributes that are set on a wrapper."""
HIDDEN_ATTRIBUTE = f"{DDP}.(what it hid)"
"""The symbol of questions to the wrapper for what only the model in it has."""
DATA = "torch.Tensor.data"
"""The symbol of ``.data`` of a sharded parameter."""
IN_PLACE = "torch.Tensor.(in place)"
NUMBER = "torch.Tensor.(number)"
"""The symbol of methods that read numbers off parameters, gradients, or what is computed from them."""
_CHAINS = (ast.Name, ast.Attribute, ast.Subscript)
PARAMETER = "torch.nn.Parameter.(read)"
"""The symbol of parameters that are read off a model by name and computed with."""
WHOLE_READ = "torch.Tensor.(read)"
"""The symbol of what is to be gathered of a gradient or parameter that is only read."""
SHAPE = "torch.Tensor.(shape)"
"""The symbol of tests of the shapes of parameters."""
_SHAPES = frozenset({"dim", "ndim", "ndimension", "shape", "size"})
COUNT = "torch.Tensor.(count)"
"""The symbol of counts of the elements of parameters."""
_COUNTS = frozenset({"numel", "nelement"})
AVERAGE_UPDATE = "torch.optim.swa_utils.AveragedModel.update_parameters"
"""The symbol of methods that update an average of a model which a library keeps."""
STATE_ENTRY = "torch.nn.Module.(state entry)"
"""The symbol of parameters that are put into a state dict."""
MODEL_CLASS = "torch.nn.Module.(class)"
"""The symbol of the class of a model that is taken for a value."""
PAST_DDP = "torch.nn.Module.(past DDP)"
"""The symbol of forwards of modules that were handed to DDP, past the wrapper."""
UNEVEN_CALL = "torch.nn.Module.(uneven calls)"
"""The symbol of calls in loops that ranks leave at different times."""
LOCAL_PARAMETER = "torch.nn.(parameter in a variable)"
OPTIMIZER = "torch.optim.(optimizer)"
"""The symbol of calls that make an optimizer which looks at more than single elements."""
OPTIMIZER_STEP = "torch.optim.Optimizer.(step)"
"""The symbol of steps that the repository's own classes of such optimizers make."""
SECOND_BACKWARD = "torch.Tensor.(second backward)"
"""The symbol of backwards behind another one, with no forward in between."""
BACKWARD_INPUTS = "torch.Tensor.(inputs of a backward)"
"""The symbol of what a backward is told to give gradients of."""
_WITHOUT_ARGUMENTS = frozenset({"no_sync", "check_is_root"})
_IN_PLACE = frozenset({"copy_", "add_", "sub_", "mul_", "div_", "lerp_", "addcmul_", "addcdiv_"})
_METHODS = frozenset({"join", "state_dict_type", "set_state_dict_type", "get_state_dict_type", "fsdp_modules",
                      "optim_state_dict", "optim_state_dict_to_load"})  # fmt: skip
_SETTINGS = ONLY_KNOWN - {"named_parameters", "named_buffers", "named_modules"}
"""Members that modules may have of their own, under the same names."""
_IMPORTS_BY_NAME = frozenset({"importlib.import_module", "builtins.__import__"})
_DYNAMIC = frozenset({"builtins.getattr", "builtins.hasattr", "builtins.setattr", "builtins.delattr"})


@dataclass(frozen=True, eq=False)
class Site:
    """One place that a rule has to answer for.

    ``role`` says how the symbol is used there: ``import``, ``call`` (``call`` is the whole call, ``node`` too), ``value``
    (handed on, compared, subscripted), ``test`` (in ``isinstance``),
    ``classes`` (handed on to an ``isinstance`` that asks for it by another name), ``annotation``, ``base`` (of a class); of
    members also ``read`` and ``store``; ``dynamic`` for a member named in quotes; ``method`` for a model's own methods, called
    or not, named in quotes or not.
    ``receiver`` is the expression that a member is read off.
    """

    file: File
    node: ast.AST
    symbol: str
    role: str
    call: ast.Call | None = None
    receiver: ast.expr | None = None
    sharding: Sharding | None = None

    @property
    def member(self) -> str:
        """The last part of the symbol."""
        return self.symbol.rpartition(".")[2]


def find_sites(file: File, sharding: ShardingQueries, is_known: Callable[[str, str], bool]) -> list[Site]:
    """The sites of a file in the order of the text. ``is_known`` says whether a rule answers for a symbol in a role."""
    sites = [*_imports(file), *_references(file, is_known), *_members(file, sharding), *_dynamic(file, sharding)]
    sites += [*_state_entries(file, sharding), *_tested_shapes(file, sharding)]
    sites += [Site(file, call, AVERAGES[0], "call", call) for call in averages_made(file, sharding)]
    for node, tensor, found in number_reads.numbers_read(file, sharding):
        sites.append(Site(file, node, NUMBER, "call", node if isinstance(node, ast.Call) else None, tensor, found))
    read = {found[0]: found for found in (*parameters_reshaped(file, sharding), *parameters_read(file, sharding))}
    sites += [Site(file, node, PARAMETER, "read", None, model, found) for node, model, found in read.values()]
    sites += [Site(file, gathered, WHOLE_READ, "read", None, tensor) for tensor, gathered in whole_reads(file)]
    sites += [Site(file, call, OPTIMIZER, "call", call, None, found) for call, found in optimizers_made(file, sharding)]
    sites += [Site(file, node, MODEL_CLASS, "read", None, model, found) for node, model, found in classes_read(file, sharding)]
    sites += [Site(file, call, PAST_DDP, "call", call, call.func, found) for call, found in runs_past_ddp(file, sharding)]
    sites += [Site(file, c, UNEVEN_CALL, "call", c, c.func, found) for c, found in called_in_uneven_loops(file, sharding)]
    sites += [Site(file, c, SECOND_BACKWARD, "call", c, m, sharding.of(file, m)) for c, m in second_backwards(file, sharding)]
    sites += [Site(file, c, HIDDEN_ATTRIBUTE, "call", c, m, found) for c, m, found in hidden_attributes(file, sharding)]
    sites += [Site(file, node, BACKWARD_INPUTS, "read") for node in inputs_of_backwards(file, sharding)]
    sites += [Site(file, node, LOCAL_PARAMETER, "read") for node in parameters_left_behind(file, sharding)]
    sites += [Site(file, call, base, "call", call) for call, base in own_checkpointers(file)]
    sites += [Site(file, step, OPTIMIZER_STEP, "method") for step in steps_on_wholes(file, sharding)]
    return sorted(sites, key=lambda site: file.source.span(site.node))


def _imports(file: File) -> Iterator[Site]:
    for node in file.nodes(ast.Import, ast.ImportFrom):
        for alias in node.names:
            if isinstance(node, ast.Import):
                if is_old_module(alias.name):
                    yield Site(file, alias, alias.name, "import")
                continue
            if node.level or alias.name == "*":
                continue
            values = file.values(alias)
            name = next((v.name for v in values if isinstance(v, External)), f"{node.module}.{alias.name}")
            if is_old(name) or is_old_module(name):
                yield Site(file, alias, name, "import")


def _references(file: File, is_known: Callable[[str, str], bool]) -> Iterator[Site]:
    """Expressions that are an old symbol, each once: of ``FSDP.state_dict_type`` the whole, not ``FSDP`` as well."""
    inner: set[ast.AST] = set()
    for node in file.nodes(ast.Attribute, ast.Name, ast.Call):
        if node in inner or not _is_read(file, node) or _is_inherited(file, node):
            continue
        symbol = file.external(node)
        if symbol is None or symbol.startswith("torch.nn.Module."):
            continue  # a method of all modules: a class that overrides it calls the one of before
        role, call = _role(file, node)
        if role == "value" and _is_of_variable(file, node):
            continue  # what comes to it is rewritten where it is named
        if is_old(symbol) or is_known(symbol, role):
            current: ast.expr = node
            while isinstance(current, (ast.Attribute, ast.Call)):
                current = current.value if isinstance(current, ast.Attribute) else current.args[0]
                inner.add(current)
            yield Site(file, call or node, symbol, role, call)


def _is_of_variable(file: File, node: ast.expr) -> bool:
    """Whether a variable or an object's attribute holds a symbol, or what it is read off; a module may have another name."""
    while isinstance(node, ast.Attribute):
        held = file.external(node.value)
        if held is not None and not is_old(held):
            return False
        node = node.value
    return isinstance(node, ast.Name) and node.id not in file.imported_names


def _is_read(file: File, node: ast.Attribute | ast.Name | ast.Call) -> bool:
    """Whether an expression reads a name, or an attribute (``getattr(FSDP, "state_dict_type")`` is one)."""
    if not isinstance(node, ast.Call):
        return isinstance(node.ctx, ast.Load)
    return len(node.args) == 2 and file.external(node.func) == "builtins.getattr" and file.external(node.args[0]) is not None


def _is_inherited(file: File, node: ast.Attribute | ast.Name | ast.Call) -> bool:
    """Whether an attribute is read off an object, so that it is a member even where its class got it from torch."""
    return isinstance(node, ast.Attribute) and any(isinstance(v, Instance) for v in file.values(node.value))


def _role(file: File, node: ast.expr) -> tuple[str, ast.Call | None]:
    parent = file.parents[node]
    if isinstance(parent, ast.Call) and parent.func is node:
        return "call", parent
    outer: ast.AST = node
    while isinstance(file.parents[outer], (ast.Tuple, ast.BinOp, ast.Subscript, ast.List)):
        outer = file.parents[outer]
    above = file.parents[outer]
    if isinstance(above, ast.Call) and len(above.args) == 2 and above.args[1] is outer and file.external(above.func) in TESTS:
        return "test", above
    is_handed_on = isinstance(above, (ast.Assign, ast.arguments, ast.Call, ast.keyword, ast.Return, ast.IfExp))
    if is_handed_on and isinstance(outer, ast.expr) and tests_of(file, outer):
        return "classes", None
    if isinstance(above, ast.Compare) and isinstance(above.left, ast.Call) and file.external(above.left.func) == "builtins.type":
        return "type", None
    if isinstance(above, ast.ClassDef) and outer in above.bases:
        return "base", None
    if isinstance(above, ast.IfExp) and _is_chosen_base(file, above):
        return "base", None
    if isinstance(above, (ast.arg, ast.AnnAssign)) and above.annotation is outer:
        return "annotation", None
    if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)) and above.returns is outer:
        return "annotation", None
    return "value", None


def _is_chosen_base(file: File, choice: ast.expr) -> bool:
    """Whether a class is derived from one of two: ``class C(DDP if distributed else DataParallel)``."""
    above = file.parents[choice]
    return isinstance(above, ast.ClassDef) and choice in above.bases


def _members(file: File, sharding: ShardingQueries) -> Iterator[Site]:
    for node in file.nodes(ast.Attribute):
        parent = file.parents[node]
        call = parent if isinstance(parent, ast.Call) and parent.func is node else None
        if node.attr in _IN_PLACE and call is not None:
            if _writes_from_parameters(file, sharding, call):
                yield Site(file, call, IN_PLACE, "call", call, node.value)
            continue
        symbol = MEMBERS.get(node.attr)
        if isinstance(parent, ast.Call) and (file.external(parent.func) or "") in _IMPORTS_BY_NAME:
            continue  # a name
        if symbol is None and isinstance(node.ctx, ast.Store) and any(isinstance(v, Wrapped) for v in file.values(node.value)):
            found = sharding.of(file, node.value)
            if found.wrapped_in:
                yield Site(file, node, OWN_ATTRIBUTE, "store", None, node.value, found)
        is_handed = call is None and (_is_method(file, node) or _is_handed_on(file, sharding, node))
        if symbol is None and call is None and node.attr != "data" and not is_handed:
            continue
        if isinstance(node.value, ast.Call) and file.external(node.value.func) == "builtins.super":
            continue  # whoever calls the method around it knows what it is called on
        values = file.values(node.value)
        if call is not None and updates_average(sharding, values, node.attr):
            yield Site(file, call, AVERAGE_UPDATE, "call", call)
            continue
        if values and all(isinstance(v, (External, ModuleValue, FunctionValue, ClassValue)) for v in values):
            continue
        if node.attr == "data" and isinstance(node.ctx, ast.Store):
            owners = [v.owner for v in values if isinstance(v, Derived) and v.kind == "parameters"]
            found = sharding.of_owners(owners, path=file.path)  # type: ignore[arg-type]
            if found.wrappers:
                yield Site(file, node, DATA, "store", None, node.value, found)
            continue
        if node.attr in number_reads.METHODS and call is not None and not call.args:
            continue
        found = sharding.of(file, node.value)
        if symbol is None:
            if not found.wrappers and call is not None:
                found = sharding.of_part(file, node.value)
            if found.wrappers and not _is_of_all_modules(node.attr) and not _is_of_optimizers(sharding, values, node.attr):
                yield Site(file, call or node, MODULE_METHODS, "method", call, node.value, found)
            continue
        if node.attr in ONLY_KNOWN and found.in_place:
            continue  # the module itself, which has no members of a wrapper
        if node.attr in _SETTINGS and (_is_of_other_wrapper(node.attr, found) or _is_modules_own(sharding, values, node.attr)):
            continue
        if node.attr in _SETTINGS and call is None and _is_stored(file, node.attr):
            if node.attr in _METHODS or not found.wrappers:
                continue
        if node.attr in ONLY_KNOWN and not found.wrappers and not _is_context_of_ddp(file, node):
            if not _is_of_wrapper(node.attr, wrapper_asked_for(file, node, node.value)):
                continue
        elif node.attr == "device" and found.wrappers != {"ddp"}:
            continue  # FSDP1 hands on to the model's own
        if node.attr in _WITHOUT_ARGUMENTS and call is not None and (call.args or call.keywords):
            continue  # a method of that name which is none of a wrapper's
        role = "call" if call else "read" if isinstance(node.ctx, ast.Load) else "store"
        yield Site(file, call or node, symbol, role, call, node.value, found)


def _is_of_other_wrapper(name: str, found: Sharding) -> bool:
    """Whether none of the wrappers that come to a place has a member."""
    kind = "ddp" if MEMBERS[name].startswith(f"{DDP}.") else "fsdp1"
    return bool(found.wrappers) and kind not in found.wrappers and name not in OF_BOTH


def _is_stored(file: File, name: str) -> bool:
    """Whether some class of the repository stores an attribute of a name: what nobody knows may be of it."""
    return file.program.mentions(rf"\bself\.{name}\s*(:[^=\n]+)?=[^=]")


def _is_modules_own(sharding: ShardingQueries, values: Sequence[Value], name: str) -> bool:
    """Whether one of the modules that come to a place beside wrappers has such a member itself."""
    flow = sharding.program.flow
    own = [value for value in values if isinstance(value, Instance)]
    held = (flow.fields.get((flow.ids.get(value, -1), name)) for value in own)
    return any(flow.has_member(value.cls, name) for value in own) or any(v is not None and flow.values_of(v) for v in held)


def _is_of_wrapper(name: str, kind: str | None) -> bool:
    return kind is not None and (kind == "DDP") == MEMBERS[name].startswith(f"{DDP}.")


def _is_context_of_ddp(file: File, node: ast.Attribute) -> bool:
    """Whether this is ``with x.join():``: threads and strings have a ``join`` too, but none that is a context."""
    return node.attr == "join" and isinstance(file.parents[file.parents[node]], ast.withitem)


def parameters_in(file: File, node: ast.AST) -> Iterator[ast.expr]:
    """The parts of an expression that are parameters of models: of ``p.data.lerp(q, 0.1)`` both ``p.data`` and ``q``."""
    if isinstance(node, _CHAINS):
        if any(isinstance(v, Derived) and v.kind == "parameters" for v in file.values(node)):
            yield node
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from parameters_in(file, node.func.value)
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.Call) and child is node.func):
            yield from parameters_in(file, child)


def _writes_from_parameters(file: File, sharding: ShardingQueries, call: ast.Call) -> bool:
    """Whether a tensor is written from parameters, of a model in a wrapper, or to those of one.

    Not in an optimizer: its state is laid out as its parameters are.
    """
    around = file.enclosing_class(call)
    if around is not None and any(is_optimizer(file.external(base) or "") for base in around.bases):
        return False
    given = [p for value in (*call.args, *(k.value for k in call.keywords)) for p in parameters_in(file, value)]
    is_of_parameters = any(True for _ in parameters_in(file, call.func.value))  # type: ignore[attr-defined]
    if not is_of_parameters and all(is_own_parameter(sharding, file, p) for p in given):
        return False
    owners = [v.owner for p in (*given, *parameters_in(file, call)) for v in file.values(p) if isinstance(v, Derived)]
    return bool(given) and bool(sharding.of_owners(owners, path=file.path).wrappers)  # type: ignore[arg-type]


def _state_entries(file: File, sharding: ShardingQueries) -> Iterator[Site]:
    """``state[name] = p`` for a parameter of a model in a wrapper, or what nobody knows in the state of one."""
    for node in file.nodes(ast.Assign):
        target = node.targets[0]
        if len(node.targets) > 1 or not isinstance(target, ast.Subscript) or not isinstance(node.value, _CHAINS):
            continue
        states = _states_in(file, target.value)
        if not states:
            continue
        values = file.values(node.value)
        owners = [v.owner for v in values if isinstance(v, Derived) and v.kind == "parameters"]
        if not values or any(isinstance(v, Unknown) for v in values):
            owners += [state.owner for state in states]
        found = sharding.of_owners(owners, path=file.path)  # type: ignore[arg-type]
        if found.wrappers:
            yield Site(file, node, STATE_ENTRY, "store", None, node.value, found)


def _states_in(file: File, node: ast.expr) -> list[Derived]:
    """The state dicts that an expression may be, or be a copy of."""
    values = file.values(node)
    flow = file.program.flow
    copied = [flow.calls[v.site].arguments[:1] for v in values if isinstance(v, Opaque) and v.name == "copy.deepcopy"]
    values = [*values, *(v for variables in copied for variable in variables for v in flow.values_of(variable))]
    return [v for v in values if isinstance(v, Derived) and v.kind == "state_dict"]


def _tested_shapes(file: File, sharding: ShardingQueries) -> Iterator[Site]:
    """``if p.dim() >= 2`` for a parameter of a model in a wrapper, and ``p.numel()`` anywhere."""
    for node in file.nodes(ast.Attribute):
        is_tested = node.attr in _SHAPES and any(isinstance(a, ast.Compare) for a in file.ancestors(node))
        if not is_tested and (node.attr not in _COUNTS or any(True for _ in summoned_around(file, node))):
            continue
        owners = [v.owner for v in file.values(node.value) if isinstance(v, Derived) and v.kind == "parameters"]
        found = sharding.of_owners(owners, path=file.path)  # type: ignore[arg-type]
        if found.wrappers and not _is_of_forward(file, node.value):
            yield Site(file, node, SHAPE if is_tested else COUNT, "read", None, node.value, found)


def _is_of_forward(file: File, node: ast.expr) -> bool:
    """Whether a tensor is computed with by a module's own method: there parameters have their own shapes, as all else has.

    A loop over parameters in such a method is for whoever calls it from outside.
    """
    around = file.enclosing_class(node)
    if around is None or not any(isinstance(member, ast.FunctionDef) and member.name == "forward" for member in around.body):
        return False
    loops = (n for n in file.nodes(ast.For, ast.comprehension) if "param" in ast.unparse(n.iter))
    bound = {n.id for loop in loops for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    return not (isinstance(node, ast.Name) and node.id in bound)


def _dynamic(file: File, sharding: ShardingQueries) -> Iterator[Site]:
    """``getattr(model, "module")`` and its kin, by the name in quotes."""
    for node in file.nodes(ast.Call):
        if len(node.args) < 2 or file.external(node.func) not in _DYNAMIC:
            continue
        key = node.args[1]
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str) or file.external(node.args[0]) is not None:
            continue  # an attribute of a class is a reference
        found = sharding.of(file, node.args[0])
        symbol = MEMBERS.get(key.value)
        if symbol is not None and (key.value not in ONLY_KNOWN or found.wrappers):
            yield Site(file, node, symbol, "dynamic", node, node.args[0], found)
        elif symbol is None and found.wrappers and not _is_of_all_modules(key.value) and _is_method(file, node):
            parent = file.parents[node]
            call = parent if isinstance(parent, ast.Call) and parent.func is node else None
            yield Site(file, node, MODULE_METHODS, "method", call, node.args[0], found)


def _is_method(file: File, node: ast.Attribute | ast.Call) -> bool:
    """Whether an attribute is surely a method, or ``getattr(x, "name")`` one that is called at once."""
    if isinstance(node, ast.Attribute):
        values = file.values(node) if isinstance(node.ctx, ast.Load) else []
        return bool(values) and all(isinstance(value, Bound) for value in values)
    if len(node.args) != 2 or file.external(node.func) != "builtins.getattr":
        return False
    parent, values = file.parents[node], file.values(node)
    called = isinstance(parent, ast.Call) and parent.func is node
    return called or (bool(values) and all(isinstance(value, Bound) for value in values))


def _is_handed_on(file: File, sharding: ShardingQueries, node: ast.Attribute) -> bool:
    """Whether code gets an attribute of what nobody knows, and modules have a method of that name: ``scores(model.embed, x)``."""
    around = file.parents[node]
    around = file.parents[around] if isinstance(around, ast.keyword) else around
    if not isinstance(around, ast.Call) or around.func is node or not isinstance(node.ctx, ast.Load):
        return False
    flow = file.program.flow
    methods = flow.methods_by_name().get(node.attr, ())
    owners = (ClassValue(m.file, flow.files[m.file].functions[m.index].owner_class) for m in methods)
    return any(map(sharding.makes_modules, owners)) and not file.values(node) and not _is_stored(file, node.attr)


def _is_of_optimizers(sharding: ShardingQueries, values: Sequence[Value], name: str) -> bool:
    """Whether a method that is called on what may be a model or an optimizer surely is the optimizer's, or a scheduler's."""
    if any(isinstance(v, Optimizer) for v in values) and not any(isinstance(v, (Instance, Wrapped)) for v in values):
        return True
    return name == "step" or not may_have_method(sharding, values, name)


def _is_of_all_modules(name: str) -> bool:
    """Whether every module, or every model of FSDP2, has a method of this name that means the same there."""
    return name in OF_ALL_MODULES
