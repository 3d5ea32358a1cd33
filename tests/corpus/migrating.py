"""The folders of the corpus after the tool has migrated them."""

from __future__ import annotations

import shutil
from pathlib import Path

from to_fsdp2.corpus.cases import Case
from to_fsdp2.transforms.engine import Analysis, Options, analyse, extract
from to_fsdp2.transforms.text.source import Source


def analysed(folder: Path, case: Case, **changes: object) -> tuple[Analysis, dict[str, Source]]:
    """What the tool finds and writes in a folder, with the case's own options and these changes of them."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))
    sources = {path: Source.decode(path, (folder / path).read_bytes()) for path in paths}
    options = Options(**{"target_torch": (2, 13), **_typed(case.options), **changes})  # pyright: ignore[reportArgumentType]
    return analyse([extract(source) for source in sources.values()], sources.__getitem__, options, paths=paths), sources


def migrate_into(target: Path, case: Case, **changes: object) -> Analysis:
    """Copies the program before its migration to ``target`` and migrates it there."""
    shutil.copytree(case.before, target)
    analysis, sources = analysed(case.before, case, **changes)
    for path, text in analysis.texts.items():
        (target / path).write_bytes(sources[path].encode(text))
    for path, text in analysis.new_files.items():
        (target / path).write_text(text)
    return analysis


def _typed(options: dict[str, str]) -> dict[str, object]:
    names: dict[str, object] = {name.replace("-", "_"): value for name, value in options.items()}
    if isinstance(names.get("target_torch"), str):
        names["target_torch"] = tuple(int(part) for part in str(names["target_torch"]).split("."))
    return names
