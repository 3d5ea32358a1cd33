"""One run: files → facts → findings and new texts. Nothing is written here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePosixPath

from ..transforms.engine import STRONG_TOKENS, Analysis, Options, analyse, holds_token
from ..transforms.findings import FileError, Finding
from ..transforms.text.generated import HELPER_MODULE, is_helper_module
from ..transforms.text.source import Source
from .answers import Answer, keep_answer, kept_answer, key_of
from .gather import gather
from .imports import imported_modules, package_of
from .names_outside import NamesOutside
from .notebook import Notebook, NotebookError, cell_place
from .old_helpers import note_on, rewritten
from .progress import Progress
from .workspace import LARGEST, LARGEST_NOTEBOOK, Workspace
from .writer import Change


@dataclass
class Migration:
    """What a run found and what it would write. All file names are labels of the workspace."""

    workspace: Workspace
    parsed: int = 0
    findings: list[Finding] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    errors: list[FileError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Lines for the user on what else was seen."""
    left_alone: dict[str, str] = field(default_factory=dict)
    """Programs, by entry point, of which nothing is written, and why."""
    notebooks: dict[str, Notebook] = field(default_factory=dict)
    """Those that were looked at; lines are of the text that their cells make."""


def migrate(workspace: Workspace, options: Options, jobs: int, progress: Progress) -> Migration:
    """Find every site in the workspace and work out the new texts."""
    migration = Migration(workspace, errors=list(workspace.errors))
    contents, hits = _search(migration, progress)
    load = _loader(workspace)
    answer = _answer(migration, contents, hits, options, jobs, progress, load)
    helpers = {label: data.decode("utf-8", "replace") for label, data in contents.items() if is_helper_module(label)}
    notes = (note_on(workspace.display(label), text) for label, text in helpers.items())
    migration.notes += [note for note in notes if note is not None]
    del contents
    migration.errors += answer.errors
    migration.parsed = answer.parsed
    if answer.parsed:
        analysis = answer.analysis
        migration.findings = sorted(analysis.findings, key=lambda finding: (finding.file, finding.line, finding.column))
        migration.errors += analysis.errors
        migration.left_alone = analysis.left_alone
        _rewrite(migration, analysis, load)
    if migration.changes or not migration.errors:
        _renew(migration, helpers)
    migration.errors.sort(key=lambda error: (error.file, error.line or 0))
    return migration


def _answer(
    migration: Migration, contents: dict[str, bytes], hits: set[str], options: Options, jobs: int, progress: Progress,
    load: Callable[[str], Source],
) -> Answer:  # fmt: skip
    """What is to be said and done about the files, from an earlier run if one was over just the same."""
    workspace = migration.workspace
    if not hits:
        return Answer(0, [], Analysis())
    modules = _helper_modules(workspace, options)
    paths = {*workspace.files, *migration.notebooks, *modules}
    outside = {label: workspace.read(label) for label in modules if label not in contents}
    key = key_of(contents | outside, paths, workspace.links, options)
    kept = kept_answer(key)
    if kept is not None and _is_still_said(workspace, contents, kept):
        return kept
    imports = {label: imported_modules(data, package_of(label)) for label, data in contents.items()}
    traced = options.trace.lines if options.trace is not None else ()
    gathered = gather(workspace, contents, hits, imports, jobs, progress, traced)
    errors = [result for result in gathered.results if isinstance(result, FileError)]
    facts = [result for result in gathered.results if not isinstance(result, FileError)]
    progress.stage("linking", 1)
    names = NamesOutside(workspace.root, contents, {file.path for file in facts})
    analysis = analyse(facts, load, options, gathered.flow, paths, names.hold, workspace.links) if facts else Analysis()
    answer = Answer(len(facts), errors, analysis, frozenset(names.analysed), names.answers)
    keep_answer(key, answer)
    return answer


def _is_still_said(workspace: Workspace, contents: Mapping[str, bytes], kept: Answer) -> bool:
    """Whether files that are no Python code still say what an earlier answer rests on."""
    names = NamesOutside(workspace.root, contents, kept.analysed)
    return all(names.hold(name) is was for name, was in kept.said.items())


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
    _read_notebooks(migration, contents, hits)
    return contents, hits


def _read_notebooks(migration: Migration, contents: dict[str, bytes], hits: set[str]) -> None:
    """Add the text of every notebook's cells to the files; one that cannot be read is named if it matters."""
    workspace = migration.workspace
    for label in workspace.notebooks:
        try:
            data = workspace.read(label)
        except OSError as error:
            migration.errors.append(FileError(label, None, f"cannot be read: {error.strerror}"))
            continue
        try:
            if len(data) > LARGEST_NOTEBOOK:
                raise NotebookError(f"is larger than {LARGEST_NOTEBOOK // 1024**2} MB")
            notebook = Notebook.read(data)
        except NotebookError as error:
            # The short tokens also turn up by chance in the base64 of a plot.
            if any(token in data for token in STRONG_TOKENS if len(token) > 8):
                migration.errors.append(FileError(label, None, f"uses FSDP or DDP, but {error}"))
            continue
        for cell, source in notebook.not_python.items():
            if holds_token(source.encode()):
                place = cell_place(workspace.display(label), cell)
                migration.notes.append(f"not looked at: {place} uses FSDP or DDP behind {source.split()[0]}")
        text = notebook.text.encode()
        if text:
            migration.notebooks[label] = notebook
            workspace.given[label] = contents[label] = text
        if holds_token(text):
            hits.add(label)


def _helper_modules(workspace: Workspace, options: Options) -> list[str]:
    """Labels of the modules of helpers that generated code may be added to, whether or not they were named."""
    folders = {folder for label in (*workspace.files, *workspace.notebooks) for folder in PurePosixPath(label).parents}
    labels = [str(folder / f"{HELPER_MODULE}.py") for folder in {*folders, PurePosixPath(options.helpers)}]
    return [label for label in labels if workspace.path(label).is_file()]


def _renew(migration: Migration, helpers: Mapping[str, str]) -> None:
    """Modules of helpers that another version wrote, and that nothing is added to, as this one writes them."""
    changed = {change.label for change in migration.changes}
    for label, text in helpers.items():
        new = None if label in changed else rewritten(text)
        if new is not None:
            migration.changes.append(Change(label, migration.workspace.path(label), text.encode(), new.encode()))


def _loader(workspace: Workspace) -> Callable[[str], Source]:
    @cache
    def load(label: str) -> Source:
        # It has been parsed for its facts; its tree is made again only where the rules look into it.
        return Source.decode(label, workspace.read(label))

    return load


def _rewrite(migration: Migration, analysis: Analysis, load: Callable[[str], Source]) -> None:
    """New bytes of every changed file; none at all when one of them cannot be encoded."""
    workspace = migration.workspace
    failures: list[FileError] = []
    for label, text in sorted(analysis.texts.items()):
        source, notebook = load(label), migration.notebooks.get(label)
        try:
            old, new = (notebook.data, notebook.with_text(text)) if notebook else map(source.encode, (source.text, text))
            change = Change(label, workspace.path(label), old, new)
        except (UnicodeEncodeError, NotebookError) as error:
            failures.append(FileError(label, None, f"its rewrite failed, so nothing is rewritten: {error}"))
            continue
        migration.changes.append(change)
    for label, text in sorted(analysis.new_files.items()):
        path = workspace.path(label)
        migration.changes.append(Change(label, path, path.read_bytes() if path.is_file() else None, text.encode()))
    if failures:
        migration.errors += failures
        migration.changes = []
