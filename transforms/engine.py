"""From facts to findings and edits: the steps of the codemod in order, without touching a file.

``extract`` runs once a file, in any process; ``analyse`` links the summaries, asks the rules about every site,
keeps groups whole, and turns what remains into edits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .edits import Edit
from .extract import Extractor
from .facts import FileFacts
from .findings import FileError, Finding
from .judge import Judgement, judge
from .migration import Migration, Options
from .patches import Patch, PatchConflict
from .program import Program
from .rewrite import rewrite
from .source import Source
from .symbols import STRONG_TOKENS

__all__ = ["STRONG_TOKENS", "Analysis", "Options", "analyse", "extract"]


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


def analyse(facts: Sequence[FileFacts], load: Callable[[str], Source], options: Options) -> Analysis:
    """Findings for every site and edits for the groups that can be applied whole."""
    program = Program(sorted(facts, key=lambda file: file.path), load)
    migration = Migration.of(program, options)
    judgements = judge(migration)
    edits = resolve_conflicts(migration, judgements)
    findings = [finding for judgement in judgements for finding in judgement.findings(migration)]
    findings.sort(key=lambda f: (f.file, f.line, f.column, f.rule))
    return Analysis(findings=findings, edits={path: e for path, e in edits.items() if e})


def resolve_conflicts(migration: Migration, judgements: list[Judgement]) -> dict[str, list[Edit]]:
    """Edits of all files; where two patches want the same text, their groups are held back and it starts again."""
    while True:
        try:
            return _edits(migration, judgements)
        except PatchConflict as conflict:
            clashing = [j for j in judgements if j.applied and _has(j, conflict.first, conflict.second)]
            if not clashing:
                raise
            for judgement in clashing:
                judgement.hold(f"this rewrite and another one would change the same text ({conflict})")


def _has(judgement: Judgement, *patches: Patch) -> bool:
    return any(patch in judgement.outcome.patches for patch in patches)


def _edits(migration: Migration, judgements: list[Judgement]) -> dict[str, list[Edit]]:
    patches: dict[str, list[Patch]] = {}
    for judgement in judgements:
        if judgement.applied:
            for patch in judgement.outcome.patches:
                patches.setdefault(patch.file, []).append(patch)
    return rewrite(migration, patches, [n for j in judgements if j.applied for n in j.outcome.needs])
