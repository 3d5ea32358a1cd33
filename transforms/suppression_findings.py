"""Suppressions that do not mean what they say: of unknown rules, spelled wrongly, or of nothing that is there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from .findings import Finding, Form, Level
from .queries.answers import Answer
from .queries.file import File
from .queries.said import SaidByComments
from .queries.sharding import ShardingQueries
from .rule import all_rules
from .text.rule_ids import ids_like
from .text.suppressions import Comment, Suppressions
from .written_stops import written_stops

ID = "FS992"
_LEFT_OUT = "to leave a wrap as it is, write `ignore[...]` with its rule at the wrap"
CONTRACT = "FS9"
"""How the ids of the rules begin that only `check` asks."""


def suppression_findings(
    file: File, programs: tuple[str, ...], findings: Sequence[Finding], sharding: ShardingQueries, asks_contract: bool,
    is_whole: bool,
) -> Iterator[Finding]:
    """A finding for each comment of a file that is not read, that is wrong, or that leaves out nothing.

    ``findings`` are all of the file. Only where they are the ``is_whole`` of what the rules say can a comment be without
    use, and one for the contract only where that was asked (``asks_contract``).
    """
    suppressions = Suppressions(file.source)
    for wrong in suppressions.misspelled:
        yield _finding(file, programs, wrong.line, wrong.column, wrong.end_column, wrong.problem)
    names = SaidByComments(file)
    for said in suppressions.said:
        bound, problem = names.bound_by(said), ""
        if not bound:
            problem = f"no name is bound on the line of this `{said.word}`: put it where one is assigned, or is an argument"
        elif said.word == "plain" and any(sharding.of_values(file.values(value)).answer is Answer.YES for value in bound):
            problem = f"what is bound here is sharded, so `plain` is not heeded: {_LEFT_OUT}"
        if problem:
            yield _finding(file, programs, said.line, said.column, said.end_column, problem)
    known = {rule.id for rule in all_rules()} | {rule for _, rule, _ in written_stops(file)}
    for comment in suppressions.comments:
        problem = _unknown(comment, known)
        if not problem and is_whole and _is_asked(comment, asks_contract):
            problem = _unused(comment, findings)
        if problem:
            yield _finding(file, programs, comment.line, comment.column, comment.end_column, problem)


def _is_asked(comment: Comment, asks_contract: bool) -> bool:
    """Whether the rules that a comment may mean have all been asked."""
    return asks_contract or (bool(comment.rules) and not any(rule.startswith(CONTRACT) for rule in comment.rules))


def _unknown(comment: Comment, known: Collection[str]) -> str:
    for name in comment.rules:
        if not any(rule.startswith(name) for rule in known):
            close = ids_like(name, known, 2)
            meant = f"; did you mean {' or '.join(close)}?" if close else ""
            return f"no rule is called {name[:40]!r}, so nothing is left out{meant}"
    return ""


def _unused(comment: Comment, findings: Sequence[Finding]) -> str:
    there = [f.rule for f in findings if f.suppressed and comment.covers(f.rule, f.line, f.end_line)]
    if not there:
        return "no rule that is meant says anything here: take the comment out"
    unused = [name for name in comment.rules if not any(rule.startswith(name) for rule in there)]
    return f"nothing here is found by {', '.join(unused)}: take it out of the brackets" if unused else ""


def _finding(file: File, programs: tuple[str, ...], line: int, column: int, end_column: int, message: str) -> Finding:
    rule = next(rule for rule in all_rules() if rule.id == ID)
    return Finding(
        ID, Level.REVIEW, file.path, line, column, line, end_column, "", message, rule.why, rule.advice, Form.NOTE, programs
    )
