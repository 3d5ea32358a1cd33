"""What the helpers of a repository can do without: features that its code surely does not have.

A helper is right whatever is true at run time, so it holds protections that most code never needs. What cannot happen in a
repository is left out of its copy; what nobody knows stays in.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from .facts.symbols import DDP, ENABLE_WRAP, FSDP1, WRAP, wraps_in_library
from .findings import Level
from .flow.values import Wrapped
from .migration import Migration
from .queries.earlier_holders import is_held_earlier
from .queries.file import File
from .queries.forward_reach import functions_in_forwards
from .queries.model_classes import changes_buffers, has_scalars, writes_in
from .queries.model_hazards import asked_for_class_names, has_scalar_parameters
from .queries.model_hazards import changes_buffers as structure_changes_buffers
from .queries.model_structure import ModelStructure
from .queries.packages import NO_GRADIENTS, strange_packages
from .queries.parameter_writes import writes_parameters
from .queries.program import Program
from .rewrites.ddp_plan import MIXED_DTYPES
from .rewrites.fsdp1_plan import keeps_originals
from .rewrites.helper_source import definitions, features_by_file, with_needs
from .rewrites.wrap_place import wrapped_argument
from .sites import Site

_WORDS = {
    "compiled": r"torch\.compile\b|compile\(",
    "create_graph": r"create_graph",
    "scripted": r"\bjit\b",
    "autograd_grad": r"autograd\.(?:grad|functional)\b|import (?:.*, )?grad\b|autograd import [(*]|autograd\b(?!\.| import)",
    "gradient_reads": r"grad\b",
    "assigned_gradients": r"grad\s*=(?!=|\s*None\b)",
    "parameter_hooks": r"register_hook|register_post_accumulate_grad_hook|register_multi_grad_hook",
    "inference_mode": r"inference_mode",
    "grad_scaler": r"GradScaler",
    "shared_memory": r"\.data\s*=(?!=)",
    "meta": r"meta\b|init_empty_weights|deferred_init|is_meta",
    "unit_arguments": r"CustomPolicy|_Policy|_run_policy",
    "state_dict_type": r"state_dict_type|StateDictType|ShardedTensor",
    "forward_by_name": r"(?!self\b)\w+(?:\[[^\]\n]*\])*\.forward\(",
    "forward_methods": r"register_fsdp_forward_method",
    "zero_redundancy": r"ZeroRedundancyOptimizer",
    "own_names": r"def named_parameters\(",
    "transformers": r"transformers",
    "replicas": r"replicate\(|DataParallel\(|data_parallel\(",
}
"""Features that no code has in which none of these words stands."""
_BY_HELPER = {
    "each_rank": "without_sharding_hooks", "forward_methods": "forward_method", "full_parameters": "full_parameters",
    "gradient_sync": "set_gradient_sync", "questions": "whole_when_asked", "past_ddp": "past_ddp",
    "identities": "id_before_sharding", "buffers_first": "sync_buffers",
}  # fmt: skip
"""Features that only code with these helpers has."""
_WITHOUT_SCALARS = frozenset({"torchvision", "apex"})
"""Packages whose models have no parameters that fully_shard cannot take."""
_DDP_KEYS = r"DistributedDataParallel|shard_like_ddp|LikeDDP\b|\bddp\b|\bDDP\b|[\"']module\b"
_CLASS_NAMES = r"\.__name__\b|__qualname__|\b_get_name\b|\.save_pretrained\("
_HELPERS = {"ddp": "shard_like_ddp", "fsdp1": "shard_like_fsdp1"}
_HELPER_CLASSES = {"ddp": ("ClassLikeDDP", "ShardedLikeDDP"), "fsdp1": ("ClassLikeFSDP1", "ShardedLikeFSDP1")}
_CLASSES = {"ddp": DDP, "fsdp1": FSDP1}
_KNOWN_MESHES = frozenset(f"torch.distributed.fsdp.ShardingStrategy.{name}" for name in ("FULL_SHARD", "SHARD_GRAD_OP"))


def absent_features(migration: Migration, used: Collection[str]) -> frozenset[str]:
    """Features that the migrated code does not have, of all that helpers know. ``used`` are the helpers that it names."""
    known = frozenset[str]().union(*features_by_file().values())
    present = _by_words(migration) | _by_helpers(migration, used) | _by_models(migration)
    if migration.program.mentions(MIXED_DTYPES):
        present.add("plain_parameters")
    present |= _by_arguments(migration, "ddp") | _by_arguments(migration, "fsdp1")
    needs = migration.needs(*_with_ddp(migration))
    asked = {"whole_math": needs.whole_math, "state_dicts": needs.state_dicts, "evaluation": needs.evaluation,
             "gradient_resets": migration.needs(*_with_wraps(migration)).gradient_resets}
    present |= {feature for feature, is_needed in asked.items() if is_needed}
    if any(migration.acts_in_parts(site.file.path) for site in _sites(migration) if site.symbol == FSDP1):
        present.add("part_math")
    if _keeps_wrappers(migration):
        present.add("old_wrappers")
    if _has_earlier_holders(migration):
        present.add("earlier_holders")
    if not {"named_parameters", "named_buffers", "named_modules"}.isdisjoint(used) and "fsdp1" in migration.wrapper_kinds:
        present.add("fsdp1_names")
    if "ddp" in migration.wrapper_kinds or migration.program.mentions(_DDP_KEYS):
        present.add("ddp_keys")
    if _has_both_maths(migration, used, known - present):
        present.add("both_math")
    return known - present


class _Known:
    """What has been found out about the models of a program."""

    def __init__(self, _: Program) -> None:
        self.sends_buffers: bool | None = None


def sends_buffers(migration: Migration) -> bool:
    """Whether wraps of DDP send buffers, because training may change some: else forwards past them are as all others."""
    known = migration.program.once(_Known)
    if known.sends_buffers is None:
        known.sends_buffers = "changing_buffers" in _by_models(migration)
    return known.sends_buffers


def _by_words(migration: Migration) -> set[str]:
    return {feature for feature, words in _WORDS.items() if migration.program.mentions(rf"\b(?:{words})")}


def _by_helpers(migration: Migration, used: Collection[str]) -> set[str]:
    """Features that come with other helpers, new ones and those that the code names already."""
    found: set[str] = set()
    wanted = {definition.name for definition in with_needs(used)}
    for feature, helper in _BY_HELPER.items():
        leading = [name for name in definitions() if helper in {definition.name for definition in with_needs([name])}]
        if helper in wanted or migration.program.mentions(rf"\b(?:{'|'.join(leading)})\b"):
            found.add(feature)
    return found


def _by_models(migration: Migration) -> set[str]:
    """What the models of the repository may hold or do, whichever of them are wrapped: its own classes, and others' ones."""
    files = [migration.program.file(index) for index in migration.program.relevant_files()]
    found = _by_structures(migration)
    if found is None:
        found = _by_files(migration, files)
    if strange_packages(files, NO_GRADIENTS):
        found.add("autograd_grad")
    if migration.whole_states.others_hold_states:
        found.add("other_states")
    if migration.may_copy_models(migration.sites):
        found.add("model_copies")
    return found


def _by_files(migration: Migration, files: Sequence[File]) -> set[str]:
    """What models may hold or do whose modules are not all seen."""
    strange = strange_packages(files)
    found: set[str] = set()
    if strange - _WITHOUT_SCALARS or any(map(has_scalars, files)):
        found.add("plain_parameters")
    if strange or migration.program.mentions(_CLASS_NAMES):
        found.add("class_names")
    if strange or any(map(changes_buffers, files)):
        found.add("changing_buffers")
    if any(writes_in(file, node) for file, node in functions_in_forwards(files)):
        found.add("parameter_writes")
    return found


def _with_wraps(migration: Migration) -> set[str]:
    """The files in which models are wrapped, or all where some wrap is not seen."""
    wraps = {site.file.path for site in _sites(migration) if site.symbol in (DDP, FSDP1) and site.role != "import"}
    return wraps or {migration.program.file(index).path for index in migration.program.relevant_files()}


def _with_ddp(migration: Migration) -> set[str]:
    """The files in which models were in DDP, or all where some wrap is not seen."""
    wraps = {site.file.path for site in _sites(migration) if site.symbol == DDP and site.role != "import"}
    return wraps or {migration.program.file(index).path for index in migration.program.relevant_files()}


def _has_both_maths(migration: Migration, used: Collection[str], absent: frozenset[str]) -> bool:
    """Whether models that act whole and others that act in parts may come into one process."""
    needed = {definition.name for definition in with_needs(used, absent)}
    helpers = ("compute_as_whole", "compute_with_parts")
    return all(helper in needed or migration.program.mentions(rf"\b{helper}\b") for helper in helpers)


def _has_earlier_holders(migration: Migration) -> bool:
    """Whether optimizers may have been built before the wraps that keep parameters as they are, or some wrap is not seen."""
    if any(True for kind in _HELPERS for _ in _migrated_calls(migration, kind)):
        return True
    for site in _sites(migration):
        if site.symbol in (WRAP, ENABLE_WRAP) and site.role != "import":
            return True
        if site.symbol not in _CLASSES.values() or site.role not in ("call", "value", "base"):
            continue
        module = wrapped_argument(site.call) if site.role == "call" and site.call is not None else None
        if module is None or site.call is None:
            return True
        if site.symbol == FSDP1 and not keeps_originals(site.call):
            continue
        paths = migration.programs.sharing_entries(site.file.path)
        own = site.file.call_site(site.call)
        models = [v for v in site.file.values(module) if not (isinstance(v, Wrapped) and v.site == own)]
        if not models or is_held_earlier(migration.sharding, paths, site.file, site.call, models):
            return True
    return False


def _by_structures(migration: Migration) -> set[str] | None:
    """What the wrapped models hold or do, where every module in each of them is seen."""
    found: set[str] = set()
    if any(True for kind in _HELPERS for _ in _migrated_calls(migration, kind)):
        return None
    wraps = [s for s in _sites(migration) if s.symbol in (DDP, FSDP1, WRAP, ENABLE_WRAP) and s.role in ("call", "value", "base")]
    for site in wraps:
        module = wrapped_argument(site.call) if site.role == "call" and site.call is not None else None
        values = site.file.values(module) if module is not None else []
        structure = ModelStructure(migration.program, migration.sharding, values)
        if not structure.is_known or site.symbol in (WRAP, ENABLE_WRAP):
            return None
        if has_scalar_parameters(structure):
            found.add("plain_parameters")
        if asked_for_class_names(structure, structure.classes):
            found.add("class_names")
        if structure_changes_buffers(structure):
            found.add("changing_buffers")
        if writes_parameters(structure):
            found.add("parameter_writes")
    return found if wraps else None


def _by_arguments(migration: Migration, kind: str) -> set[str]:
    """``ddp.static_graph`` for an argument that is passed somewhere, ``ddp.static_graph.set`` if not just as it is anyway."""
    defaults = _defaults(_HELPERS[kind])
    passed: dict[str, list[ast.expr]] = {}
    for call in _calls(migration, kind):
        if call is None or any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
            return _all_features(kind)
        for name, value in [*zip(defaults, call.args, strict=False), *((k.arg or "", k.value) for k in call.keywords)]:
            passed.setdefault(name, []).append(value)
    found = {f"{kind}.{name}" for name in passed}
    found |= {
        f"{kind}.{name}.set" for name, values in passed.items()
        if not all(_is_off(value, defaults.get(name)) for value in values)
    }  # fmt: skip
    if kind == "fsdp1":
        if passed.keys() & {"ignored_modules", "ignored_states", "ignored_parameters"}:
            found.add("ignored")
        strategies = passed.get("sharding_strategy", [])
        if passed.keys() & {"process_group", "device_mesh"} or not all(_is_known_strategy(migration, s) for s in strategies):
            found.add("meshes")
    return found


def _calls(migration: Migration, kind: str) -> Iterator[ast.Call | None]:
    """The calls that wrap, in the old code and in what has been migrated; None for a class or helper that is handed on."""
    for sites in migration.sites.values():
        for site in sites:
            if site.symbol == _CLASSES[kind] and site.role in ("call", "value", "base"):
                yield site.call if site.role == "call" else None
            elif kind == "fsdp1" and site.symbol in (WRAP, ENABLE_WRAP) and site.role != "import":
                yield None
    yield from _migrated_calls(migration, kind)


def _migrated_calls(migration: Migration, kind: str) -> Iterator[ast.Call | None]:
    """The calls of the helper that shards, in code that has been migrated already; None for a class in its place."""
    names = (_HELPERS[kind], *_HELPER_CLASSES[kind])
    for index in migration.program.relevant_files():
        text = migration.program.text(migration.program.facts[index].path)
        if not any(name in text for name in names):
            continue
        file = migration.program.file(index)
        for node in file.nodes(ast.Name, ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in names:
                parent = file.parents[node]
                yield parent if isinstance(parent, ast.Call) and parent.func is node and name == names[0] else None


def _defaults(helper: str) -> dict[str, object]:
    """The parameters of a helper in their order, with what they are where nothing is passed."""
    function = ast.parse(definitions()[helper].text).body[0]
    assert isinstance(function, ast.FunctionDef)
    names = [argument.arg for argument in function.args.args]
    values = [getattr(default, "value", None) for default in function.args.defaults]
    return dict(zip(names, [None] * (len(names) - len(values)) + values, strict=True))


def _all_features(kind: str) -> set[str]:
    found = {feature for features in features_by_file().values() for feature in features if feature.startswith(f"{kind}.")}
    return found | ({"ignored", "meshes", "meta", "unit_arguments"} if kind == "fsdp1" else set())


def _is_off(value: ast.expr, default: object) -> bool:
    """Whether an argument asks for nothing that the helper does not do anyway."""
    return isinstance(value, ast.Constant) and (value.value is None or value.value is (default or False))


def _is_known_strategy(migration: Migration, value: ast.expr) -> bool:
    file = next((file for file in map(migration.program.file, migration.sites) if value in file.parents), None)
    return file is not None and file.external(value) in _KNOWN_MESHES


def _keeps_wrappers(migration: Migration) -> bool:
    """Whether models in FSDP1 may be there besides migrated ones: left out by a comment, or made out of sight."""
    options = migration.options
    if migration.wraps_left_out or not options.wraps or options.select or options.ignore or options.level is not Level.MANUAL:
        return True
    sites = [*_sites(migration)]
    if any(wraps_in_library(site.symbol) for site in sites):
        return True
    return "fsdp1" not in migration.wrapper_kinds and any(map(_may_be_wrapped_elsewhere, sites))


def _may_be_wrapped_elsewhere(site: Site) -> bool:
    return site.symbol.startswith(FSDP1) and site.role != "import"


def _sites(migration: Migration) -> Iterator[Site]:
    for sites in migration.sites.values():
        yield from sites
