"""FSDP1's arguments as FSDP2 has them, where they are written out: what people write by hand."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from ..queries.file import File
from ..queries.local_values import resolved

_PERFORMANCE = frozenset({"backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params"})
"""Arguments that change no result, and have no counterpart that is needed."""
_STRATEGY = "torch.distributed.fsdp.ShardingStrategy."
_FSDP = "torch.distributed.fsdp."
_WRAP = "torch.distributed.fsdp.wrap."
_MIXED = ("param_dtype", "reduce_dtype", "buffer_dtype", "keep_low_precision_grads", "cast_forward_inputs",
          "cast_root_forward_inputs", "_module_classes_to_ignore")  # fmt: skip


@dataclass
class Fsdp1Arguments:
    """The arguments of one constructor call, translated.

    Texts are Python in the user's own names. ``needless`` are assignments that only the call read.
    """

    classes: list[str] = field(default_factory=list)
    """Classes of which every module becomes a unit."""
    reshard: bool = True
    precision: dict[str, str] = field(default_factory=dict)
    units_cast_inputs: bool = False
    buffer_dtype: str = ""
    offload: bool = False
    device: str = ""
    synchronize: bool = False
    needless: list[ast.stmt] = field(default_factory=list)
    absorbed: list[ast.AST] = field(default_factory=list)
    """Expressions whose meaning went into the new arguments."""


def fsdp1_arguments(file: File, call: ast.Call) -> Fsdp1Arguments | None:
    """The translation of a constructor call's arguments; None where one is not written out, or has no plain counterpart."""
    found = Fsdp1Arguments()
    if len(call.args) > 1 or any(k.arg is None for k in call.keywords):
        return None
    for keyword in call.keywords:
        value, needless = resolved(file, keyword.value)
        if not _translate(file, keyword.arg or "", keyword.value, value, found):
            return None
        stays = file.text(keyword.value) == found.device  # the new lines read that name themselves
        if needless is not None and value is not keyword.value and not stays:
            found.needless.append(needless)
        found.absorbed += [keyword.value, value]
    return found


def _translate(file: File, name: str, written: ast.expr, value: ast.expr, found: Fsdp1Arguments) -> bool:
    """Takes one argument in; False if it cannot be."""
    if name == "module" or name in _PERFORMANCE:
        return True
    if isinstance(value, ast.Constant) and value.value is None:
        return name in ("auto_wrap_policy", "mixed_precision", "cpu_offload", "device_id", "ignored_modules", "ignored_states",
                        "param_init_fn", "sharding_strategy", "process_group", "device_mesh")  # fmt: skip
    if name == "sharding_strategy":
        symbol = file.external(value)
        found.reshard = symbol != f"{_STRATEGY}SHARD_GRAD_OP"
        return symbol in (f"{_STRATEGY}FULL_SHARD", f"{_STRATEGY}SHARD_GRAD_OP")
    if name == "auto_wrap_policy":
        classes = _classes_of_policy(file, value)
        found.classes = classes or []
        return classes is not None
    if name == "mixed_precision":
        return _mixed_precision(file, value, found)
    if name == "cpu_offload":
        return _cpu_offload(file, value, found)
    if name == "device_id":
        found.device = file.text(written)
        return True
    if name == "sync_module_states" and isinstance(value, ast.Constant):
        found.synchronize = bool(value.value)
        return True
    if name in ("ignored_modules", "ignored_states"):
        return isinstance(value, (ast.List, ast.Tuple)) and not value.elts
    return False


def _classes_of_policy(file: File, value: ast.expr) -> list[str] | None:
    """The classes that a policy wraps, if it is one that asks for classes alone and names them here."""
    if not isinstance(value, ast.Call):
        return None
    symbol = file.external(value.func)
    if symbol == f"{_WRAP}ModuleWrapPolicy":
        given = value.args[0] if value.args else next((k.value for k in value.keywords if k.arg == "module_classes"), None)
    elif symbol == "functools.partial" and value.args and file.external(value.args[0]) == f"{_WRAP}transformer_auto_wrap_policy":
        given = next((k.value for k in value.keywords if k.arg == "transformer_layer_cls"), None)
    else:
        return None
    if given is None:
        return None
    given, _ = resolved(file, given)
    if not isinstance(given, (ast.Set, ast.List, ast.Tuple)) or not given.elts:
        return None
    if not all(isinstance(e, (ast.Name, ast.Attribute)) for e in given.elts):
        return None
    return [file.text(element) for element in given.elts]


def _mixed_precision(file: File, value: ast.expr, found: Fsdp1Arguments) -> bool:
    if not isinstance(value, ast.Call) or file.external(value.func) != f"{_FSDP}MixedPrecision":
        return False
    given = dict(zip(_MIXED, value.args, strict=False)) | {k.arg: k.value for k in value.keywords if k.arg}
    if any(k.arg is None for k in value.keywords) or not set(given) <= {*_MIXED[:3], "cast_forward_inputs"}:
        return False
    given = {n: v for n, v in given.items() if not (isinstance(v, ast.Constant) and v.value is None)}
    cast = given.pop("cast_forward_inputs", None)
    if cast is not None and not isinstance(cast, ast.Constant):
        return False
    found.units_cast_inputs = cast is not None and bool(cast.value)
    found.buffer_dtype = file.text(given.pop("buffer_dtype")) if "buffer_dtype" in given else ""
    found.precision = {str(name): file.text(v) for name, v in given.items()}
    return True


def _cpu_offload(file: File, value: ast.expr, found: Fsdp1Arguments) -> bool:
    if not isinstance(value, ast.Call) or file.external(value.func) != f"{_FSDP}CPUOffload":
        return False
    given = value.args[0] if value.args else next((k.value for k in value.keywords), None)
    if given is not None and not isinstance(given, ast.Constant):
        return False
    found.offload = given is not None and bool(given.value)
    return True
