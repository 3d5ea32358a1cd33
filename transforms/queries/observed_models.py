"""What a run has shown of models in wrappers: which expressions held them, and whether all of each is sharded alike."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cached_property

from ..flow.values import Annotated, Instance, Value, Wrapped
from .file import File
from .program import Program
from .sharding import ShardingQueries
from .trace import Expression, ObservedWrap

_WRAPPERS_ALONE = frozenset({"module", "no_sync", "clip_grad_norm_", "_fsdp_wrapped_module", "require_backward_grad_sync"})
"""Members that a wrapper has and a plain module has not."""
_OTHER_WRAPPERS = r"\bDataParallel\(|\bdeepspeed\b|\baccelerat"
"""What else may have given a model such members, in a run that was not seen."""
_NOTHING = frozenset({"None", "list()", "tuple()", "set()", "frozenset()", "CPUOffload(offload_params=False)"})
_UNLIKE = ("ignored_modules", "ignored_states", "ignored_parameters", "process_group", "device_mesh", "cpu_offload",
           "mixed_precision")  # fmt: skip
"""Arguments of wrappers by which parameters may be left out, or sharded otherwise than the rest; FSDP1's last one is no such."""


class ObservedModels:
    """Questions about one program's run. Without a trace every answer is that nothing was seen."""

    def __init__(self, program: Program, sharding: ShardingQueries) -> None:
        self.program = program
        self.sharding = sharding

    def always_sharded(self, file: File, asked: ast.AST) -> bool:
        """Whether ``model.member`` held nothing but models that are sharded now, and fails for what no wrapper holds."""
        if not isinstance(asked, ast.Attribute) or not self.fails_for_plain(file, asked):
            return False
        return bool(self.wraps_at(file, asked.value)) and not self.program.mentions(_OTHER_WRAPPERS)

    def fails_for_plain(self, file: File, asked: ast.Attribute) -> bool:
        """Whether ``model.member`` is an error, which nothing catches, of what no wrapper holds."""
        if asked.attr not in _WRAPPERS_ALONE or not isinstance(asked.ctx, ast.Load) or self._may_fail(file, asked):
            return False
        flow = self.program.flow
        return not any(isinstance(v, Instance) and flow.has_member(v.cls, asked.attr) for v in file.values(asked.value))

    def wraps_at(self, file: File, node: ast.AST) -> Sequence[ObservedWrap]:
        """The wrapped models that an expression held; none where it held anything else, or wrappers that stay."""
        if not self.program.trace.owners or not isinstance(node, (ast.Name, ast.Attribute)):
            return ()
        line, column = file.source.position(file.source.span(node)[0])
        wraps = self.program.trace.owners.get(Expression(file.path, line, column, ast.unparse(node)), ())
        return () if any(self._stays(wrap) for wrap in wraps) else wraps

    def parameters_of(self, file: File, node: ast.AST) -> Sequence[ObservedWrap]:
        """The wrapped models whose parameters an expression gave: ``model.parameters()``, ``model.module.parameters()``."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "parameters":
            return ()
        model = node.func.value
        found = self.wraps_at(file, model)
        if not found and isinstance(model, ast.Attribute) and model.attr == "module":
            return self.wraps_at(file, model.value)
        return found

    def behind(self, file: File, node: ast.AST, receiver: ast.AST | None) -> tuple[tuple[str, int], ...]:
        """The places of the wrappers whose models a site held, each once: the receiver, or whose parameters it is given."""
        wraps = self.wraps_at(file, receiver) if receiver is not None else ()
        given = node.args[:1] if isinstance(node, ast.Call) else []
        found = wraps or [wrap for argument in given for wrap in self.parameters_of(file, argument)]
        return tuple(dict.fromkeys((wrap.file, wrap.line) for wrap in found))

    def made_by(self, value: object) -> Sequence[ObservedWrap]:
        """The wrapped models that a call of a wrapper gave."""
        if not isinstance(value, Wrapped) or not self.program.trace.wraps:
            return ()
        file, call = self.program.call_node(value.site)
        lines = range(call.lineno, (call.end_lineno or call.lineno) + 1)
        return [wrap for wrap in self.program.trace.wraps if wrap.file == file.path and wrap.line in lines]

    def uses_all_parameters(self, call: int) -> bool:
        """Whether every parameter of the models that a call wrapped had a gradient at every step, on every rank."""
        wraps = self.made_by(Wrapped("DDP", call))
        return bool(wraps) and all(wrap.always_used for wrap in wraps)

    def models_of(self, call: int, values: Sequence[Value]) -> Sequence[Value]:
        """Those of the values that may be what a call wrapped: without what is no class of the repository, if the run had one."""
        seen = {wrap.module.rpartition(".")[2] for wrap in self.made_by(Wrapped("DDP", call))}
        made = [v for v in values if isinstance(v, Instance)]
        classes = {self.program.facts[v.cls.file].classes[v.cls.index].qualified_name for v in made}
        return made if seen and seen <= classes else values

    def are_sharded_alike(self, wraps: Sequence[ObservedWrap]) -> bool:
        """Whether all parameters of some models are sharded over one mesh, with gradients of one precision on its devices."""
        return bool(wraps) and all(map(self._is_sharded_alike, wraps))

    def _is_sharded_alike(self, wrap: ObservedWrap) -> bool:
        unlike = (name for name in _UNLIKE if wrap.wrapper == "DDP" or name != "mixed_precision")
        if any(wrap.arguments.get(name, "None") not in _NOTHING for name in unlike):
            return False
        return wrap.dtypes == ("torch.float32",) and not (wrap.wrapper == "DDP" and (wrap.scalars or wrap.left_out))

    def _may_fail(self, file: File, node: ast.AST) -> bool:
        """Whether something is done where the member is missing."""
        function = file.function(node)
        for around in file.ancestors(node):
            if around is function:
                return False
            if isinstance(around, ast.Try) and around.handlers:
                return True
        return False

    def _stays(self, wrap: ObservedWrap) -> bool:
        """Whether a wrapper is kept: nothing of its models is sharded."""
        found = [value for value in self._wrapped if wrap in self.made_by(value)]
        kind = Annotated(wrap.wrapper)
        return any(map(self.sharding.kept, found)) if found else self.sharding.kept(kind)

    @cached_property
    def _wrapped(self) -> list[Wrapped]:
        return [v for v in self.program.flow.values if isinstance(v, Wrapped) and self.program.is_written_as_call(v.site)]
