"""One run: files → facts → findings and edits → new texts. Nothing is written here."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby

from ..transforms.engine import STRONG_TOKENS, Analysis, Options, analyse, holds_token
from ..transforms.findings import FileError, Finding
from ..transforms.text.annotations import annotation_edits
from ..transforms.text.edits import Edit, EditConflict, apply_edits
from ..transforms.text.source import Source
from .gather import Gathered, gather
from .imports import imported_modules, package_of
from .progress import Progress
from .workspace import LARGEST, Workspace
from .writer import Change


@dataclass
class Migration:
    """What a run found and what it would write. All file names are labels of the workspace."""

    workspace: Workspace
    parsed: int = 0
    findings: list[Finding] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    errors: list[FileError] = field(default_factory=list)


def migrate(workspace: Workspace, options: Options, jobs: int, progress: Progress) -> Migration:
    """Find every site in the workspace and work out the new texts."""
    migration = Migration(workspace, errors=list(workspace.errors))
    contents, hits = _search(migration, progress)
    gathered = Gathered([])
    if hits:
        imports = {label: imported_modules(data, package_of(label)) for label, data in contents.items()}
        gathered = gather(workspace, contents, hits, imports, jobs, progress)
    del contents
    migration.errors += [result for result in gathered.results if isinstance(result, FileError)]
    facts = [result for result in gathered.results if not isinstance(result, FileError)]
    migration.parsed = len(facts)
    if facts:
        progress.stage("linking", 1)
        load = _loader(workspace)
        analysis = analyse(facts, load, options, gathered.flow)
        migration.findings = sorted(analysis.findings, key=lambda finding: (finding.file, finding.line, finding.column))
        migration.errors += analysis.errors
        _rewrite(migration, analysis, load, options.annotate)
    migration.errors.sort(key=lambda error: (error.file, error.line or 0))
    return migration


def _search(migration: Migration, progress: Progress) -> tuple[dict[str, bytes], set[str]]:
    """The bytes of all files, and the labels of those that hold a strong token.

    Without a token in the whole repository there is nothing to parse.
    """
    workspace = migration.workspace
    progress.stage("searching", len(workspace.files))
    contents: dict[str, bytes] = {}
    hits: set[str] = set()
    for label in workspace.files:
        progress.advance()
        try:
            data = workspace.read(label)
        except OSError as error:
            migration.errors.append(FileError(label, None, f"cannot be read: {error.strerror}"))
            continue
        hit = holds_token(data)
        if len(data) > LARGEST:
            if hit:
                message = f"larger than {LARGEST // 1024**2} MB, not looked at"
                migration.errors.append(FileError(label, None, message))
            continue
        contents[label] = data
        if hit:
            hits.add(label)
    migration.errors += _notebooks_with_sites(workspace)
    return contents, hits


def _notebooks_with_sites(workspace: Workspace) -> list[FileError]:
    # The short tokens also turn up by chance in the base64 of a plot.
    tokens = [token for token in STRONG_TOKENS if len(token) > 8]
    errors = []
    for label in workspace.notebooks:
        try:
            data = workspace.read(label)
        except OSError as error:
            errors.append(FileError(label, None, f"cannot be read: {error.strerror}"))
            continue
        if any(token in data for token in tokens):
            errors.append(FileError(label, None, "uses FSDP or DDP, but notebooks are not migrated"))
    return errors


def _loader(workspace: Workspace) -> Callable[[str], Source]:
    @cache
    def load(label: str) -> Source:
        # It has been parsed for its facts; its tree is made again only where the rules look into it.
        return Source.decode(label, workspace.read(label))

    return load


def _rewrite(migration: Migration, analysis: Analysis, load: Callable[[str], Source], annotate: bool) -> None:
    """New bytes of every edited file.

    A group is applied whole or not at all, and only the analysis knows its parts: when one file cannot be
    rewritten no file is.
    """
    workspace = migration.workspace
    failures: list[FileError] = []
    changes: list[Change] = []
    all_edits = _with_annotations(migration, analysis, load) if annotate else analysis.edits
    for label, edits in sorted(all_edits.items()):
        source = load(label)
        try:
            text = apply_edits(source, edits)
            if text == source.text:
                continue
            _require_syntax(text)
            new = source.encode(text)
        except (EditConflict, SyntaxError, UnicodeEncodeError) as error:
            failures.append(FileError(label, None, f"its rewrite failed, so nothing is rewritten: {error}"))
            continue
        changes.append(Change(label, workspace.path(label), source.encode(source.text), new))
    for label, text in sorted(analysis.new_files.items()):
        _require_syntax(text)
        if workspace.path(label).exists():
            failures.append(FileError(label, None, "would be added but exists already, so nothing is rewritten"))
        changes.append(Change(label, workspace.path(label), None, text.encode()))
    migration.errors += failures
    migration.changes = [] if failures else changes


def _with_annotations(migration: Migration, analysis: Analysis, load: Callable[[str], Source]) -> dict[str, list[Edit]]:
    """The edits, and comments at the sites that are left to a person."""
    edits = dict(analysis.edits)
    for label, findings in groupby(migration.findings, key=lambda finding: finding.file):
        own = edits.get(label, [])
        edits[label] = [*annotation_edits(load(label), findings, own), *own]
    return edits


def _require_syntax(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ast.parse(text)
