"""From facts to findings and edits: the steps of the codemod in order, without touching a file.

``extract`` runs once a file, in any process; ``analyse`` links the summaries, asks the rules about every site,
keeps groups whole, and turns what remains into edits.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .analysis.extract import Extractor
from .analysis.facts import FileFacts
from .analysis.flow import Flow
from .analysis.symbols import STRONG_TOKENS, WRAPPERS, holds_token
from .analysis.trees import walk
from .findings import FileError, Finding, Level
from .holding import hold_back, hold_groups
from .introspection.branch_chains import BRANCH_GOES
from .judge import Judgement, judge
from .leaving.gaps import gaps
from .leaving.identity_tables import identity_tables
from .leaving.leftovers import leftovers
from .leaving.messages import renamed_in_messages
from .leaving.old_names import unread_names
from .leaving.passed_through import PASSED_THROUGH, passed_through
from .leaving.remarks import remarks
from .leaving.same_branches import same_branches
from .leaving.same_calls import same_calls
from .leaving.stale_words import WRAPPING, about, lines_that_speak, named
from .leaving.unread_parameters import name_unread_parameters
from .migration import Migration, Options
from .program import Program
from .remaining.kept_code import hold_beside_kept
from .sharding.shared_definitions import lenders_that_stay
from .sites import Site
from .text.edits import Edit, apply_edits
from .text.patches import Patch, PatchConflict
from .text.rewrite import RewriteError, rewrite
from .text.source import Source
from .text.spelling import all_imports, imported_names

__all__ = ["STRONG_TOKENS", "Analysis", "Options", "analyse", "extract", "holds_token"]


@dataclass
class Analysis:
    """What is to be said and done about a repository. Paths are the labels of the sources."""

    findings: list[Finding] = field(default_factory=list)
    edits: dict[str, list[Edit]] = field(default_factory=dict)
    new_files: dict[str, str] = field(default_factory=dict)
    errors: list[FileError] = field(default_factory=list)


def extract(source: Source) -> FileFacts:
    """The summary of one file; pure, and picklable for workers."""
    return Extractor(source.path, source.tree).facts


def analyse(
    facts: Sequence[FileFacts], load: Callable[[str], Source], options: Options, flow: Flow | None = None
) -> Analysis:
    """Findings for every site and edits for the groups that can be applied whole.

    ``flow`` is what the facts, in the order of their paths, give when they are linked, if that has been done.
    """
    program = Program(sorted(facts, key=lambda file: file.path), load, flow)
    migration = Migration.of(program, options)
    judgements, edits, gone = settle(migration)
    name_leftovers(judgements, gone)
    name_same_branches(migration, judgements)
    name_unread_parameters(migration, judgements, edits)
    settle_imports(migration, judgements, edits)
    name_stale_wraps(migration, judgements, edits)
    findings = [finding for judgement in judgements for finding in judgement.findings(migration)]
    findings.sort(key=lambda f: (f.file, f.line, f.column, f.rule))
    return Analysis(findings=findings, edits={path: e for path, e in edits.items() if e})


def settle(migration: Migration) -> tuple[list[Judgement], dict[str, list[Edit]], list[Patch]]:
    """What is to be said of every site, the edits, and what goes because only rewritten code read it."""
    while True:
        judgements = judge(migration)
        hold_groups(migration, judgements)
        edits, gone = resolve_conflicts(migration, judgements)
        if hold_beside_kept(migration, judgements, gone):
            edits, gone = resolve_conflicts(migration, judgements)
        staying = lenders_that_stay(migration, (j.site.call for j in judgements if j.applied and j.outcome.patches))
        if not staying:
            return judgements, edits, gone
        migration.judge_again(staying)


def settle_imports(migration: Migration, judgements: list[Judgement], edits: dict[str, list[Edit]]) -> None:
    """Says of every import of an old symbol whether it went, and of one that stays what still uses it."""
    remaining: dict[str, set[tuple[str, str]]] = {}
    for judgement in judgements:
        site = judgement.site
        if site.role != "import" or judgement.level is not Level.SAFE:
            continue
        path = site.view.path
        if path not in remaining:
            made = edits.get(path)
            left = walk(ast.parse(apply_edits(site.view.source, made))) if made else all_imports(site.view)
            remaining[path] = imported_names(left)
        if imported_name(site) not in remaining[path]:
            name_stale_words(judgement, edits.get(path, []))
            continue
        user = next((j for j in judgements if uses(j, site) and not j.applied), None)
        if user is not None:
            judgement.hold(f"still used at line {user.site.view.line(user.site.node)}")
            judgement.held_by = user.held_by or user
        else:
            judgement.level = Level.OK
            judgement.outcome.message = "stays: what uses it is right as it is"


def name_stale_words(judgement: Judgement, edits: list[Edit]) -> None:
    """Says of an import that goes which comments still speak of it."""
    site = judgement.site
    assert isinstance(site.node, ast.alias)
    words = about({site.node.name, site.node.asname or site.node.name})
    lines = lines_that_speak(site.view.source, words, edits) if words is not None else []
    if lines:
        judgement.notes.append(f"comments still speak of it ({named(lines)})")


def name_stale_wraps(migration: Migration, judgements: list[Judgement], edits: dict[str, list[Edit]]) -> None:
    """Says which comments still speak of FSDP1 in files that are changed without losing an import of it."""
    told = {j.site.view.path for j in judgements if j.site.role == "import" and j.site.symbol in WRAPPERS}
    for judgement in judgements:
        own = judgement.site.view.path
        changed = {patch.file for patch in judgement.outcome.patches} if judgement.applied else set[str]()
        for path in sorted(changed - told):
            told.add(path)
            lines = lines_that_speak(migration.program.view(path).source, WRAPPING, edits.get(path, []))
            if lines:
                file = "this file" if path == own else path
                judgement.notes.append(f"comments in {file} still speak of FSDP1 ({named(lines)})")


def imported_name(site: Site) -> tuple[str, str]:
    """(module as written, name) of an import site."""
    assert isinstance(site.node, ast.alias)
    statement = site.view.parents[site.node]
    module = "." * statement.level + (statement.module or "") if isinstance(statement, ast.ImportFrom) else ""
    return module, site.node.name


def uses(judgement: Judgement, imported: Site) -> bool:
    """Whether a site uses the symbol that an import of the same file brings."""
    site = judgement.site
    mentions = site.role not in ("import", "use", "hazard")
    return site.view is imported.view and mentions and f"{site.symbol}.".startswith(f"{imported.symbol}.")


def name_leftovers(judgements: list[Judgement], gone: list[Patch]) -> None:
    """Says of sites that go with an assignment that nothing reads any more, or with the branch that they stand in."""
    branches = [p for j in judgements if j.applied for p in j.outcome.patches if p.why == BRANCH_GOES]
    for judgement in judgements:
        patches = judgement.outcome.patches
        if judgement.applied and branches and patches and all(p.why != BRANCH_GOES for p in patches):
            if all(any(_lies_in(patch, branch) for branch in branches) for patch in patches):
                judgement.outcome.message = "goes with the branch that it stands in"
        around = [next((other for other in gone if _lies_in(patch, other)), None) for patch in patches]
        if judgement.applied and around and None not in around:
            judgement.outcome.message = "goes with its assignment, which nothing reads any more"
            if any(patch is not None and patch.why == PASSED_THROUGH for patch in around):
                judgement.outcome.message = f"goes with the function that it stands in: {PASSED_THROUGH}"


def name_same_branches(migration: Migration, judgements: list[Judgement]) -> None:
    """Says of sites in branches that became the same what comes of the condition."""
    applied = [judgement for judgement in judgements if judgement.applied and judgement.outcome.patches]
    for view in {judgement.site.view for judgement in applied}:
        same = same_branches(view, [p for j in applied for p in j.outcome.patches if p.file == view.path])
        for judgement in applied:
            if judgement.site.view is not view:
                continue
            node = judgement.site.node
            staying = next((b for b in same.staying if b in view.ancestors(node)), None)
            if any(_lies_in(inner, other) for inner in judgement.outcome.patches for other in same.patches):
                judgement.notes.append("either way is the same now, so the condition goes")
            elif staying is not None:
                judgement.notes.append(f"either way is the same now, whatever the condition in line {staying.lineno} says")


def _lies_in(patch: Patch, other: Patch) -> bool:
    return patch.file == other.file and other.start <= patch.start and patch.end <= other.end


def resolve_conflicts(migration: Migration, judgements: list[Judgement]) -> tuple[dict[str, list[Edit]], list[Patch]]:
    """Edits of all files, and those patches among them that take out what only rewritten code read.

    Where two patches want the same text, or a file would not be Python any more, the groups behind them are held
    back and it starts again: one file never ends the run.
    """
    while True:
        try:
            return _edits(migration, judgements)
        except PatchConflict as conflict:
            causes = [j for j in judgements if j.applied and _has(j, conflict.first, conflict.second)]
            reason = f"this rewrite and another one would change the same text ({conflict})"
            failure: Exception = conflict
        except RewriteError as error:
            causes = [j for j in judgements if j.applied and any(p.file == error.file for p in j.outcome.patches)]
            reason = str(error)
            failure = error
        if not causes:
            raise failure
        for cause in causes:
            hold_back(judgements, cause, reason)


def _has(judgement: Judgement, *patches: Patch) -> bool:
    return any(patch in judgement.outcome.patches for patch in patches)


def _edits(migration: Migration, judgements: list[Judgement]) -> tuple[dict[str, list[Edit]], list[Patch]]:
    patches: dict[str, list[Patch]] = {}
    for judgement in judgements:
        if judgement.applied:
            for patch in judgement.outcome.patches:
                patches.setdefault(patch.file, []).append(patch)
    for patch in renamed_in_messages(judgements):
        patches[patch.file].append(patch)
    gone = passed_through(migration, patches)
    for patch in gone:
        patches[patch.file].append(patch)
    for path, wanted in patches.items():
        view = migration.program.view(path)
        wanted += identity_tables(view, wanted)
        wanted += same_calls(view, wanted)
        wanted += same_branches(view, wanted).patches
        gone += leftovers(view, wanted)
    gone += unread_names(migration, judgements, patches)
    for patch in gone:
        if patch not in patches[patch.file]:
            patches[patch.file].append(patch)
    for path, wanted in patches.items():
        view = migration.program.view(path)
        wanted.extend(remarks(view, wanted))
        wanted.extend(gaps(view, wanted))
    return rewrite(migration, patches, [n for j in judgements if j.applied for n in j.outcome.needs]), gone
