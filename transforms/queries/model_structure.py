"""What a model holds, at any depth: its classes and layers, where all of them are seen."""

from __future__ import annotations

import ast
import builtins
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from ..facts.facts import NOTHING
from ..flow.library import ADDS_MODULE, is_optimizer
from ..flow.values import ClassValue, Container, External, FunctionValue, Instance, Opaque, Unknown, Value
from .file import File
from .forward_reach import is_named_at_run_time
from .model_classes import class_of
from .program import Program
from .sharding import ShardingQueries

_HOLDERS = frozenset({"torch.nn.ModuleList", "torch.nn.Sequential", "torch.nn.ModuleDict", "torch.nn.ParameterList"})
_ADDS = frozenset({"append", "extend", "insert", "add_module", "register_module", "setattr"})
_PLAIN_LAYERS = re.compile(
    r"timm\.(models\.(vision_transformer|layers)|layers)\.(PatchEmbed|Attention|Mlp|Block|DropPath|LayerScale|SwiGLU|\w*to_\dtuple)$"
    r"|einops\.layers\.|torchvision\.ops\.(StochasticDepth|MLP)|torchvision\.transforms\."
)
"""Modules of other libraries with plain parameters alone, and no buffers that training changes."""
_NO_MODULES = re.compile(
    r"(torch\.(?!nn\.|hub|jit|compile|load|fx|package|ao|quantization)\w|builtins\.(?!getattr|eval|vars|globals)\w"
    r"|math\.|numpy\.|os\.|pathlib\.|copy\.copy$|collections\.|dataclasses\.|typing\.|logging\.|random\.|time\.|json\.|functools\.|einops\.\w+$"
    r"|transformers\.\w*(Tokenizer|TokenizerFast|Config|Processor|FeatureExtractor)\b|tiktoken\.|sentencepiece\."
    r"|itertools\.|re\.|argparse\.|omegaconf\.|scipy\.|threading\.|string\.|warnings\.|torch\.nn\.(init|functional)\.)"
)
"""Where functions come from that give no modules."""

Class = tuple[File, ast.ClassDef]


class ModelStructure:
    """The classes and layers of which some models consist. ``models`` are the values that one expression may have."""

    def __init__(self, program: Program, sharding: ShardingQueries, models: Sequence[Value]) -> None:
        self.program = program
        self.sharding = sharding
        self.models = models

    @cached_property
    def _held(self) -> list[Value] | None:
        """All values in the models; None where something may be a module of which nothing is known."""
        held: list[Value] = []
        for value in self.sharding.held_values(self.models):
            if isinstance(value, Container) and self._mixes(value):
                return None
            if isinstance(value, Opaque) and value.name == "copy.deepcopy":
                continue  # of something that is looked at by itself
            if isinstance(value, Opaque) and not _is_known_maker(value.name):
                return None
            held.append(value)
        return held

    def _mixes(self, container: Container) -> bool:
        """Whether a container holds modules, and something of which nothing is known."""
        elements = self.sharding.elements(container)
        return any(isinstance(v, Unknown) for v in elements) and any(map(self.sharding.is_module, elements))

    @property
    def held(self) -> Sequence[Value]:
        """The models and all that is known to be in them."""
        return self._held or ()

    @cached_property
    def module_names(self) -> frozenset[str]:
        """The attributes under which the models and their parts hold modules."""
        return self._attributes(
            lambda v: not isinstance(v, Opaque) or (v.name.startswith("torch.nn.") and "Parameter" not in v.name)
        )

    @cached_property
    def parameter_names(self) -> frozenset[str]:
        """The attributes under which the models and their parts may hold parameters."""
        return self._attributes(lambda v: isinstance(v, Opaque) and v.name.endswith("Parameter")) | {"weight", "bias"}

    def _attributes(self, wanted: Callable[[Value], bool]) -> frozenset[str]:
        flow = self.program.flow
        numbers = {flow.ids[v] for v in self.held if isinstance(v, Instance)}
        modules = {flow.ids[v] for v in self.held if self.sharding.is_module(v) and wanted(v)}
        return frozenset(
            name for (owner, name), variable in flow.fields.items()
            if owner in numbers and not modules.isdisjoint(flow.ids[v] for v in flow.values_of(variable))
        )  # fmt: skip

    @cached_property
    def layers(self) -> frozenset[str]:
        """The names of the layers of torch, and of other libraries, that the models hold."""
        return frozenset(v.name for v in self._held or () if isinstance(v, Opaque) and not _NO_MODULES.match(v.name))

    @cached_property
    def classes(self) -> list[Class]:
        """The module classes of the repository among the models and their parts, bases from the repository included."""
        flow = self.program.flow
        found: dict[ast.ClassDef, Class] = {}
        for value in self._held or ():
            if isinstance(value, Instance) and not self.sharding.is_no_module(value):
                for cls in flow.ancestors(value.cls):
                    place = class_of(self.program, Instance(cls, value.site))
                    if place is not None:
                        found.setdefault(place[1], place)
        return list(found.values())

    @cached_property
    def model_classes(self) -> list[Class]:
        """The classes of the models themselves."""
        instances = dict.fromkeys(Instance(v.cls, -1) for v in self.models if isinstance(v, Instance))
        return [place for place in (class_of(self.program, one) for one in instances) if place is not None]

    @cached_property
    def is_known(self) -> bool:
        """Whether every module in the models is seen: classes of the repository, and layers that are known."""
        flow = self.program.flow
        if self._held is None or not self.models:
            return False
        if not all((isinstance(v, Instance) and v.site >= 0) or self.sharding.is_module(v) for v in self.models):
            return False
        for value in self._held:
            if isinstance(value, Instance) and not self.sharding.is_no_module(value):
                if not all(
                    base.startswith(("torch.nn.", "abc.", "typing.", "builtins.")) for base in flow.external_bases(value.cls)
                ):
                    return False
                if any(flow.has_member(value.cls, name) for name in ("__getattr__", "__new__", "__setattr__")):
                    return False
        return all(map(self._is_filled, self.models)) and all(self._is_seen_whole(file, cls) for file, cls in self.classes)

    @cached_property
    def forward_methods(self) -> list[tuple[File, ast.AST]]:
        """The methods of the classes that a forward may run, by their names, and functions of the repository that these call."""
        by_name: dict[str, list[tuple[File, ast.AST]]] = {}
        for file, cls in self.classes:
            for method in (f for f in cls.body if isinstance(f, ast.FunctionDef)):
                by_name.setdefault(method.name, []).append((file, method))
        pending, found = [*by_name.get("forward", ())], dict[ast.AST, tuple[File, ast.AST]]()
        while pending:
            file, node = pending.pop()
            if node in found:
                continue
            found[node] = file, node
            pending += [other for name in _mentioned(node) for other in by_name.get(name, ())]
            if any(map(is_named_at_run_time, ast.walk(node))):
                pending += [other for places in by_name.values() for other in places]
            for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
                called = [v for v in file.called_values(call) if isinstance(v, FunctionValue)]
                pending += map(self.program.function_node, {*called, *self.program.callees(file, call)})
        return list(found.values())

    @cached_property
    def calls_unseen_functions(self) -> bool:
        """Whether a forward may call a function of the repository out of sight: one that is kept, or that a hook is."""
        for file, node in self.forward_methods:
            for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
                if isinstance(call.func, ast.Subscript | ast.Call) and not file.values(call.func):
                    if not any(isinstance(n, ast.Attribute) or getattr(n, "id", "") == "self" for n in ast.walk(call.func)):
                        return True  # self.layers[i](x) and self[0](x) are modules
        return self.program.mentions(r"\bregister_(?:full_|module_)?(?:forward|backward)\w*hook\b")

    @cached_property
    def ties(self) -> list[tuple[File, ast.Assign]]:
        """The statements that give a module another one's parameter: ``self.head.weight = self.embedding.weight``."""
        found: list[tuple[File, ast.Assign]] = []
        for file, cls in self.classes:
            for node in (n for n in ast.walk(cls) if isinstance(n, ast.Assign)):
                targets = [t for t in node.targets if isinstance(t, ast.Attribute) and t.attr in ("weight", "bias")]
                if targets and isinstance(node.value, ast.Attribute):
                    found.append((file, node))
        return found

    def _is_filled(self, value: Value) -> bool:
        """Whether it is known what a model that only holds others was given."""
        if not isinstance(value, Opaque) or value.name not in _HOLDERS:
            return True
        call = self.program.flow.calls[value.site]
        return bool(call.arguments) and all(a != NOTHING and self.program.flow.values_of(a) for a in call.arguments)

    def _is_seen_whole(self, file: File, cls: ast.ClassDef) -> bool:
        """Whether the constructor of a class makes nothing that may be a module of an unknown kind, and none is called."""
        if any(map(functools.partial(self._is_unknown, file, cls), (n for n in ast.walk(cls) if isinstance(n, ast.Call)))):
            return False
        for around, node in self._constructing(file, cls):
            for made in _kept_modules(around, node):
                if not all(_is_seen(around, call) for call in made):
                    return False
        return True

    def _is_unknown(self, file: File, cls: ast.ClassDef, call: ast.Call) -> bool:
        """Whether an attribute of the object is called of which nothing is known."""
        called = call.func
        is_own = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "self"
        if not is_own or not isinstance(called, ast.Attribute) or file.called_values(call):
            return False
        classes = [v for v in file.values(cls) if isinstance(v, ClassValue)]
        return not (called.attr in _METHODS_OF_MODULES or any(self.program.flow.has_member(v, called.attr) for v in classes))

    def _constructing(self, file: File, cls: ast.ClassDef) -> Iterator[tuple[File, ast.AST]]:
        """The methods of a class, and functions of the repository that they call to make parts."""
        pending: list[tuple[File, ast.AST]] = [(file, f) for f in cls.body if isinstance(f, ast.FunctionDef)]
        seen: set[ast.AST] = set()
        while pending:
            around, function = pending.pop()
            if function in seen:
                continue
            seen.add(function)
            yield around, function
            for call in (n for n in ast.walk(function) if isinstance(n, ast.Call)):
                for callee in self.program.callees(around, call):
                    place = self.program.function_node(callee)
                    if place[0].enclosing_class(place[1]) is None:
                        pending.append(place)


def _mentioned(node: ast.AST) -> set[str]:
    """The attributes in a function, and words by which one may be asked for."""
    names = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return names | {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def _is_known_maker(name: str) -> bool:
    return name.startswith("torch.nn.") or bool(_PLAIN_LAYERS.match(name) or _NO_MODULES.match(name)) or is_optimizer(name)


def _kept_modules(file: File, function: ast.AST) -> Iterator[list[ast.expr]]:
    """What a function puts into attributes, containers of modules and its result."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            attributes = (n for target in targets for n in ast.walk(target) if isinstance(n, ast.Attribute))
            if any(isinstance(n.value, ast.Name) and n.value.id == "self" for n in attributes):
                yield list(_made(node.value))
        elif isinstance(node, ast.Call):
            name = file.external(node.func) or ""
            adds = isinstance(node.func, ast.Attribute) and node.func.attr in _ADDS
            if name in _HOLDERS or adds or name == "builtins.setattr":
                yield [made for argument in node.args for made in _made(argument)]
            if isinstance(node.func, ast.Attribute) and node.func.attr in ADDS_MODULE:
                yield [argument for argument in node.args[1:] if isinstance(argument, ast.Name)]


def _made(value: ast.expr) -> Iterator[ast.expr]:
    """The calls whose results an expression may give, or hold."""
    if isinstance(value, ast.Call):
        yield value
    elif isinstance(value, ast.IfExp):
        yield from (*_made(value.body), *_made(value.orelse))
    elif isinstance(value, ast.BoolOp):
        yield from (made for part in value.values for made in _made(part))
    elif isinstance(value, ast.List | ast.Tuple | ast.Set):
        yield from (made for part in value.elts for made in _made(part))
    elif isinstance(value, ast.Starred):
        yield from _made(value.value)
    elif isinstance(value, ast.ListComp | ast.GeneratorExp | ast.SetComp):
        yield from _made(value.elt)
    elif isinstance(value, ast.DictComp):
        yield from _made(value.value)
    elif isinstance(value, ast.Dict):
        yield from (made for part in value.values for made in _made(part))
    elif isinstance(value, ast.BinOp):
        yield from (*_made(value.left), *_made(value.right))


def _is_seen(file: File, call: ast.expr) -> bool:
    """Whether it is known what a call gives, or a name stands for."""
    values = file.values(call)
    if values:
        return not any(isinstance(v, Unknown) for v in values)
    if not isinstance(call, ast.Call):
        return False
    called = file.called_values(call)
    if called and all(isinstance(v, External) for v in called):
        return all(_is_known_maker(v.name) for v in called if isinstance(v, External))
    name = file.external(call.func)
    if name is not None:
        return _is_known_maker(name)
    if isinstance(call.func, ast.Attribute):  # a method: of a tensor, a text, a dictionary; what makes modules has a capital
        return call.func.attr in _METHODS_OF_VALUES
    return isinstance(call.func, ast.Name) and call.func.id in _BUILTIN


_METHODS_OF_VALUES = frozenset(
    {"get", "pop", "copy", "split", "strip", "lower", "upper", "format", "keys", "values", "items", "index", "count", "join",
     "view", "reshape", "transpose", "permute", "float", "int", "long", "bool", "to", "cuda", "cpu", "clone", "detach",
     "repeat", "expand", "unsqueeze", "squeeze", "sum", "mean", "sqrt", "exp", "log", "pow", "size", "dim", "numel", "item",
     "tolist", "append", "extend", "t", "contiguous", "register_buffer", "register_parameter", "normal_", "uniform_",
     "zero_", "fill_", "requires_grad_", "half", "type", "eval"}
)  # fmt: skip
"""Methods of tensors, texts, lists and dictionaries: what they give is no module."""
_BUILTIN = frozenset(dir(builtins))
_METHODS_OF_MODULES = frozenset(
    {"add_module", "apply", "bfloat16", "buffers", "children", "compile", "cpu", "cuda", "double", "eval", "extra_repr", "float",
     "get_buffer", "get_parameter", "get_submodule", "half", "load_state_dict", "modules", "named_buffers", "named_children",
     "named_modules", "named_parameters", "parameters", "register_backward_hook", "register_buffer", "register_forward_hook",
     "register_forward_pre_hook", "register_full_backward_hook", "register_module", "register_parameter", "requires_grad_",
     "share_memory", "state_dict", "to", "to_empty", "train", "type", "zero_grad", "forward", "__call__"}
)  # fmt: skip
