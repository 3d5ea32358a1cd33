"""FSDP1's arguments as FSDP2 has them, where they are written out: what people write by hand."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from ..flow.values import External
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

    unit_test: str = ""
    """What is true of the modules that become units, called ``unit``; empty where none does."""
    mesh: str = ""
    is_hybrid: bool = False
    strategy: str = ""
    """What holds FULL_SHARD or SHARD_GRAD_OP when it runs, where it is not known before."""
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
    return None if found.is_hybrid and not found.mesh else found


def _translate(file: File, name: str, written: ast.expr, value: ast.expr, found: Fsdp1Arguments) -> bool:
    """Takes one argument in; False if it cannot be."""
    if name == "module" or name in _PERFORMANCE:
        return True
    if isinstance(value, ast.Constant) and value.value is None:
        return name in ("auto_wrap_policy", "mixed_precision", "cpu_offload", "device_id", "ignored_modules", "ignored_states",
                        "param_init_fn", "sharding_strategy", "process_group", "device_mesh")  # fmt: skip
    if name == "sharding_strategy":
        return _strategy(file, written, value, found)
    if name == "process_group":
        return file.external(value) == "torch.distributed.group.WORLD"
    if name == "device_mesh":
        found.mesh = file.text(written)
        return isinstance(written, (ast.Name, ast.Attribute))
    if name == "auto_wrap_policy":
        test = _test_of_policy(file, value)
        found.unit_test = test or ""
        return test is not None
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


def _strategy(file: File, written: ast.expr, value: ast.expr, found: Fsdp1Arguments) -> bool:
    symbol = (file.external(value) or "").removeprefix(_STRATEGY)
    if symbol in ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD"):
        found.reshard, found.is_hybrid = symbol != "SHARD_GRAD_OP", symbol == "HYBRID_SHARD"
        return True
    known = file.values(written)
    names = {v.name.removeprefix(_STRATEGY) for v in known if isinstance(v, External)}
    if len(names) != len(known) or not names:
        return False
    found.strategy = file.text(written)
    return names <= {"FULL_SHARD", "SHARD_GRAD_OP"}


def _test_of_policy(file: File, value: ast.expr) -> str | None:
    """What a policy asks of a module ``unit``, if it is one that asks nothing else and says here what it asks."""
    if not isinstance(value, ast.Call):
        return None
    symbol = file.external(value.func)
    is_partial = symbol == "functools.partial" and len(value.args) == 1
    kind = file.external(value.args[0]) if is_partial else symbol
    given = {keyword.arg: keyword.value for keyword in value.keywords}
    if kind == f"{_WRAP}ModuleWrapPolicy" and not is_partial:
        return _test_of_classes(file, value.args[0] if value.args else given.get("module_classes"))
    if kind == f"{_WRAP}transformer_auto_wrap_policy" and is_partial:
        return _test_of_classes(file, given.get("transformer_layer_cls"))
    if kind == f"{_WRAP}lambda_auto_wrap_policy" and is_partial:
        return _test_of_function(file, given.get("lambda_fn"))
    return None


def _test_of_classes(file: File, given: ast.expr | None) -> str | None:
    if given is None:
        return None
    given, _ = resolved(file, given)
    if not isinstance(given, (ast.Set, ast.List, ast.Tuple)) or not given.elts:
        return None
    if not all(isinstance(e, (ast.Name, ast.Attribute)) for e in given.elts):
        return None
    classes = [file.text(element) for element in given.elts]
    names = ", ".join(classes)
    return f"isinstance(unit, {names if len(classes) == 1 else f'({names})'})"


def _test_of_function(file: File, given: ast.expr | None) -> str | None:
    if isinstance(given, (ast.Name, ast.Attribute)):
        found, _ = resolved(file, given)
        if not isinstance(found, ast.Lambda):
            return f"{file.text(given)}(unit)"
        given = found
    if not isinstance(given, ast.Lambda) or len(given.args.args) != 1:
        return None
    name, text = given.args.args[0].arg, file.text(given.body)
    return None if "unit" in text or "\n" in text else re.sub(rf"(?<![\w.\"']){name}(?![\w\"']|\s*=[^=])", "unit", text)


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
