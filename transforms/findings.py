"""What the tool says about a site: the vocabulary that every other module shares."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    """How sure the tool is of what it does at a site.

    ``SAFE``: rewritten, and a corpus pair proves the rewrite equivalent.
    ``REVIEW``: rewritten, but behaviour may differ in a named way, or an assumption is stated that the code checks.
    ``MANUAL``: a stop: the finding says why, what breaks, and what to write instead.
    ``OK``: right as it stands.
    """

    OK = "ok"
    SAFE = "safe"
    REVIEW = "review"
    MANUAL = "manual"

    @property
    def rank(self) -> int:
        """Order from harmless (0) to most in need of a person (3)."""
        return _RANKS[self.value]


_RANKS = {"ok": 0, "safe": 1, "review": 2, "manual": 3}


class Form(str, Enum):
    """How a site was answered.

    ``IDIOM``: FSDP2 as people write it, on certain facts. ``FALLBACK``: a general rewrite that is right whatever is true
    at run time. ``STOP``: code that raises where nothing general is right. ``NOTE``: nothing is written.
    """

    IDIOM = "idiom"
    FALLBACK = "fallback"
    STOP = "stop"
    NOTE = "note"


@dataclass(frozen=True)
class Step:
    """One link of a provenance chain: where a value came through, and what happened there."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class Finding:
    """What one rule says about one site. Lines and columns are 1-based, columns in characters, the end exclusive."""

    rule: str
    level: Level
    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    symbol: str
    message: str
    why: str = ""
    advice: str = ""
    form: Form = Form.NOTE
    programs: tuple[str, ...] = ()
    provenance: tuple[Step, ...] = ()
    suppressed: bool = False

    @property
    def id(self) -> str:
        """A name for this finding that stays the same from run to run."""
        return f"{self.file}:{self.line}:{self.column}:{self.rule}"


@dataclass(frozen=True)
class FileError:
    """A file that could not be processed, in one line. ``line`` is 1-based, or None when no line is to blame."""

    file: str
    line: int | None
    message: str


class UserError(Exception):
    """Something the user gave is wrong; the message is one line and names file and line where there is one."""
