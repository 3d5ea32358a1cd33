"""From facts to findings and new texts: sites, the rule of each, and all changes of a file at once.

``extract`` runs once a file, in any process; ``analyse`` links the summaries and does the rest, without touching a file.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .contract import Contract, contract_findings
from .facts.extract import Extractor
from .facts.facts import FileFacts
from .facts.symbols import DDP, STRONG_TOKENS, WRAPPERS, holds_token, is_old
from .findings import FileError, Finding, Form, Level, Step
from .flow.flow import Flow
from .flow.values import Wrapped
from .guarded import guarded_sites
from .migration import Migration, Options
from .queries.answered_places import answered_calls, is_given_in_helper, is_held
from .queries.copied_models import copies_behind
from .queries.file import File
from .queries.observed import observed_program
from .queries.own_gradients import uses_own_gradients
from .queries.own_reduction import is_made_of_such
from .queries.parameter_classes import files_that_ask_for_parameter_classes
from .queries.program import OBSERVED, Program
from .queries.wrapped_in_libraries import wrapped_in_libraries
from .reachable_sites import drop_in_classes_that_stay, drop_in_whole_steps, drop_members_of_fsdp1, drop_unreachable, unused_wraps
from .rewrites.changes import Change
from .rule import Outcome, Rule, contract_rules, rule_for
from .selection import Selection, above, outside
from .sites import Site, find_sites
from .suppression_findings import suppression_findings
from .text.generated import HELPER_MODULE
from .text.source import Source
from .text.suppressions import Suppressions
from .writing import described, write
from .written_stops import STOP_MARK, stop_findings

__all__ = ["STRONG_TOKENS", "Analysis", "Options", "analyse", "extract", "holds_token"]


@dataclass
class Analysis:
    """What is to be said and done about a repository. Paths are the labels of the sources."""

    findings: list[Finding] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    """New texts of changed files."""
    new_files: dict[str, str] = field(default_factory=dict)
    """Texts of helper modules; one that is there already is replaced."""
    errors: list[FileError] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)
    """Programs, by entry point, of which nothing is written, and why."""


@dataclass
class Decision:
    """One site with its rule and what the rule answers."""

    site: Site
    rule: Rule
    outcome: Outcome
    suppressed: bool = False


def extract(source: Source) -> FileFacts:
    """The summary of one file; pure, and picklable for workers."""
    return Extractor(source.path, source.tree).facts


def analyse(
    facts: Sequence[FileFacts],
    load: Callable[[str], Source],
    options: Options,
    flow: Flow | None = None,
    paths: Collection[str] = (),
    is_said: Callable[[str], bool] = lambda _: False,
    links: Mapping[str, str] | None = None,
) -> Analysis:
    """Findings for every site, and the texts of all files that change.

    ``flow`` is what the facts, in the order of their paths, give when they are linked, if that has been done; ``paths``
    are all files of the repository, those without facts as well; ``is_said`` tells whether other files hold a name;
    ``links`` are symbolic links to files and folders.
    """
    ordered = sorted(facts, key=lambda file: file.path)
    program = Program(ordered, load, flow or Flow(ordered, options.blind, paths, links), paths, is_said, links)
    if options.trace is not None:
        program = observed_program(program, options.trace)
    migration = with_sites(Migration(program, options, wraps_left_out=wraps_left_out(program)))
    if unused := unused_wraps(migration):
        calls = [s.file.call_site(s.call) for found in migration.sites.values() for s in found if s.node in unused and s.call]
        migration = with_sites(Migration(program, options, unused=frozenset(unused),
                                         wraps_left_out=migration.wraps_left_out.union(calls)))  # fmt: skip
    if staying := wraps_that_stay(migration):
        migration = with_sites(Migration(program, options, unused=migration.unused, wraps_that_stay=staying,
                                         wraps_left_out=migration.wraps_left_out.union(staying)))  # fmt: skip
    if program.baseline is not None:
        before = Migration(program.baseline, options, wraps_left_out=migration.wraps_left_out)
        migration.before_run = with_sites(before)
    plain = drop_unreachable(migration)
    drop_members_of_fsdp1(migration)
    drop_in_classes_that_stay(migration)
    drop_in_whole_steps(migration)
    guards, migration.hidden = guarded_sites(program, migration.sharding, migration.sites, migration.runs_before_wraps,
                                             migration.is_before_wrap, migration.is_fresh)
    for site in (guard for guard in guards if guard.file.path not in plain):
        migration.sites.setdefault(site.file.path, []).append(site)
    analysis = Analysis()
    decisions = write_programs(migration, decide(migration, analysis.errors), analysis)
    analysis.findings = [finding_of(migration, decision) for decision in decisions]
    for file in map(program.file, program.relevant_files()):
        if STOP_MARK in file.source.text:
            analysis.findings += stop_findings(file, migration.programs.of(file.path))
    if options.contract:
        analysis.findings += contract_findings(Contract(_as_written(program), migration.programs), contract_rules())
    analysis.findings += _about_suppressions(migration, analysis.findings)
    analysis.findings.sort(key=lambda f: (f.file, f.line, f.column, f.rule))
    return analysis


def _as_written(program: Program) -> Program:
    """The repository with helpers as code like any other: a model's state dict is not what they make of it."""
    if not any(item.module.rpartition(".")[2] == HELPER_MODULE for facts in program.facts for item in facts.imports):
        return program
    sources = [program.source(facts.path) for facts in program.facts]
    facts = [Extractor(source.path, source.tree, reads_helpers=False).facts for source in sources]
    flow = Flow(facts, False, program.paths, program.links)
    return Program(facts, program.source, flow, program.paths, program.is_said, program.links)


def with_sites(migration: Migration) -> Migration:
    """A migration with the sites of all files."""
    for index in migration.program.relevant_files():
        file = migration.program.file(index)
        found = find_sites(file, migration.sharding, lambda symbol, role: rule_for(symbol, role) is not None)
        if left := [site for site in found if not _is_answered(site)]:
            migration.sites[file.path] = left
    return migration


def _is_answered(site: Site) -> bool:
    """Whether an earlier run has written what makes a site right; old symbols are always asked about."""
    if not site.file.helpers or is_old(site.symbol):
        return False
    given = site.call is not None and is_given_in_helper(site.file, site.call)
    return given or (site.receiver is not None and is_held(site.file, site.node))


def _about_suppressions(migration: Migration, findings: Sequence[Finding]) -> list[Finding]:
    """What there is to say of the comments that leave findings out, in all files."""
    options = migration.options
    found: list[Finding] = []
    for file in map(migration.program.file, migration.program.relevant_files()):
        own = [finding for finding in findings if finding.file == file.path]
        is_whole = not (options.select or options.ignore)
        programs = migration.programs.of(file.path)
        found += suppression_findings(file, programs, own, migration.sharding, options.contract, is_whole)
    return found


def wraps_that_stay(migration: Migration) -> dict[int, str]:
    """The calls of DDP, by number, that stay, each with the reason: see the messages of its rule.

    A call by another name, as of what `functools.partial` made, cannot be left as it is: the class stands elsewhere.
    """
    if migration.options.blind:
        return {}
    named = {site.file.call_site(site.call) for found in migration.sites.values() for site in found
             if site.symbol == DDP and site.role == "call" and site.call is not None}  # fmt: skip
    using = ((file, model) for file, node, model in _unsynced(migration) if uses_own_gradients(file, node))
    values = (value for file, model in using for value in file.values(model))
    differing = {v.site for v in values if isinstance(v, Wrapped) and v.kind == "DDP"}
    library = wrapped_in_libraries(migration.program, migration.exclude_each_other)
    asking = migration.program.once(files_that_ask_for_parameter_classes)
    asked = {site for site in named if not asking.isdisjoint(_files_near(migration, site))} if asking else set()
    reasons = dict.fromkeys(asked, "classes") | dict.fromkeys(differing, "differ") | dict.fromkeys(library, "library")
    return {site: reasons[site] for site in sorted(named & set(reasons))}


def _files_near(migration: Migration, site: int) -> list[str]:
    """The files of the programs that make a call."""
    return migration.programs.sharing_entries(migration.program.facts[migration.program.flow.file_of_call(site)].path)


def _unsynced(migration: Migration) -> Iterator[tuple[File, ast.AST, ast.expr]]:
    """Where ``no_sync()`` is asked for, or was before an earlier run, and the models that it is asked of."""
    for site in (site for found in migration.sites.values() for site in found if site.member == "no_sync"):
        if site.receiver is not None:
            yield site.file, site.node, site.receiver
    for file in map(migration.program.file, migration.program.relevant_files()):
        yield from ((file, call, model) for call, model in answered_calls(file, "no_sync"))


def wraps_left_out(program: Program) -> frozenset[int]:
    """The calls of wrappers, by number, that stay: a comment in the code says so, or their class works on DDP's reducer."""
    symbols = {kind: symbol for symbol, kind in WRAPPERS.items()}
    found = set()
    for value in program.flow.values:
        if isinstance(value, Wrapped) and value.site >= 0:
            path = program.facts[program.flow.file_of_call(value.site)].path
            if program.is_written_as_call(value.site) and is_made_of_such(*program.call_node(value.site)):
                found.add(value.site)
            rule = rule_for(symbols[value.kind], "call")
            if rule is not None and Suppressions.MARK in program.text(path):
                file, node = program.call_node(value.site)
                if Suppressions(file.source).cover(rule.id, node.lineno, node.end_lineno or node.lineno):
                    found.add(value.site)
    return frozenset(found)


def decide(migration: Migration, errors: list[FileError]) -> list[Decision]:
    """The answer of every site's rule: the idiom where facts are certain, else the fallback.

    A rule that fails is an error of the site's file, and never ends the run.
    """
    decisions = []
    for path, sites in sorted(migration.sites.items()):
        suppressions = Suppressions(migration.program.file(path).source)
        for site in sites:
            rule = rule_for(site.symbol, site.role)
            if rule is None:
                continue
            line, end_line = site.node.lineno, site.node.end_lineno  # type: ignore[attr-defined]
            try:
                outcome = answer(rule, site, migration)
            except Exception as error:
                errors.append(FileError(path, line, f"{_LEFT_ALONE}{rule.id}: {described(error)}"))
                continue
            if outcome is not None:
                decisions.append(Decision(site, rule, outcome, suppressions.cover(rule.id, line, end_line)))
    return decisions


def answer(rule: Rule, site: Site, migration: Migration) -> Outcome | None:
    """What a rule says about a site, with the form of its answer; None where the site is none of its business."""
    if site.node in migration.unused:
        return Outcome(_UNUSED, level=Level.REVIEW, form=Form.NOTE, advice=_IF_USED)
    if site.receiver is not None and migration.runs_before_wraps(site.file, site.node):
        return Outcome("nothing is wrapped yet when this runs: what it works on is plain", level=Level.OK, form=Form.NOTE)
    is_of_copy = site.receiver is not None and bool(copies_behind(site.file, site.receiver))  # which was a wrapper, maybe
    if site.receiver is not None and not is_of_copy and migration.is_fresh(site.file, site.node, site.receiver):
        return Outcome("the model is made on the way here and still plain", level=Level.OK, form=Form.NOTE)
    if rule.idiom is not None and migration.options.idioms:
        outcome = rule.idiom(site, migration)
        needs_run = outcome is not None and _needs_run(rule, site, migration)
        if outcome is not None and (not needs_run or migration.program.is_reached(site.file, site.node)):
            outcome.form = outcome.form or (Form.IDIOM if outcome.changes else Form.NOTE)
            outcome.observed = needs_run
            if needs_run and outcome.level is Level.SAFE and outcome.changes:
                outcome.level = Level.REVIEW
                outcome.message += "; what comes here was observed in one run"
            return _proved(rule, outcome)
    outcome = rule.fallback(site, migration)
    if outcome is not None:
        outcome.form = outcome.form or (Form.FALLBACK if outcome.changes else Form.NOTE)
        _proved(rule, outcome)
    return outcome


def _needs_run(rule: Rule, site: Site, migration: Migration) -> bool:
    """Whether a site has its idiom because of what a run alone has shown."""
    if migration.before_run is None or rule.idiom is None:
        return False
    found = migration.before_run.sites.get(site.file.path, ())
    same = next((other for other in found if _written(other) == _written(site)), None)
    return same is None or rule.idiom(same, migration.before_run) is None


def _written(site: Site) -> tuple[object, ...]:
    return site.symbol, site.role, site.node.lineno, site.node.col_offset  # type: ignore[attr-defined]


_UNUSED = "no program here comes to this wrapper: it stays, and all code that would see its models"
_IF_USED = "Delete it if nobody uses it; else name the files that do as well."


def _proved(rule: Rule, outcome: Outcome) -> Outcome:
    if outcome.level is Level.SAFE and outcome.changes and not rule.proof:
        outcome.level = Level.REVIEW
    return outcome


def write_programs(migration: Migration, decisions: list[Decision], analysis: Analysis) -> list[Decision]:
    """Texts of the programs that are to be migrated; those that fail are left alone. Gives what there is to report."""
    options = migration.options
    selection = Selection({path: migration.programs.of(path) for path in migration.sites})
    beyond = outside([(d.site.file.path, d.rule.id) for d in decisions], selection, options.select, options.ignore)
    decisions = [decision for decision in decisions if decision.site.file.path not in beyond]
    written = [decision for decision in decisions if not decision.suppressed]
    left = _halved(migration, decisions, selection)
    left |= dict.fromkeys(selection.beside({error.file for error in analysis.errors}), _FAILED)
    left |= dict.fromkeys(above([(d.site.file.path, d.outcome.level) for d in written], selection, options.level), _ABOVE)
    while True:
        written = [decision for decision in written if decision.site.file.path not in left]
        result = write(migration, _by_file(written))
        if not result.failures:
            break
        analysis.errors += [FileError(path, None, _LEFT_ALONE + why) for path, why in sorted(result.failures.items())]
        failed = {d.site.file.path for d in written if any(c.file.path in result.failures for c in d.outcome.changes)}
        left |= dict.fromkeys(selection.beside(failed), _FAILED)
    analysis.texts, analysis.new_files = result.texts, result.new_files
    analysis.left_alone = {entry: reason for path, reason in left.items() for entry in migration.programs.of(path)}
    return decisions


def _halved(migration: Migration, decisions: Sequence[Decision], selection: Selection) -> dict[str, str]:
    """The files of programs in which a comment leaves a rewrite out, and why: with the others it would be half of one.

    A wrap can be left out by itself, its model then counts as plain; so can what nothing but its name makes a site.
    """
    left: dict[str, str] = {}
    for decision in decisions:
        site = decision.site
        if not decision.suppressed or not decision.outcome.changes:
            continue
        is_wrap = site.call is not None and site.file.call_site(site.call) in migration.wraps_left_out
        by_name = site.receiver is not None and (site.sharding is None or not site.sharding.wrappers)
        if not is_wrap and not by_name:
            place = f"{site.file.path}:{site.node.lineno}"  # type: ignore[attr-defined]
            reason = f"the comment at {place} leaves {decision.rule.id} out, and what belongs to it would be half done"
            left |= dict.fromkeys(selection.beside({site.file.path}), reason)
    return left


_ABOVE = "there are findings above the level asked for"
_FAILED = "one of its files could not be rewritten"
_LEFT_ALONE = "could not be rewritten, so the programs that use it are left alone; please report this: "


def _by_file(decisions: Sequence[Decision]) -> dict[str, list[Change]]:
    changes: dict[str, list[Change]] = {}
    for decision in decisions:
        for change in decision.outcome.changes:
            changes.setdefault(change.file.path, []).append(change)
    return changes


def finding_of(migration: Migration, decision: Decision) -> Finding:
    """The finding that a decision comes to."""
    site, outcome = decision.site, decision.outcome
    source = site.file.source
    start, end = source.span(site.node)
    line, column = source.position(start)
    end_line, end_column = source.position(end)
    return Finding(
        rule=decision.rule.id, level=outcome.level, file=site.file.path, line=line, column=column,
        end_line=end_line, end_column=end_column, symbol=site.symbol, message=outcome.message, why=decision.rule.why,
        advice=outcome.advice or decision.rule.advice, form=outcome.form or Form.NOTE,
        programs=migration.programs.of(site.file.path), provenance=_provenance(migration, site, outcome.observed),
        suppressed=decision.suppressed,
    )  # fmt: skip


def _provenance(migration: Migration, site: Site, observed: bool) -> tuple[Step, ...]:
    known = site.receiver is not None and site.sharding is not None
    steps = migration.sharding.provenance(site.file, site.receiver, site.sharding) if known else ()  # type: ignore[arg-type]
    if not observed or any(step.text.startswith(OBSERVED) for step in steps):
        return steps
    wraps = migration.observed.behind(site.file, site.node, site.receiver) or (migration.program.place(site.file, site.node),)
    seen = [Step(path, line, OBSERVED + migration.program.line_text(path, line)) for path, line in wraps]
    return tuple(seen) + tuple(step for step in steps if (step.file, step.line) not in wraps)
