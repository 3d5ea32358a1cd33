"""cpu_offload, and the process group that has to reduce what then lies on the CPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Opaque, Unknown
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..program import Program
from ..rule import Outcome
from ..view import FileView
from .constructor import Argument, Constructor, constructor_of, translates
from .precision import CPU_OFFLOAD, is_none, or_default

INIT = "torch.distributed.init_process_group"
_INITS = (INIT, "torch.distributed.distributed_c10d.init_process_group")
BOTH = "cpu:gloo,cuda:nccl"
_ONLY_CUDA = "nccl"
_WITH_CPU = ("gloo", "mpi", "ccl", "fake")


@translates("cpu_offload")
def cpu_offload(constructor: Constructor, argument: Argument) -> Outcome:
    """Sets offload_policy for every call."""
    if argument.is_none or _is_off(argument.node, argument.view):
        return Outcome(Level.SAFE, "no offloading, no policy")
    constructor.plan.arguments["offload_policy"] = or_default(constructor, argument, CPU_OFFLOAD)
    constructor.plan.named.add("offload_policy")
    notes = ["every fully_shard call takes the offloading as offload_policy"]
    level = Level.SAFE
    if any(isinstance(v, Unknown) for v in argument.values) or not argument.values:
        level = Level.REVIEW
        notes.append("where it comes from it has to become a CPUOffloadPolicy")
    else:
        notes.append("parameters, gradients and optimizer state live on the CPU")
    if may_be_on(constructor) and not _reduces_on_cpu(constructor.program):
        level = Level.REVIEW
        notes.append(
            "clip_grad_norm_, the scaler and full_tensor() now reduce on the CPU, which a process group of nccl alone "
            f'cannot: it takes init_process_group("{BOTH}")'
        )
    return Outcome(level, "; ".join(notes))


def _is_off(node: ast.expr, view: FileView) -> bool:
    return isinstance(node, ast.Call) and view.external(node.func) == CPU_OFFLOAD and _says_no(node)


def _says_no(call: ast.Call) -> bool:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return not given or (isinstance(given[0], ast.Constant) and not given[0].value)


def may_be_on(constructor: Constructor) -> bool:
    """Whether a wrap may offload: its argument is not surely None or a policy that says no."""
    argument = constructor.arguments.get("cpu_offload")
    if argument is None or argument.is_none:
        return False
    for value in argument.values:
        if isinstance(value, Opaque) and value.name == CPU_OFFLOAD:
            if not _says_no(constructor.program.call_node(value.site)[1]):
                return True
        elif not is_none(value):
            return True
    return not argument.values


def offloading_group(migration: Migration) -> Group | None:
    """The first group of which a wrap may offload."""

    def find() -> Group | None:
        for group in migration.groups.all:
            for wrap in group.wraps:
                if wrap.value.kind == "FSDP1" and may_be_on(constructor_of(migration, wrap.view, wrap.node, group)):
                    return group
        return None

    return migration.once("offloading group", None, find)


# --- the process group ---------------------------------------------------------------------------------------


def process_groups(program: Program) -> Iterator[tuple[FileView, ast.Call]]:
    """The calls of ``init_process_group``."""
    for view in program.views_with("init_process_group"):
        for call in view.nodes(ast.Call):
            if view.external(call.func) in _INITS:
                yield view, call


def without_cpu(call: ast.Call) -> list[ast.Constant] | None:
    """The constants among a call's backends that serve CUDA alone; None where a backend is not written out."""
    named = next((keyword.value for keyword in call.keywords if keyword.arg == "backend"), None)
    if any(keyword.arg is None for keyword in call.keywords) and named is None and not call.args:
        return None
    backend = call.args[0] if call.args else named
    return [] if backend is None else _without_cpu(backend)


def _without_cpu(backend: ast.expr) -> list[ast.Constant] | None:
    if isinstance(backend, ast.IfExp):
        branches = [_without_cpu(backend.body), _without_cpu(backend.orelse)]
        return None if None in branches else [node for branch in branches if branch for node in branch]
    if not isinstance(backend, ast.Constant):
        return None
    if backend.value == _ONLY_CUDA:
        return [backend]
    serves = backend.value is None or backend.value in _WITH_CPU or "cpu:" in str(backend.value)
    return [] if serves else None


def _reduces_on_cpu(program: Program) -> bool:
    """Whether the process group is seen, and has a CPU backend or gets one."""
    calls = list(process_groups(program))
    return bool(calls) and all(without_cpu(call) is not None for _, call in calls)
