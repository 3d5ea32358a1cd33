"""Helpers for tests: migrates source texts held in memory."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from to_fsdp2.transforms.engine import Analysis, Options, analyse, extract
from to_fsdp2.transforms.text.edits import apply_edits
from to_fsdp2.transforms.text.source import Source


def analyse_texts(texts: Mapping[str, str], options: Options | None = None) -> tuple[Analysis, dict[str, str]]:
    """Analyses files given as text; returns the analysis and the new text of every file."""
    sources = {path: Source.read(path, text.encode()) for path, text in texts.items()}
    analysis = analyse([extract(source) for source in sources.values()], sources.__getitem__, options or Options())
    results = {
        path: apply_edits(source, analysis.edits[path]) if path in analysis.edits else source.text
        for path, source in sources.items()
    }
    results.update(analysis.new_files)
    for text in results.values():
        ast.parse(text)
    return analysis, results
