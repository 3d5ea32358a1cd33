"""Judgement: what every rule says about its site, and what the group as a whole allows."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property

from .analysis.symbols import DDP, WRAPPERS
from .analysis.values import Annotated, Wrapped
from .findings import Finding, Level, Step
from .groups import Group
from .introspection.type_tests import OF_WRAPPED, classes_asked_for
from .kept_sites import kept_outcome
from .migration import Migration
from .ranks.evaluation import runs_of
from .remaining.bypassed import Bypassed, changes_the_class
from .remaining.kinds import kinds_of
from .rule import Outcome, Rule, all_rules, rule_for
from .sites import Site
from .state.unseen_savers import saver_of_optimizers, saver_of_strangers
from .text.suppressions import Suppressions


@dataclass
class Judgement:
    """One site with the rule that answers for it and what came of it."""

    site: Site
    rule: Rule
    outcome: Outcome
    level: Level
    held_by: Judgement | None = None
    hold_reason: str = ""
    notes: list[str] = field(default_factory=list)
    suppressed: bool = False
    """Whether a comment in the code speaks for the site."""

    @property
    def applied(self) -> bool:
        """Whether the site is rewritten."""
        return self.held_by is None and (self.level in (Level.SAFE, Level.REVIEW, Level.OK) or self.is_made_to_raise)

    @property
    def is_made_to_raise(self) -> bool:
        """Whether a person has to rewrite the site, which raises until then."""
        return self.outcome.raises and not self.suppressed and not self.hold_reason

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Which wrappers the site is about."""
        return kinds_of(self.site)

    @property
    def place(self) -> str:
        return f"{self.site.view.path}:{self.site.view.line(self.site.node)}"

    def hold(self, reason: str) -> None:
        """Leaves the site alone after all."""
        self.level = Level.MANUAL
        self.hold_reason = reason

    def findings(self, migration: Migration) -> list[Finding]:
        """The site's finding; none for what is part of another site."""
        if self.outcome.silent:
            return []
        view, node = self.site.view, self.site.node
        start, end = view.source.span(node)
        line, column = view.source.position(start)
        end_line, end_column = view.source.position(end)
        level, message = self.level, self.outcome.message
        if self.held_by is not None and level is not Level.OK:
            level = Level.MANUAL
        if self.hold_reason:
            message = f"{message}; left alone: {self.hold_reason}"
        return [
            Finding(
                rule=self.rule.id,
                level=level,
                file=view.path,
                line=line,
                column=column,
                end_line=end_line,
                end_column=end_column,
                symbol=self.site.symbol,
                message="; ".join([message, *self.notes]),
                why=self.rule.why,
                advice=self.outcome.advice or self.rule.advice,
                group=self.site.group.name if self.site.group else None,
                blocked_by=self.held_by.place if self.held_by is not None else None,
                provenance=self._provenance(migration),
                suppressed=self.suppressed,
            )
        ]

    def _provenance(self, migration: Migration) -> tuple[Step, ...]:
        site = self.site
        node = site.node
        if site.role != "use" or not isinstance(node, ast.Attribute):
            return ()
        wrapped = next((v for v in site.values if isinstance(v, (Wrapped, Annotated))), None)
        return migration.program.provenance(site.view, node.value, wrapped) if wrapped is not None else ()


def judge(migration: Migration) -> list[Judgement]:
    """One judgement for every site, groups kept whole."""
    judgements = [_judge_site(site, migration) for path in sorted(migration.sites) for site in migration.sites[path]]
    for rule in all_rules():
        if rule.find is not None:
            for site in rule.find(migration):
                migration.sites.setdefault(site.view.path, []).append(site)
                judgements.append(_decide(site, rule, migration))
    return judgements


def _judge_site(site: Site, migration: Migration) -> Judgement:
    rule = rule_for(site.symbol, site.role)
    return _decide(site, rule, migration)


def _decide(site: Site, rule: Rule, migration: Migration) -> Judgement:
    kept = kept_outcome(site, migration)
    if kept is not None:
        outcome = kept
    elif (bypass := _bypass(site, migration)) is not None:
        outcome = bypass
    elif _is_under_subclass(site, migration):
        outcome = Outcome(Level.OK, "DDP stays as it is: what it wraps here is built by a subclass of it")
    elif _is_of_nobody(site):
        outcome = Outcome(Level.MANUAL, f"nothing in these files says whose {site.member} this is", _WHOSE)
    else:
        outcome = rule.check(site, migration)
    if site.role == "call" and site.symbol in WRAPPERS and site.group and outcome.level in (Level.SAFE, Level.REVIEW):
        outcome = _unsaved(site.group, migration) or outcome
    level = outcome.level
    notes: list[str] = []
    if level is Level.SAFE and not rule.proof:
        level = Level.REVIEW
        notes.append("no corpus pair proves this rule yet")
    if level is Level.SAFE and site.role == "use" and not site.certain:
        level = Level.REVIEW
        notes.append("the receiver may also be something else")
    if level is Level.SAFE and site.role == "call" and site.symbol in WRAPPERS and site.group and not site.group.raw:
        level = Level.REVIEW
        notes.append("which model this is cannot be seen, and so neither who else uses it or saves its state")
        if site.symbol == DDP:
            notes.append(
                "where other methods of it than forward compute (generate), they have to be registered with "
                "register_fsdp_forward_method"
            )
    if level in (Level.SAFE, Level.REVIEW) and site.role == "call" and site.symbol in WRAPPERS and site.group:
        if _may_come_again(site, migration):
            level = Level.REVIEW
            notes.append("what an earlier call has sharded stays sharded, and wrapping a model around it again raises")
        if site.group.raw and _trains(migration) and not runs_of(migration, site.group):
            level = Level.REVIEW
            notes.append("nothing is seen to run this model: where it is used out of sight, old members and state_dict() stay")
    return Judgement(site, rule, outcome, level, notes=notes, suppressed=_is_suppressed(site, rule, migration))


def _may_come_again(site: Site, migration: Migration) -> bool:
    """Whether a wrap asks first if the model is wrapped already, in a repository where parts of models are wrapped."""
    call = site.call
    asked = classes_asked_for(site.view, call.args[0]) if call is not None and call.args else frozenset[str]()
    return migration.groups.has_wrapped_parts and not OF_WRAPPED.isdisjoint(asked)


def _trains(migration: Migration) -> bool:
    """Whether some file calls ``backward``, so that the models which are trained should be seen to run."""
    files = migration.program.files
    return migration.once("trains", None, lambda: any(call.method == "backward" for file in files for call in file.calls))


def _unsaved(group: Group, migration: Migration) -> Outcome | None:
    """What holds a model back whose state is saved out of sight, by a function that saves whatever it is handed."""
    saver, what = saver_of_strangers(migration, group), "model"
    if saver is None:
        saver, what = saver_of_optimizers(migration, group), "optimizer"
    if saver is None:
        return None
    place = f"{saver.view.path}:{saver.view.line(saver.node)}"
    whose = "this model" if what == "model" else "this model's optimizer"
    return Outcome(
        Level.MANUAL,
        f"nothing is seen to save {whose} but {place}, which saves the state of whatever it is handed, or finds among "
        "attributes: of a sharded model that would be this rank's shards",
        f"Make the function gather the state of sharded models on all ranks (get_{what}_state_dict with "
        "full_state_dict=True, cpu_offload=True) and write it on rank 0; then shard the model.",
        holds=True,
    )


def _bypass(site: Site, migration: Migration) -> Outcome | None:
    """What is to be said of a site that nothing reaches once models are sharded by fully_shard."""
    if site.role == "import":
        return None
    bypassed = Bypassed.of(migration)
    reason = bypassed.reason(site.view, site.node)
    if not reason:
        return None
    if bypassed.is_for_old_torch(site.view, site.node):
        return Outcome(Level.OK, f"right as it is: {reason}")
    if changes_the_class(site.view, site.node):
        return Outcome(Level.MANUAL, f"{site.member} of FSDP1's class is replaced here", _REPLACED, holds=True)
    return Outcome(Level.MANUAL, f"left as it is: {reason}", _BYPASSED)


_BYPASSED = "It goes with the last use of FSDP1. Where it mended what FSDP1 did, look whether fully_shard needs the like."
_REPLACED = (
    "fully_shard knows nothing of a patch of FSDP1, so the model would train without what it does: do that around the "
    "calls of fully_shard instead, or remove the patch if it is not needed any more."
)


def _is_suppressed(site: Site, rule: Rule, migration: Migration) -> bool:
    source = site.view.source
    comments = migration.once("suppressions", source.path, lambda: Suppressions(source))
    start, end = source.span(site.node)
    return comments.cover(rule.id, source.position(start)[0], source.position(end)[0])


_WHOSE = (
    "If the receiver is a model that torch's FSDP1 or DDP wraps elsewhere, run the tool on both together or annotate the "
    "parameter; if it is another library's wrapper, there is nothing to do."
)


def _is_of_nobody(site: Site) -> bool:
    """Whether an attribute is read off something that nothing shows to be a wrapped model.

    ``.module`` of an unknown receiver is only a site where the code itself asks whether that is wrapped.
    """
    known = site.group is not None or any(isinstance(v, (Wrapped, Annotated)) for v in site.values)
    known = known or site.member == "module"
    return site.role == "use" and not known


def _is_under_subclass(site: Site, migration: Migration) -> bool:
    """Whether a site has only to do with models that subclasses of DDP wrap.

    They stay under DDP; the subclass and the calls that build it are left to a person.
    """
    subclasses = migration.groups.subclasses
    if site.role in ("import", "base") or (site.role == "call" and site.symbol == DDP):
        return False
    if site.role == "reference" and subclasses.around(site.view, site.node) is None:
        return False
    if site.group is not None:
        return site.group.stays_ddp
    every = all(group.stays_ddp for group in migration.groups.all if "DDP" in group.kinds)
    return "DDP" in subclasses.kinds.values() and every and site.symbol.startswith(DDP)
