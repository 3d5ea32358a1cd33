"""Whether a constructor call of DDP can be written out with fully_shard, and how."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..flow.values import Wrapped
from ..queries.copied_models import is_wrapper
from ..queries.earlier_holders import is_held_earlier
from ..queries.file import File
from ..queries.model_blocks import blocks_of
from ..queries.model_hazards import (
    asked_for_class_names,
    backwards_keep_graphs,
    changes_buffers,
    has_edited_views,
    has_scalar_parameters,
    is_called_in_parts,
    returns_objects,
    returns_parameters,
)
from ..queries.model_structure import ModelStructure
from ..queries.observed_models import ObservedModels
from ..queries.parameter_names import depends_on_prefix
from ..queries.parameter_writes import writes_parameters
from ..queries.plain_branches import is_in_plain_branch
from ..queries.program import Program
from ..queries.programs import Programs
from ..queries.saved_models import given_to
from ..queries.sharding import ShardingQueries
from ..queries.unwrapping import comes_unwrapped, is_unwrapped
from ..queries.wraps_inside import wraps_inside
from ..sites import MODULE_METHODS, OPTIMIZER, Site
from .fully_shard_lines import Spell, broadcast_loop, indented
from .needs import Needs
from .wrap_place import WrapPlace, wrap_place, wrapped_argument

_PERFORMANCE = frozenset(
    {"module", "device_ids", "output_device", "gradient_as_bucket_view", "bucket_cap_mb", "static_graph", "check_reduction",
     "dim"}
)  # fmt: skip
"""Arguments that change no result: which devices a rank uses is said before, and buckets are units now."""
_NEEDS_GENERAL_FORM = (
    r"_ddp_params_and_buffers_to_ignore|memory_format\s*=\s*torch\.channels_last|inference_mode"
    r"|register_hook|(?<!self)(?<!super\(\))\.forward\(|register_(?:post_accumulate_grad|multi_grad)_hook|is_meta|device=[\"']meta"
)
"""What a program does that plain units do not bear: second backwards, hooks of parameters, memory layouts, forward by name."""
_LEAVES_PLAIN = r"_ddp_params_and_buffers_to_ignore|\bno_sync\b|require_backward_grad_sync"
"""What leaves parameters out, or gradients on each rank for a while."""
MIXED_DTYPES = (
    r"\.data\s*=.*\.(?:half|bfloat16|to|type)\(|\b(?:convert|cast)\w*(?:fp16|bf16|half|float16)|\.apply\(\w*(?:fp16|bf16|half)"
    r"|\bself\.[\w.\[\]]+\.(?:half|bfloat16)\(\)|\bnn\.\w+\([^()]*dtype=|keep_(?:in_)?(?:fp|float)32"
)
"""How parts of a model come to parameters of other dtypes, which fully_shard does not put into one unit."""


IsBefore = Callable[[File, ast.AST], bool]


@dataclass(frozen=True)
class DdpPlan:
    """The statement around a call, the lists of blocks that become units, and what has to be seen to besides."""

    place: WrapPlace
    blocks: tuple[str, ...]
    are_looked_for: bool = False
    """Whether the blocks are found when the program runs."""
    device: str = ""
    """What says which device a rank uses, where nothing says so before."""
    rebinds: bool = False
    """Whether something may hold the parameters already."""
    follows_buffers: bool = False
    """Whether ranks get the first rank's buffers during training."""
    keeps_names: bool = False
    """Whether somebody asks for the names of classes."""
    keeps_states: bool = False
    """Whether somebody may take or load its state, or that of its optimizers."""
    evaluates: bool = False
    """Whether it may be run without gradients, by ranks that do so a different number of times."""
    computes: bool = False
    """Whether code outside of forwards may compute with parameters, or read numbers off them."""
    writes: bool = False
    """Whether such code is edited in place, and writes parameters."""
    resets: bool = False
    """Whether gradients are reset by `zero_grad` of modules, where something else than shards may be registered."""
    copies: bool = False
    """Whether somebody may deep-copy it, alone or inside of something else, where that is not seen."""
    mark: str | None = None
    """Why its state has to be told from that of a model which FSDP1 held."""

    def lines(self, spell: Spell, helper: Spell, free_name: Callable[[str], str]) -> Callable[[str], str]:
        """The statements, given the module's name. ``spell`` and ``helper`` give the names of torch's functions and ours."""
        shard = spell("torch.distributed.fsdp.fully_shard")
        block = free_name("block")

        def sharded(unit: str) -> str:
            return f"{shard}({unit})\n" + (f"{helper('keep_class_name')}({unit})\n" if self.keeps_names else "")

        def text(module: str) -> str:
            lists = [f"{module}.{path}" for path in self.blocks]
            over = lists[0] if len(lists) == 1 else f"[{', '.join(f'*{one}' for one in lists)}]"
            if self.are_looked_for:
                over = f"{helper('repeated_blocks')}({module})"
            units = (f"for {block} in {over}:\n{indented(sharded(block))}" if lists or self.are_looked_for else "") + sharded(
                module
            )
            if self.rebinds:
                units = f"with {helper('rebound_parameters')}({module}):\n{indented(units)}"
            lines = f"{spell('torch.cuda')}.set_device({self.device})\n" if self.device else ""
            lines += broadcast_loop(module, spell) + units
            if self.follows_buffers:
                lines += f"{helper('broadcast_buffers_before_forward')}({module})\n"
            if self.keeps_states:
                lines += f"{helper('keep_state_dicts_whole')}({module})\n"
            if self.evaluates:
                lines += f"{helper('gather_once_in_evaluation')}({module})\n"
            if self.writes:
                lines += f"{helper('reshard_after_forward')}({module})\n"
            if self.computes:
                lines += f"{helper('compute_as_whole')}({module})\n"
            if self.resets:
                lines += f"{helper('reset_shards_in_zero_grad')}()\n"
            if self.copies:
                lines += f"{helper('copy_as_plain')}({module})\n"
            return lines + (f'{module}._wrapped_like = "ddp"  # {self.mark}\n' if self.mark else "")

        return text


class _Known:
    """Of which calls the general form shards every parameter."""

    def __init__(self, _: Program) -> None:
        self.shards_all: dict[ast.Call, bool] = {}


def shards_all(program: Program, programs: Programs, sharding: ShardingQueries, site: Site) -> bool:
    """Whether the general form of a call shards every parameter, and all have their gradients when they are asked for."""
    assert site.call is not None
    known = program.once(_Known).shards_all
    if site.call not in known:
        known[site.call] = _shards_all(program, programs, sharding, site, site.call)
    return known[site.call]


def _shards_all(program: Program, programs: Programs, sharding: ShardingQueries, site: Site, call: ast.Call) -> bool:
    module, own = wrapped_argument(call), site.file.call_site(call)
    models = [v for v in site.file.values(module) if not (isinstance(v, Wrapped) and v.site == own)] if module is not None else []
    structure = ModelStructure(program, sharding, models)
    if not models or not structure.is_known or has_scalar_parameters(structure):
        return False
    texts = map(program.text, programs.sharing_entries(site.file.path))
    return not any(re.search(f"{_LEAVES_PLAIN}|{MIXED_DTYPES}", text) for text in texts)


def ddp_plan(
    program: Program,
    programs: Programs,
    sharding: ShardingQueries,
    site: Site,
    sites: Mapping[str, Sequence[Site]],
    is_before: IsBefore,
    copies: bool,
    needs: Needs,
) -> DdpPlan | None:
    """The plan for a call; None where the general form is needed. ``is_before`` says which places run before all wraps,
    ``copies`` whether the model may be deep-copied out of sight, ``needs`` what code asks of it besides.

    It is needed where an argument asks for more than averaged gradients, for models of which not every module is seen or
    whose blocks are not just called, with parameters that fully_shard cannot take, and where the program tells by the
    wrapper what to do: hooks for communication, joins, the moment that no_sync() is read.
    """
    assert site.call is not None
    place = wrap_place(site.file, site.call)
    observed, own = ObservedModels(program, sharding), site.file.call_site(site.call)
    if place is None or not _only_averages(site.call, observed.uses_all_parameters(own)) or _is_one_of_several(site, sites):
        return None
    if _asks_for_wrapper(sharding, sites, site):
        return None
    paths = programs.sharing_entries(site.file.path)
    general = f"{_NEEDS_GENERAL_FORM}|{MIXED_DTYPES}"
    if any(re.search(general, program.text(path)) for path in paths) or backwards_keep_graphs(program, paths):
        return None
    models = [v for v in site.file.values(place.module) if not (isinstance(v, Wrapped) and v.site == own)]
    models = observed.models_of(own, models)
    structure = ModelStructure(program, sharding, models)
    if not structure.is_known or has_scalar_parameters(structure) or writes_parameters(structure):
        return None
    blocks = blocks_of(structure)
    if blocks is None or "module" in structure.module_names or is_called_in_parts(structure, paths):
        return None
    units = [*structure.model_classes, *blocks.classes]
    device = _device_to_say(program, paths, site)
    if device is None:
        return None
    if returns_parameters(structure, units) or has_edited_views(structure, units) or returns_objects(structure, units):
        return None
    return DdpPlan(
        place, blocks.paths, blocks.are_looked_for,
        device=device,
        rebinds=is_held_earlier(sharding, paths, site.file, site.call, models),
        follows_buffers=wants_buffers(site.call) and changes_buffers(structure, is_before),
        keeps_names=asked_for_class_names(structure, units),
        keeps_states=needs.state_dicts,
        evaluates=needs.evaluation,
        computes=needs.whole_math,
        writes=needs.parameter_writes,
        resets=needs.gradient_resets,
        copies=copies,
        mark=_mark(sharding, sites, site, is_before),
    )  # fmt: skip


def _is_one_of_several(wrap: Site, sites: Mapping[str, Sequence[Site]]) -> bool:
    """Whether a function wraps several models: the same lines for each are harder to read than one call for each."""
    function = wrap.file.function(wrap.node)
    calls = (site for site in sites[wrap.file.path] if site.symbol == wrap.symbol and site.call not in (None, wrap.call))
    return any(site.file.function(site.node) is function for site in calls)


def _only_averages(call: ast.Call, uses_all: bool) -> bool:
    if len(call.args) > 1:
        return False
    for keyword in call.keywords:
        constant = isinstance(keyword.value, ast.Constant)
        if keyword.arg == "device_ids" and not _names_one_device(keyword.value):
            return False
        if keyword.arg in _PERFORMANCE:
            continue
        if keyword.arg == "find_unused_parameters" and constant and (uses_all or not keyword.value.value):  # type: ignore[union-attr]
            continue
        if keyword.arg == "broadcast_buffers" and constant:
            continue
        return False
    return True


def _names_one_device(value: ast.expr) -> bool:
    if isinstance(value, ast.IfExp):
        return _names_one_device(value.body) and _names_one_device(value.orelse)
    is_one = isinstance(value, ast.List | ast.Tuple) and len(value.elts) == 1
    return is_one or (isinstance(value, ast.Constant) and value.value is None)


def _device_to_say(program: Program, paths: Sequence[str], site: Site) -> str | None:
    """What has to be set as the current device, since fully_shard moves parameters there; "" where nothing has to be.

    None where nobody says which device a rank uses: neither the program, by ``set_device``, nor ``device_ids``.
    """
    assert site.call is not None
    texts = [program.text(path) for path in paths]
    if any(re.search(r"\bset_device\b|CUDA_VISIBLE_DEVICES", text) for text in texts):
        return ""
    given = next((k.value for k in site.call.keywords if k.arg == "device_ids"), None)
    if isinstance(given, ast.List | ast.Tuple):
        return site.file.text(given.elts[0])
    return None if any(re.search(r"\bcuda\b", text) for text in texts) else ""


def wants_buffers(call: ast.Call) -> bool:
    """Whether a call of DDP does not switch off that buffers follow the first rank's."""
    given = next((k.value for k in call.keywords if k.arg == "broadcast_buffers"), None)
    return not (isinstance(given, ast.Constant) and given.value is False)


def _asks_for_wrapper(sharding: ShardingQueries, sites: Mapping[str, Sequence[Site]], wrap: Site) -> bool:
    """Whether something in the program depends on a model having been in DDP."""
    for site in (site for found in sites.values() for site in found if _may_be_of(site, wrap)):
        if site.symbol.endswith((".register_comm_hook", ".join", ".Join")):
            return True
        if site.symbol == MODULE_METHODS and site.receiver is not None and not sharding.of(site.file, site.receiver).wrappers:
            return True  # of a part of the model
        if site.symbol.endswith(".no_sync") and not _backward_inside(site.file, site.node):
            return True
    return False


def _mark(
    sharding: ShardingQueries, sites: Mapping[str, Sequence[Site]], wrap: Site, is_before: IsBefore
) -> str | None:
    asks_for_names = (_is_named_in_wrapper, _is_named_around, _is_shown_to_library)
    if any(asks(sharding, sites, wrap) for asks in asks_for_names):
        return "names of its parameters begin with module."
    if _is_saved_in_wrapper(sites, wrap, is_before):
        return "the keys of its state dict begin with module."
    return None


def _is_named_in_wrapper(sharding: ShardingQueries, sites: Mapping[str, Sequence[Site]], wrap: Site) -> bool:
    """Whether code depends on the ``module.`` that the wrapper put in front of names."""
    named = (s for found in sites.values() for s in found if s.member.startswith("named_") and _may_be_of(s, wrap))
    return any(
        site.call is not None and depends_on_prefix(site.file, site.call)
        and (site.receiver is None or not comes_unwrapped(sharding, site.file, site.receiver))
        for site in named
    )  # fmt: skip


def _is_named_around(sharding: ShardingQueries, sites: Mapping[str, Sequence[Site]], wrap: Site) -> bool:
    """Whether names or keys of a module are taken that the wrapped model is a part of."""
    number = wrap.file.call_site(wrap.call) if wrap.call is not None else -1
    return any(
        site.receiver is not None and number in (value.site for value in wraps_inside(sharding, site.file, site.receiver))
        for found in sites.values() for site in found
        if site.member.startswith("named_") or site.symbol.endswith((".state_dict", ".load_state_dict"))
    )  # fmt: skip


_NAMES_ARE_KEPT = "timm.utils."
"""Averages that find a model's tensors by the names of what they were made with."""


def _is_shown_to_library(sharding: ShardingQueries, sites: Mapping[str, Sequence[Site]], wrap: Site) -> bool:
    """Whether a library gets the wrapper, whose names it keeps in an average or makes groups of parameters by."""
    shown = [
        (site.file, site.call) for found in sites.values() for site in found
        if (site.symbol == OPTIMIZER or site.symbol.startswith(_NAMES_ARE_KEPT)) and _may_be_of(site, wrap)
    ]  # fmt: skip
    given = [(file, one) for file, call in shown if call is not None for one in given_to(call)]
    return any(is_wrapper(sharding, file, one) for file, one in given)


def _is_saved_in_wrapper(sites: Mapping[str, Sequence[Site]], wrap: Site, is_before: IsBefore) -> bool:
    """Whether a state dict may be taken of the wrapper itself, whose keys begin with ``module.``."""
    for site in (site for found in sites.values() for site in found if _may_be_of(site, wrap)):
        if site.receiver is None or site.sharding is None or site.sharding.in_place or "ddp" not in site.sharding.wrappers:
            continue
        if site.symbol.endswith((".state_dict", ".load_state_dict")) and not is_before(site.file, site.node):
            by_name = not site.sharding.certain
            if not is_unwrapped(site.file, site.receiver, by_name=by_name) and not is_in_plain_branch(site.file, site.receiver):
                return True
    return False


def _may_be_of(site: Site, wrap: Site) -> bool:
    """Whether a site may concern the model that a call wraps."""
    value = site.sharding.value if site.sharding is not None else None
    number = getattr(value, "site", None)
    return number is None or wrap.call is None or number == wrap.file.call_site(wrap.call) or site.sharding.in_place  # type: ignore[union-attr]


def _backward_inside(file: File, node: ast.AST) -> bool:
    """Whether a context stands in a ``with`` statement in which both the forward and the backward run."""
    for around in file.ancestors(node):
        if isinstance(around, ast.With):
            return any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in ast.walk(around))
    return False
