"""A migration in commits: one that works under both wrappers and leaves the wraps, then one for each program that flips its own.

Programs that share a file which changes are one. The commits of programs touch no file in common, so that each reverts alone:
the modules of helpers come with the first commit, and hold what every state in between needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..transforms.engine import Options
from ..transforms.findings import Finding, Level
from ..transforms.rewrites.helper_place import features_left_out, held_names, module_text
from ..transforms.text.generated import is_helper_module
from .git_commits import Commit
from .pipeline import Migration
from .program_groups import Group, groups_of


def half_migrated(options: Options) -> Options:
    """Options under which everything works with old and new wraps, and no wrap changes."""
    return replace(options, wraps=False, idioms=False)


def in_commits(half: Migration, whole: Migration) -> tuple[list[Commit], dict[str, bytes]]:
    """The commits that lead to a whole migration over a half one, and the files as they are after the last."""
    before = {change.label: change.old for change in (*half.changes, *whole.changes)}
    texts = {change.label: change.new for change in whole.changes if not is_helper_module(change.label)}
    halves = {change.label: change.new for change in half.changes if not is_helper_module(change.label)}
    groups = groups_of(whole.findings, {*texts, *halves})
    written = {file for group in groups if group.programs - whole.left_alone.keys() for file in group.files}
    first = {label: data for label, data in halves.items() if label in written}
    helpers = _helpers(half, whole)
    commits = [Commit(_FIRST, {**first, **helpers})] if first or helpers else []
    final = {**first, **helpers}
    for group in groups:
        flipped = {label: texts.get(label, before[label] or b"") for label in sorted(group.files & written)}
        flipped = {label: data for label, data in flipped.items() if data != first.get(label, before[label])}
        if flipped:
            commits.append(Commit(_message(group, whole.findings), flipped))
            final |= flipped
    return commits, final


def _helpers(half: Migration, whole: Migration) -> dict[str, bytes]:
    """Modules with what both the half and the whole migration use, and what models in old wrappers need of it."""
    texts: dict[str, list[str]] = {}
    for change in (*half.changes, *whole.changes):
        if is_helper_module(change.label):
            texts.setdefault(change.label, []).append(change.new.decode())
    joined = {}
    for label, found in texts.items():
        names = frozenset().union(*map(held_names, found))
        absent = frozenset.intersection(*map(features_left_out, found))
        joined[label] = module_text(names, absent).encode()
    return joined


_FIRST = """\
Prepare for FSDP2: what works under old and new wraps

No wrap changes here, and training stays the same: every use of a wrapped model asks which one it is.
"""


def _message(group: Group, findings: Iterable[Finding]) -> str:
    title = f"Move {group.name} to FSDP2"
    own = [f for f in findings if f.file in group.files and not f.suppressed and f.level in (Level.REVIEW, Level.MANUAL)]
    if not own:
        return f"{title}\n"
    listed = [f"- {f.file}:{f.line} {f.rule} {'open stop: ' if f.level is Level.MANUAL else ''}{f.message}" for f in own]
    return "\n".join([title, "", "To be looked at (lines of before):", "", *listed, ""])
