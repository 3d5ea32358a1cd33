"""`--bisect`: which of the changes make the verdict what it is.

The parts of the diff are made and taken back in runs of the new side, until there are two states as near to each other as can
be: one that is equivalent, and one that fails as the whole does. A state that fails otherwise, or does not run, says nothing:
half a migration may well be wrong where the whole is right. The old side is not run again.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ..transforms.findings import Finding
from .changes import ChangedFile, Changes, compare_files
from .delta import Answer, isolate
from .headline import headline
from .judge import judge
from .partial import ChangedText, Part, compose, holds_together, parts_of
from .session import Session
from .sides import Place, open_side
from .verdict import NOT_RUN, BisectedChange, Bisection, Side, Verdict

FindingsOf = Callable[[Path], list[Finding]]
"""What the codemod finds in a directory."""
Cause = tuple[object, ...]


def bisect(
    session: Session, verdict: Verdict, texts: list[ChangedText], findings_of: FindingsOf, workspace: Path
) -> Bisection:
    """Finds the fewest changes that make a verdict what it is; `texts` are what differs, as it was before the runs."""
    cause = _cause(verdict)
    if cause is None:
        old = verdict.runs.get("old")
        if old is not None and old.failure not in (None, NOT_RUN):
            return Bisection(reason=f"nothing to bisect: the old side fails without any of the changes: {old.failure}")
        return Bisection(reason=f"nothing to bisect: the verdict is {verdict.verdict}, by none of the changes")
    files = {file.name: file for file in session.changes.files}
    texts = [_with_lines(text, files.get(text.name), session) for text in texts]
    parts = {part: text for text in texts for part in parts_of(text)}
    tried = [part for part, text in parts.items() if _ran(part, text, files.get(text.name))]
    rest = [part for part in parts if part not in tried]
    trials = _Trials(session, texts, cause, workspace)

    def test(chosen: frozenset[int]) -> Answer:
        return trials.answer([*rest, *(tried[number] for number in chosen)], f"{len(chosen)} of {len(tried)} changes")

    if not tried:
        return Bisection(reason="nothing to bisect: no run executed anything of what changed")
    passing, failing = isolate(len(tried), test)
    if rest and not passing and trials.answer(rest, "none of the executed changes") == "fails":
        return Bisection(reason=f"what makes the verdict is none of the {len(tried)} changes that the runs executed")
    found = [tried[number] for number in sorted(failing - passing)]
    root = session.places["old"].root.resolve()
    findings = [finding for finding in findings_of(root) if not finding.suppressed] if found else []
    changes = [_described(part, parts[part], findings, root) for part in found]
    return Bisection(changes, len(passing), len(tried), trials.count)


def _cause(verdict: Verdict) -> Cause | None:
    """What a trial has to show in order to fail as the whole does; None where no change makes the verdict what it is."""
    if verdict.verdict == "different":
        first = headline(verdict.checks)
        return first.name, first.step, first.tensor
    failures = {side: verdict.runs[side].failure for side in ("old", "new")}
    if verdict.verdict == "not judged" and failures["old"] is None and failures["new"] is not None:
        return "run", re.sub(r"\d+", "", failures["new"])
    return None


def _with_lines(text: ChangedText, file: ChangedFile | None, session: Session) -> ChangedText:
    if file is None:
        return text
    return replace(text, ran=(_lines_run(session, "old", file.old_path), _lines_run(session, "new", file.new_path)))


def _lines_run(session: Session, side: Side, path: Path | None) -> frozenset[int]:
    """The lines of a file that some run of a side executed where the side lies: a resumed run executes others."""
    records = [record for run, record in session.runs.values() if run.side == side]
    return frozenset(line - 1 for record in records for line in record.lines.get(str(path), ()))


def _ran(part: Part, text: ChangedText, file: ChangedFile | None) -> bool:
    """Whether anything of a change was executed; of a file that is not Python nobody knows."""
    if file is None:
        return True
    for ran, statements, lines in (
        (text.ran[0], file.old, [line for block in part.blocks for line in block.old]),
        (text.ran[1], file.new, [line for block in part.blocks for line in block.new]),
    ):
        for statement in statements:
            own = {line - 1 for line in statement.lines}
            if own & ran and (not part.blocks or own.intersection(lines)):
                return True
    return False


class _Trials:
    """Runs of the new side with some of its changes."""

    def __init__(self, session: Session, texts: list[ChangedText], cause: Cause, workspace: Path) -> None:
        self.session, self.texts, self.cause, self.workspace = session, texts, cause, workspace
        self.count = 0

    def answer(self, made: list[Part], name: str) -> Answer:
        """How a run with these changes ends, next to how the whole does."""
        if not holds_together(self.texts, made):
            return "neither"
        self.count += 1
        self.session.progress.say(f"trial {self.count}: {name}")
        place = self.workspace / f"trial-{self.count}"
        with self._opened(place, made) as session:
            verdict = judge(session, place)
        assert verdict is not None
        cause = _cause(verdict)
        answer: Answer = "passes" if verdict.verdict == "equivalent" else "fails" if cause == self.cause else "neither"
        self.session.progress.say(f"trial {self.count}: {'another failure' if answer == 'neither' else answer}")
        return answer

    @contextmanager
    def _opened(self, workspace: Path, made: list[Part]) -> Iterator[Session]:
        """A session of which the old side has run, and of whose new side some changes are made."""
        whole, files = self.session, compose(self.texts, made)
        # Resuming takes three more runs.
        options = replace(whole.options, resume=self.cause[0] == "resume")

        def prepare(new: Place) -> None:
            for text in self.texts:
                path, content = new.top / text.place, files[text.name]
                path.unlink(missing_ok=True)
                if content is not None:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)

        try:
            with open_side("new", options, workspace / "new") as new:
                prepare(new)
                yield whole.again(options, new, self._changes(new), workspace / "kept", prepare)
        finally:
            shutil.rmtree(workspace, ignore_errors=True)

    def _changes(self, new: Place) -> Changes:
        changes = self.session.changes
        before = {**{file.name: file.old_path for file in changes.files}, **changes.other}
        after = {text.name: new.top / text.place for text in self.texts}
        return compare_files([(name, before[name], path if path.is_file() else None) for name, path in after.items()])


def _described(part: Part, text: ChangedText, findings: list[Finding], root: Path) -> BisectedChange:
    if not part.blocks:
        return BisectedChange(part.file, 1, 1)
    old, new = text.lines
    patch: list[str] = []
    for block in part.blocks:
        patch += [f"-{old[line].rstrip()}" for line in block.old]
        patch += [f"+{new[line].rstrip()}" for line in block.new]
    touched = {line + 1 for block in part.blocks for line in block.old}
    own = [finding for finding in findings if Path(finding.file).resolve() == root / part.file]
    rules = {f.rule for f in own if touched.intersection(range(f.line, f.end_line + 1))}
    first = part.blocks[0]
    return BisectedChange(part.file, first.new.start + 1, first.old.start + 1, sorted(rules), patch)
