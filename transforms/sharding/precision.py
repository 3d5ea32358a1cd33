"""mixed_precision: the policy that every fully_shard call takes."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..analysis.facts import FileFacts
from ..analysis.values import ClassValue, Constant, External, FunctionValue, Instance, Opaque, Wrapped
from ..findings import Level
from ..rule import Outcome
from ..view import FileView
from .constructor import Argument, Constructor, translates
from .plan import MODEL, UNIT, Code, code, listed_call

MIXED_PRECISION = "torch.distributed.fsdp.MixedPrecision"
CPU_OFFLOAD = "torch.distributed.fsdp.CPUOffload"
FIELDS = (
    "param_dtype", "reduce_dtype", "buffer_dtype", "keep_low_precision_grads", "cast_forward_inputs",
    "cast_root_forward_inputs", "_module_classes_to_ignore",
)  # fmt: skip
POLICIES = {
    MIXED_PRECISION: "torch.distributed.fsdp.MixedPrecisionPolicy",
    CPU_OFFLOAD: "torch.distributed.fsdp.OffloadPolicy",
}


@dataclass(frozen=True)
class Precision:
    """One ``MixedPrecision(…)`` call and its fields."""

    view: FileView
    call: ast.Call
    fields: dict[str, ast.expr]

    def flag(self, name: str, default: bool | None) -> bool | None:
        """A truth value that is written out; None where it is computed."""
        node = self.fields.get(name)
        if node is None:
            return default
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, bool) else None


def precision_of(view: FileView, call: ast.Call) -> Precision:
    """The fields of a MixedPrecision call, by name."""
    fields: dict[str, ast.expr] = {}
    fields.update(zip(FIELDS, call.args, strict=False))
    fields.update({k.arg: k.value for k in call.keywords if k.arg is not None})
    return Precision(view, call, fields)


@translates("mixed_precision")
def mixed_precision(constructor: Constructor, argument: Argument) -> Outcome:
    """Sets mp_policy for every call, and casts the buffers that FSDP1 would have cast."""
    if argument.is_none:
        return Outcome(Level.SAFE, "no mixed precision, no policy")
    calls = [
        constructor.program.call_node(v.site)
        for v in argument.values
        if isinstance(v, Opaque) and v.name == MIXED_PRECISION
    ]
    sources = [precision_of(view, call) for view, call in calls]
    foreign = [
        v
        for v in argument.values
        if not (isinstance(v, Opaque) and v.name == MIXED_PRECISION) and not is_none(v)
    ]
    plan = constructor.plan
    plan.arguments["mp_policy"] = or_default(constructor, argument, MIXED_PRECISION)
    notes: list[str] = []
    if not sources or foreign:
        notes.append(
            "the policy may come from outside the repository, where it has to become a MixedPrecisionPolicy"
        )
    notes.extend(_inputs(constructor, argument, sources))
    notes.extend(_buffers(constructor, argument, sources))
    notes.extend(_normalisation(constructor, sources))
    message = "every fully_shard call takes the precision as mp_policy"
    return Outcome(Level.REVIEW if notes else Level.SAFE, "; ".join([message, *notes]))


def is_none(value: object) -> bool:
    """Whether a value is None."""
    return isinstance(value, Constant) and value.value is None


def or_default(constructor: Constructor, argument: Argument, old: str) -> Code:
    """The argument, with the default policy where it may be None: fully_shard does not take None."""
    if not argument.may_be_none():
        return argument.keep()
    default = constructor.plan.name(POLICIES[old]) + "()"
    node = argument.node
    view = argument.view
    if isinstance(node, ast.IfExp):
        branches = (node.body, node.orelse)
        nones = [b for b in branches if isinstance(b, ast.Constant) and b.value is None]
        rest = [b for b in branches if b not in nones]
        if nones and all(view.values(b) and not any(is_none(v) for v in view.values(b)) for b in rest):
            indent = view.indent(node)
            body = default if node.body in nones else view.keep(node.body, indent)
            other = default if node.orelse in nones else view.keep(node.orelse, indent)
            return code(body, " if ", view.keep(node.test), " else ", other)
    kept = argument.keep()
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) and kept[0] != "(\n    ":
        kept = code("(", kept, ")")
    return code(kept, " or ", default)


# --- what FSDP1 casts and FSDP2 does not, or the other way round ---------------------------------------------


def _inputs(constructor: Constructor, argument: Argument, sources: list[Precision]) -> list[str]:
    """FSDP1 casts the inputs of the model alone by default, FSDP2 those of every unit."""
    plan = constructor.plan
    casts = [source.flag("cast_forward_inputs", False) for source in sources]
    roots = [source.flag("cast_root_forward_inputs", True) for source in sources]
    if any(root is not True and cast is not True for root, cast in zip(roots, casts, strict=True)):
        return [
            "FSDP1 was told not to cast the inputs of the model; FSDP2 casts them unless cast_forward_inputs=False"
        ]
    nested = constructor.group is not None and len(constructor.group.wraps) > 1
    asked_for = bool(casts) and all(cast is True for cast in casts)
    if not (plan.has_units or nested) or asked_for or not _side_inputs(constructor):
        return []
    inline = (
        plan.has_units and len(sources) == 1 and sources[0].view is constructor.view and casts[0] is False
    )
    if inline and constructor.view.function(sources[0].call) is constructor.view.function(constructor.call):
        policy = plan.name(POLICIES[MIXED_PRECISION])
        fields = sources[0].fields
        kept = [
            code(f"{name}=", constructor.view.keep(fields[name])) for name in FIELDS[:2] if name in fields
        ]
        plan.unit_arguments["mp_policy"] = listed_call(
            constructor.view, policy, [*kept, ("cast_forward_inputs=False",)], len(constructor.view.indent(constructor.call)) + 17
        )
        return []
    return [
        "FSDP1 left the inputs of units as they are, FSDP2 casts those of every unit to param_dtype: where a unit "
        "gets float32 tensors beside its activations (rotary tables, masks) give the units a policy of their own "
        "with cast_forward_inputs=False"
    ]


def _side_inputs(constructor: Constructor) -> bool:
    """Whether a unit may be given more than its one activation, or under autocast one that is no param_dtype."""
    flow, program = constructor.program.flow, constructor.program
    if any(_autocasts(file) for file in program.files):
        return True
    for name in _unit_classes(constructor):
        if not isinstance(name, ClassValue):
            return True
        found = False
        for ancestor in flow.ancestors(name):
            facts = program.files[ancestor.file]
            for function in facts.functions:
                if function.owner_class == ancestor.index and function.name == "forward":
                    found = True
                    if len(function.positional) > 2 or function.keyword_only or function.variadic >= 0:
                        return True
            if found:
                break
        if not found:
            return True
    return not _unit_classes(constructor)


def _autocasts(file: FileFacts) -> bool:
    """Whether autocast is used in a file: activations then come in float32 as well."""
    return any(call.method == "autocast" for call in file.calls) or any(item.name == "autocast" for item in file.imports)


def _unit_classes(constructor: Constructor) -> list[object]:
    """Classes of the units: those that the policy names, or that of the wrapped model; empty where nothing says."""
    from .policy_definitions import definitions

    argument = constructor.arguments.get("auto_wrap_policy")
    if argument is None or argument.is_none:
        model = constructor.plan.model
        values = constructor.view.values(model) if model is not None else []
        return [v.cls if isinstance(v, Instance) else v for v in values if not isinstance(v, Wrapped)]
    found, complete = definitions(constructor.program, argument.values, argument.view, argument.node)
    classes: list[object] = []
    for definition in found:
        if definition.form != "classes" or definition.argument is None:
            return []
        view = definition.view
        node = definition.argument
        values = constructor.program.elements(view.values(node))
        if isinstance(node, (ast.Set, ast.List, ast.Tuple)):
            values = [v for element in node.elts for v in view.values(element)]
        classes.extend(v for v in values if isinstance(v, (ClassValue, External, FunctionValue)))
    return classes if complete else []


def _buffers(constructor: Constructor, argument: Argument, sources: list[Precision]) -> list[str]:
    """FSDP1 casts float buffers to buffer_dtype; FSDP2 leaves them."""
    dtypes = [source.fields["buffer_dtype"] for source in sources if "buffer_dtype" in source.fields]
    full = ("torch.float32", "torch.float")
    dtypes = [node for node in dtypes if not (isinstance(node, ast.Constant) and node.value is None)]
    dtypes = [node for node in dtypes if not any(source.view.external(node) in full for source in sources)]
    if not dtypes or not has_buffers(constructor):
        return []
    one = (
        len(sources) == 1
        and sources[0].view is constructor.view
        and not any(is_none(v) for v in argument.values)
        and not constructor.is_elsewhere
    )
    if one and constructor.view.function(sources[0].call) is constructor.view.function(constructor.call):
        constructor.casts_buffers = True
        constructor.plan.before.append(
            code(
                "for buffer in ", MODEL, ".buffers():\n    if buffer.is_floating_point():\n        ",
                "buffer.data = buffer.to(", constructor.view.keep(dtypes[0]), ")",
            )
        )  # fmt: skip
        return [
            "float buffers are cast once before sharding as FSDP1 did in the forward; checkpoints hold them in "
            "that type, too"
        ]
    return [
        "buffer_dtype has no counterpart: float buffers (rotary tables, running statistics) keep their own type, "
        "which changes results slightly; cast them before sharding to get the old ones"
    ]


def has_buffers(constructor: Constructor) -> bool:
    """Whether the model may have buffers of floating point: registered in the repository, or not to be seen."""
    program = constructor.program
    if any(call.method == "register_buffer" for file in program.files for call in file.calls):
        return True
    if _has_normalisation(constructor):
        return True
    model = constructor.plan.model
    values = constructor.view.values(model) if model is not None else []
    return not values or any(not isinstance(v, (Instance, Constant)) for v in values)


def _normalisation(constructor: Constructor, sources: list[Precision]) -> list[str]:
    """BatchNorm, which FSDP1 wraps apart and keeps in float32 when there is a policy."""
    kept_in_full = [
        s
        for s in sources
        if "param_dtype" in s.fields and not _empty(s.fields.get("_module_classes_to_ignore"))
    ]
    if not kept_in_full or not constructor.plan.has_units or not _has_normalisation(constructor):
        return []
    plan = constructor.plan
    source = kept_in_full[0]
    if len(sources) != 1 or source.view is not constructor.view:
        return [
            "FSDP1 kept BatchNorm layers in float32 by a unit of their own: give each "
            "fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32)) before the other units"
        ]
    policy = plan.name(POLICIES[MIXED_PRECISION])
    dtype = constructor.view.keep(source.fields["param_dtype"])
    torch = plan.name("torch.float32")
    batch_norm = plan.name("torch.nn.modules.batchnorm._BatchNorm")
    fields = [code(f"param_dtype={torch}"), code("output_dtype=", dtype)]
    own = listed_call(constructor.view, policy, fields, len(constructor.view.indent(constructor.call)) + 22)
    if own[-1] == "\n)":
        local = constructor.view.free_name(constructor.call, "batch_norm_mp_policy")
        plan.before.append(code(local, " = ", own))
        own = (local,)
    plan.first_units.append((code("isinstance(", UNIT, f", {batch_norm})"), own))
    return ["BatchNorm layers are units of their own in float32, as FSDP1 made them"]


def _has_normalisation(constructor: Constructor) -> bool:
    """Whether anything in the repository builds a BatchNorm layer."""
    return any(
        isinstance(v, (External, Opaque)) and "BatchNorm" in v.name for v in constructor.program.flow.values
    )


def _empty(node: ast.expr | None) -> bool:
    return isinstance(node, (ast.Tuple, ast.List)) and not node.elts
