"""The edits of one file, imports included, checked by parsing the result."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .edits import Edit, apply_edits
from .imports import mend_imports
from .rule import Need
from .sites import Site
from .view import FileView


class RewriteError(Exception):
    """The new text of a file would not be Python: a defect of a rule, never written to disk."""


def file_edits(view: FileView, edits: list[Edit], needs: Sequence[Need], sites: Sequence[Site]) -> list[Edit]:
    """All edits of a file: what the rules want, and the imports that follow from it."""
    old_names = {
        site.node.asname or site.node.name.partition(".")[0]
        for site in sites
        if site.role == "import" and isinstance(site.node, ast.alias) and site.node.name != "*"
    }
    try:
        complete = mend_imports(view.source, edits, needs, old_names)
        ast.parse(apply_edits(view.source, complete))
    except SyntaxError as error:
        message = f"{view.path}: the rewritten file would not parse: {error.msg} (line {error.lineno})"
        raise RewriteError(message) from error
    return complete
