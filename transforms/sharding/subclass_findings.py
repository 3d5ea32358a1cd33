"""What is said of classes that derive from a wrapper, and of the calls that build them."""

from __future__ import annotations

from ..analysis.symbols import DDP, WRAPPERS
from ..analysis.values import ClassValue
from ..findings import Level
from ..migration import Migration
from ..rule import Outcome
from ..sites import Site
from .subclass_advice import parts_of, rewriting_advice, shortened


def definition_outcome(site: Site) -> Outcome:
    """The class itself: the tool leaves it alone, and with it all that it wraps."""
    unseen = site.group is not None and not site.group.wraps
    definition = site.view.enclosing_class(site.node)
    assert definition is not None
    stays = "DDP" if site.symbol == DDP else "FSDP1"
    parts = parts_of(definition)
    if stays == "FSDP1":
        methods = shortened(parts.steps)
        advice = rewriting_advice(site.view, definition)
    else:
        methods = shortened([*parts.steps, *parts.replaced])
        moving = (
            f"Its methods ({methods}) move to the model's class, where self.module is self; those that compute with parameters "
            "are registered by register_fsdp_forward_method(module, name). "
        )
        advice = (
            f"{_KEEPING[stays]}Write {definition.name} as a function that does what __init__ does, calls fully_shard on the "
            f"units and last on the module, and returns the module. {moving if methods else ''}Type tests for it ask for "
            "FSDPModule. Then run the tool again."
        )
    until = f" until {methods} {'have' if ',' in methods else 'has'} another place" if methods and stays == "FSDP1" else ""
    return Outcome(
        Level.MANUAL,
        f"FSDP2 has no class for {definition.name} to derive from: its models stay under {stays}{until}"
        + (_UNSEEN if unseen else ""),
        advice,
        holds=True,
    )


def built_subclass(site: Site) -> Outcome | None:
    """The finding of a constructor call where a subclass of a wrapper is what is called."""
    if site.call is None:
        return None
    called = next((value for value in site.view.values(site.call.func) if isinstance(value, ClassValue)), None)
    if called is None:
        return None
    program = site.view.program
    facts = program.files[called.file]
    cls = facts.classes[called.index]
    stays = "DDP" if site.symbol == DDP else "FSDP1"
    return Outcome(
        Level.MANUAL,
        f"{cls.name} is a subclass of {site.member}: the model stays under {stays}",
        f"{_KEEPING[stays]}What {cls.name} ({facts.path}:{cls.line}) adds has to find another place first; its own finding "
        "says how. The call can stay once it is a function that calls fully_shard and returns the model.",
        holds=True,
    )


def staying_wrappers(migration: Migration) -> frozenset[str]:
    """The wrappers that some models keep, by choice or because a class derives from them: tests ask for them, too."""
    kinds = set(migration.groups.subclasses.kinds.values())
    if migration.program.keeps_ddp:
        kinds.add("DDP")
    return frozenset(name for name, kind in WRAPPERS.items() if kind in kinds)


_UNSEEN = "; no call in these files names it, so they are only known where annotations tell"
_KEEPING = {
    "DDP": "Nothing has to be done: DDP goes on working, and so does all that uses the model. For FSDP2: ",
    "FSDP1": "",
}
