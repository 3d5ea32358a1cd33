"""Comments for the tool: `# to-fsdp2: ignore[FS301] reason` speaks for a site, `# to-fsdp2: sharded` for a name."""

from __future__ import annotations

import difflib
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from .source import Source

_RIGHT = re.compile(r"#\s*to-fsdp2:\s*ignore(?:\[(?P<rules>[^\]]*)\])?(?=$|[\s,;:.—–-])(?P<rest>.*)")
_SAID = re.compile(r"#\s*to-fsdp2:\s*(?P<word>sharded|plain)(?=$|[\s,;:.—–-])")
_LIKE = re.compile(r"(?i)#+\s*to[-_ ]?fsdp[-_]?2?(?P<mark>\s*[:=])?\s*(?P<word>[a-z]+)(?P<rest>.*)")
_FORM = "`# to-fsdp2: ignore[FS301] reason`"
_FORMS = f"{_FORM}, or `# to-fsdp2: sharded` or `plain` for a name"
_WORDS = ("ignore", "ignored", "noqa", "disable", "skip", "suppress", "allow", "nolint")
_RULE = re.compile(r"(?i)^\s*[:(]?\s*(FS\d+)")


@dataclass(frozen=True)
class Comment:
    """One comment that leaves rules out: of its own line, or of the code below if it stands on a line of its own."""

    line: int
    column: int
    end_column: int
    rules: tuple[str, ...]
    """Rules, or how their ids begin; none for all rules."""
    about: int
    """The line that it speaks for."""

    def covers(self, rule: str, line: int, end_line: int) -> bool:
        """Whether it speaks for a rule at a site on these lines (1-based, both ends included)."""
        near = line <= self.about <= end_line or line <= self.line <= end_line
        return near and (not self.rules or rule.startswith(self.rules))


@dataclass(frozen=True)
class Said:
    """One comment that says of the names that are bound on a line what they hold: sharded models, or plain ones."""

    line: int
    column: int
    end_column: int
    word: str
    about: int
    """The line that it speaks for."""


@dataclass(frozen=True)
class Misspelled:
    """A comment that looks like one that leaves rules out, and is not read as it was meant."""

    line: int
    column: int
    end_column: int
    problem: str


class Suppressions:
    """The comments of one file that are for the tool."""

    MARK = "to-fsdp2:"
    """A text without it has none."""

    def __init__(self, source: Source) -> None:
        self.comments: list[Comment] = []
        self.said: list[Said] = []
        self.misspelled: list[Misspelled] = []
        for line, column, text in _comments(source) if _LIKE.search(source.text) else ():
            self._read(source, line, column, text)

    def cover(self, rule: str, line: int, end_line: int) -> bool:
        """Whether a comment on a line of the site (1-based, both ends included) or right above it names the rule."""
        return any(comment.covers(rule, line, end_line) for comment in self.comments)

    def _read(self, source: Source, line: int, column: int, text: str) -> None:
        place = line, column, column + len(text)
        alone = not source.lines[line - 1][: column - 1].strip()
        about = _below(source, line) if alone else line
        if (said := _SAID.search(text)) is not None:
            self.said.append(Said(*place, said["word"], about))
            return
        right = _RIGHT.search(text)
        if right is None:
            problem = _problem(text)
            if problem:
                self.misspelled.append(Misspelled(*place, problem))
            return
        rules = tuple(filter(None, re.split(r"[\s,]+", right["rules"] or "")))
        named = _RULE.match(right["rest"])
        if right["rules"] is not None and not rules:
            self.misspelled.append(Misspelled(*place, f"the brackets name no rule, so nothing is left out: write {_FORM}"))
        elif right["rules"] is None and named is not None:
            meant = f"# to-fsdp2: ignore[{named[1].upper()}]"
            self.misspelled.append(Misspelled(*place, f"a rule is named outside of brackets, so nothing is left out: `{meant}`"))
        else:
            self.comments.append(Comment(*place, rules, about))


def _problem(text: str) -> str:
    """What is wrong with a comment that looks like one for this tool; empty where it is none."""
    like = _LIKE.search(text)
    if like is None:
        return ""
    is_meant = bool(difflib.get_close_matches(like["word"].lower(), _WORDS, 1, 0.75))
    is_marked = text[like.start() :].lstrip("# ").startswith(Suppressions.MARK)
    if (is_meant and (like["mark"] or re.match(r"\s*[\[(]", like["rest"]))) or is_marked:
        return f"this comment is not read: write {_FORM}" if is_meant else f"this comment is not read: write {_FORMS}"
    return ""


def _comments(source: Source) -> Iterator[tuple[int, int, str]]:
    """The comments of a file, each with line and column (1-based); what stands in strings is none."""
    lines = iter(source.lines)
    try:
        for token in tokenize.generate_tokens(lambda: next(lines, "")):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.start[1] + 1, token.string
    except (tokenize.TokenError, SyntaxError):
        return  # a file that cannot be parsed is an entry of its own


def _below(source: Source, line: int) -> int:
    """The line of code that a comment on a line of its own is about: the next one that is no comment itself."""
    for number in range(line + 1, len(source.lines) + 1):
        text = source.lines[number - 1].strip()
        if text and not text.startswith("#"):
            return number
    return line
