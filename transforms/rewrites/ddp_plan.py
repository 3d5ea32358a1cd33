"""Whether a constructor call of DDP can be written out with fully_shard, and how."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..flow.values import Instance, Optimizer, Value
from ..queries.file import File
from ..queries.model_classes import (
    ASKS_FOR_CLASS_NAMES,
    block_lists,
    class_of,
    has_changing_buffers,
    has_scalar_parameters,
    may_write_parameters,
)
from ..queries.program import Program
from ..queries.sharding import ShardingQueries
from ..sites import Site
from .fully_shard_lines import Spell, broadcast_loop
from .wrap_place import WrapPlace, wrap_place

_PERFORMANCE = frozenset(
    {"module", "device_ids", "output_device", "gradient_as_bucket_view", "bucket_cap_mb", "static_graph", "check_reduction",
     "dim"}
)  # fmt: skip
"""Arguments that change no result: which devices a rank uses is said before, and buckets are units now."""


@dataclass(frozen=True)
class DdpPlan:
    """The statement around a call, and the lists of blocks that become units."""

    place: WrapPlace
    blocks: tuple[str, ...]

    def lines(self, spell: Spell, free_name: Callable[[str], str]) -> Callable[[str], str]:
        """The statements, given the module's name."""
        shard = spell("torch.distributed.fsdp.fully_shard")
        block = free_name("block")

        def text(module: str) -> str:
            loops = "".join(f"for {block} in {module}.{path}:\n    {shard}({block})\n" for path in self.blocks)
            return f"{broadcast_loop(module, spell)}{loops}{shard}({module})\n"

        return text


def ddp_plan(
    program: Program, sharding: ShardingQueries, site: Site, sites: Mapping[str, Sequence[Site]]
) -> DdpPlan | None:
    """The plan for a call; None where the general form is needed.

    It is needed where an argument asks for more than averaged gradients, for models of which too little is known, with
    buffers that training changes, parameters without dimensions, optimizers that exist by then, and where the program
    tells by the wrapper what to do: keys with ``module.`` in front, the moment that no_sync() is read.
    """
    assert site.call is not None
    place = wrap_place(site.file, site.call)
    if program.mentions(ASKS_FOR_CLASS_NAMES) or program.mentions(r"\bcreate_graph\b"):
        return None
    if place is None or not _only_averages(site.call):
        return None
    values = site.file.values(place.module)
    models = [v for v in values if isinstance(v, Instance) and v.site >= 0]
    if not models or len(models) != len(values):
        return None
    classes = [class_of(program, model) for model in models]
    if any(found is None for found in classes):
        return None
    synchronized = _wants_buffers(site.call)
    for file, node in (found for found in classes if found is not None):
        if has_scalar_parameters(program, file, node) or (synchronized and has_changing_buffers(program, file, node)):
            return None
        if may_write_parameters(program, file, node):
            return None
    if _has_earlier_optimizer(program, sharding, site, models) or _asks_for_wrapper(sites):
        return None
    lists = [tuple(block_lists(*found)) for found in classes if found is not None]
    return DdpPlan(place, lists[0] if len(set(lists)) == 1 else ())


def _only_averages(call: ast.Call) -> bool:
    if len(call.args) > 1:
        return False
    for keyword in call.keywords:
        if keyword.arg in _PERFORMANCE:
            continue
        constant = isinstance(keyword.value, ast.Constant)
        if keyword.arg == "find_unused_parameters" and constant and not keyword.value.value:  # type: ignore[union-attr]
            continue
        if keyword.arg == "broadcast_buffers" and constant:
            continue
        return False
    return True


def _wants_buffers(call: ast.Call) -> bool:
    given = next((k.value for k in call.keywords if k.arg == "broadcast_buffers"), None)
    return not (isinstance(given, ast.Constant) and given.value is False)


def _has_earlier_optimizer(program: Program, sharding: ShardingQueries, site: Site, models: Sequence[Value]) -> bool:
    """Whether an optimizer over these models, or over nobody knows what, may exist when they are wrapped."""
    modules = sharding.with_parts(models)
    for value in list(program.flow.values):
        if not isinstance(value, Optimizer):
            continue
        call = program.flow.calls[value.site]
        handed = call.arguments[0] if call.arguments else dict(call.keywords).get("params")
        owners = list(sharding.owners(program.flow.values_of(handed))) if handed is not None else []
        if (not owners or any(owner in modules for owner in owners)) and not _is_behind(program, value, site):
            return True
    return False


def _is_behind(program: Program, optimizer: Optimizer, site: Site) -> bool:
    """Whether an optimizer is built further down in the function of the wrap."""
    assert site.call is not None
    if program.flow.file_of_call(optimizer.site) != site.file.index:
        return False
    _, call = program.call_node(optimizer.site)
    return site.file.function(call) is site.file.function(site.call) and call.lineno > site.call.lineno


def _asks_for_wrapper(sites: Mapping[str, Sequence[Site]]) -> bool:
    """Whether something in the program depends on a model having been in DDP."""
    for site in (site for found in sites.values() for site in found):
        wrapped = site.sharding is not None and "ddp" in site.sharding.wrappers and not site.sharding.in_place
        if wrapped and site.symbol == "torch.nn.Module.state_dict":
            return True
        if site.symbol.endswith((".register_comm_hook", ".join", ".Join")):
            return True
        if site.symbol.endswith(".no_sync") and not _backward_inside(site.file, site.node):
            return True
    return False


def _backward_inside(file: File, node: ast.AST) -> bool:
    """Whether a context stands in a ``with`` statement in which both the forward and the backward run."""
    for around in file.ancestors(node):
        if isinstance(around, ast.With):
            return any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in ast.walk(around))
    return False
