"""Which sites a wrapped model can come to: in a program that never wraps, what looks like one is none."""

from __future__ import annotations

import ast
import re

from .facts.symbols import CONSTRUCTORS, FSDP1, WRAPPERS, is_old, wraps_in_library
from .migration import Migration
from .queries.imports_by_name import ImportsByName
from .queries.migrated_wraps import shards
from .queries.own_reduction import reduces_itself
from .queries.packages import is_of_other_framework
from .queries.wrap_reach import WrapReach
from .sites import OPTIMIZER, OPTIMIZER_STEP, PARAMETER, Site

_NEVER_IMPORTED = re.compile(r"(^|/)tests?/|(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$|\.ipynb$")
"""Files that no program imports, not even by a name that is put together."""
_NAMES_SHARDS = re.compile(r"\bDTensor\b")
"""What stands in code that knows that it gets sharded tensors, such as the step of an optimizer for them."""
_STARTS_GROUP = re.compile(
    r"init_process_group|init_distributed|init_device_mesh|MultiProcess|TrainingArguments"
    r"|(?m:^\s*(?:import|from) (?:accelerate|composer|colossalai|deepspeed|detectron2|fairseq|horovod|ignite|lightning|mmcv"
    r"|mmengine|pytorch_lightning|ray|torchtnt|transformers|vissl)\b)"
)
"""What starts the process group that a wrapper asks for, or libraries that do so."""
_WRAPPING_ROLES = frozenset({"call", "value", "base"})


def drop_unreachable(migration: Migration) -> set[str]:
    """Takes away the sites of programs that come to no wrapper which is replaced, unless they are of old symbols.

    Gives the files of such programs, where nothing is sharded.

    Such a site has the right spelling, or its model comes from a function that another program wraps the result of. What
    no file that is run reaches is a library's, where any wrapper in the library counts, or the repository does if
    it imports by names that are put together at run time.
    """
    wrapping = {path for path, sites in migration.sites.items() if any(_is_replaced(site, migration) for site in sites)}
    is_library = any(not migration.programs.is_reached(path) for path in wrapping)
    by_names = migration.program.once(ImportsByName)
    wraps_by_name = any(_may_be_found(migration, path) for path in wrapping)
    programs = {entry for path in wrapping for entry in migration.programs.of(path)}
    replaced = [(site.file, site.node) for sites in migration.sites.values() for site in sites if _is_replaced(site, migration)]
    reach = None if migration.options.blind else WrapReach(migration.program, migration.programs, replaced)
    plain = set()
    alone = _programs_of_one_process(migration, wrapping)
    native = migration.native_programs
    for path in [migration.program.facts[index].path for index in migration.program.relevant_files()]:
        entries = migration.programs.of(path)
        may_wrap = reach is None or any(map(reach.may_wrap, entries))
        if migration.programs.is_reached(path):
            by_name = reach is not None and wraps_by_name and any(map(reach.imports_by_name, entries))
            may_come = may_wrap and (by_name or not programs.isdisjoint(entries))
            is_seen_whole = not migration.options.is_package or entries == (path,)
            may_come = may_come and (path in wrapping or not (is_seen_whole and alone.issuperset(entries)))
        elif reach is None or entries != (path,) or not _NEVER_IMPORTED.search(path):
            may_come = is_library or (bool(wrapping) and by_names.may_find(path)) or (entries == (path,) and may_wrap)
        else:
            may_come = may_wrap
        is_plain = not may_come or not wrapping
        shards_itself = native.issuperset(entries)
        if is_plain or shards_itself or is_of_other_framework(migration.program.text(path)):
            plain |= {path} if is_plain else set()
            sites = migration.sites.pop(path, ())
            by_name = [s for s in sites if _is_by_name(s) and not _is_optimizers(migration, s)]
            kept = [s for s in sites if not _looks_like_one(s) or not (is_plain or s in by_name)]
            if shards_itself and _NAMES_SHARDS.search(migration.program.text(path)):
                kept = [site for site in kept if site.symbol not in (OPTIMIZER, OPTIMIZER_STEP)]
            if kept:
                migration.sites[path] = kept
    return plain


def _may_be_found(migration: Migration, path: str) -> bool:
    """Whether an import by name may find a file that wraps something, or one that leads to it."""
    programs, by_names = migration.programs, migration.program.once(ImportsByName)
    is_script = programs.of(path) == (path,) and migration.program.index(path) in programs.entries
    return by_names.may_find_script(path) if is_script else by_names.may_find(path)


def _programs_of_one_process(migration: Migration, wrapping: set[str]) -> set[str]:
    """The programs that never start a process group, without which no wrapper is made; none where that is out of sight."""
    programs, paths = migration.programs, [facts.path for facts in migration.program.facts]
    if migration.options.blind:
        return set()
    starting = {entry for path in paths if _STARTS_GROUP.search(migration.program.text(path)) for entry in programs.of(path)}
    if all(starting.isdisjoint(programs.of(path)) for path in wrapping):
        return set()
    return {entry for path in paths for entry in programs.of(path)} - starting


def drop_members_of_fsdp1(migration: Migration) -> None:
    """Takes away members of FSDP1 that objects of unknown nature have too, where a repository knows DDP alone.

    ``model.params`` is whatever its author put there. What is used as a package may get models from elsewhere.
    """
    if migration.options.blind or migration.options.is_package or migration.wrapper_kinds != {"ddp"}:
        return
    for path, sites in list(migration.sites.items()):
        migration.sites[path] = [site for site in sites if not (site.symbol.startswith(f"{FSDP1}.") and _is_by_name(site))]


def drop_in_classes_that_stay(migration: Migration) -> None:
    """Takes away what classes derived from DDP ask of themselves, where they stay because they work on its reducer."""
    for path, sites in list(migration.sites.items()):
        migration.sites[path] = [site for site in sites if not (_is_of_self(site) and _is_in_one_that_stays(site))]


def _is_of_self(site: Site) -> bool:
    return isinstance(site.receiver, ast.Name) and site.receiver.id == "self"


def _is_in_one_that_stays(site: Site) -> bool:
    return reduces_itself(site.file, site.file.enclosing_class(site.node))


def drop_in_whole_steps(migration: Migration) -> None:
    """Takes away what would be rewritten inside of optimizers whose steps get whole parameters: nothing is sharded there.

    FSDP1 showed optimizers each rank's own part, so that those of the repository stay as they are where it may be.
    """
    for path, sites in list(migration.sites.items()):
        steps = [site for site in sites if site.symbol in (OPTIMIZER, OPTIMIZER_STEP)]
        if steps and not migration.native_programs.isdisjoint(migration.programs.of(path)):
            migration.sites[path] = [site for site in sites if site not in steps]
            continue  # they step on shards of the program's own
        kinds = migration.wrapper_kinds_near(path) if steps else {"ddp"}
        if kinds != {"ddp"}:
            migration.sites[path] = [s for s in sites if s not in steps or (s.symbol == OPTIMIZER and kinds == {"fsdp1"})]
            continue
        whole = {site.file.enclosing_class(site.node) for site in steps if site.symbol == OPTIMIZER_STEP}
        inside = [s for s in sites if _is_of_tensors(s) and s.file.enclosing_class(s.node) in whole] if whole else []
        migration.sites[path] = [site for site in sites if site not in inside]


def _is_of_tensors(site: Site) -> bool:
    return site.symbol.startswith(("torch.Tensor.", "torch.distributed.")) or site.symbol in (PARAMETER, "builtins.zip")


def unused_wraps(migration: Migration) -> set[ast.AST]:
    """The wrappers in code that no program comes to, where no program has any others: nothing is ever wrapped there.

    They stay, and all that would be rewritten for their sake with them: so it does not matter whether somebody builds
    their names at run time. A package, and code without a program, may be used from outside.
    """
    if migration.options.blind or migration.options.is_package or not migration.programs.entries:
        return set()
    wraps = [site for sites in migration.sites.values() for site in sites if _is_replaced(site, migration)]
    if len(wraps) > _MOST_WRAPS:
        return set()
    unused = [site for site in wraps if _is_unused(site, migration)]
    used = {entry for site in wraps if site not in unused for entry in migration.programs.of(site.file.path)}
    return {site.node for site in unused if used.isdisjoint(migration.programs.of(site.file.path))}


_MOST_WRAPS = 20


def _is_unused(site: Site, migration: Migration) -> bool:
    reach = WrapReach(migration.program, migration.programs, [(site.file, site.node)])
    unused = reach.unused()
    paths = [migration.program.facts[index].path for index, _ in unused]
    is_said = migration.program.is_said
    return bool(paths) and not any(map(_NEVER_IMPORTED.search, paths)) and not any(is_said(name) for _, name in unused)


def _is_replaced(site: Site, migration: Migration) -> bool:
    """Whether a site is a wrapper that FSDP2 takes the place of, or speaks of one by FSDP1's own functions."""
    if not _is_wrapper(site) or site.role not in _WRAPPING_ROLES:
        return False
    if site.symbol in WRAPPERS and WRAPPERS[site.symbol] == "DDP" and migration.options.ddp == "keep":
        return False
    if site.symbol not in WRAPPERS and shards(migration.program) and not _has_class_of_fsdp1(migration):
        return False  # it speaks of wraps that an earlier run has replaced
    if site.node in migration.unused or (site.role == "base" and reduces_itself(site.file, site.file.enclosing_class(site.node))):
        return False
    return site.call is None or site.file.call_site(site.call) not in migration.wraps_left_out


def _has_class_of_fsdp1(migration: Migration) -> bool:
    """Whether FSDP1's class is still called, handed on or derived from."""
    sites = (site for found in migration.sites.values() for site in found if site.receiver is None)
    return any(WRAPPERS.get(site.symbol) == "FSDP1" and site.role in _WRAPPING_ROLES for site in sites)


def _is_wrapper(site: Site) -> bool:
    return site.receiver is None and (site.symbol in CONSTRUCTORS or site.symbol.startswith(f"{FSDP1}."))


def _is_by_name(site: Site) -> bool:
    """Whether nothing but its spelling makes a site of a place."""
    return site.receiver is not None and (site.sharding is None or not site.sharding.wrappers)


def _is_optimizers(migration: Migration, site: Site) -> bool:
    """Whether it is a member of an optimizer over a model in a wrapper."""
    assert site.receiver is not None
    return bool(migration.sharding.of_optimizer(site.file, site.receiver).wrappers)


def _looks_like_one(site: Site) -> bool:
    """Whether no old symbol makes a site of a place; a wrapped model that is seen there is one of another program."""
    if site.receiver is not None:
        return True
    return site.role != "import" and not is_old(site.symbol) and not wraps_in_library(site.symbol)
