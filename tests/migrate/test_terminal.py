"""What comes from a repository shows on a terminal and never acts on it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from to_fsdp2.migrate.terminal import printable

Real = Callable[..., tuple[int, str, str]]

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x1b[31m"
PROGRAM = f"""\
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(net, process_group='{ESCAPE}\u202e\u2066')
model.module.train(); print('{ESCAPE}')
"""
NAMES = [
    "\x1b[2Jclear.py", "\x1b]0;title\x07.py", "line\nfeed.py", "\rover.py", "\x9b31m.py", "\u202eyp.right", "\u2028.py",
    "back\x08\x08space.py", "bell\x07.py", "zero\u200bwidth.py", "tab\t.py", "[bold red]markup[bold].py", "`code`|cell.py",
    "<img src=x onerror=alert(1)>.py", b"\xff\xfe.py", b"\xed\xa0\x80.py", "%s%n.py", "-rf.py", "$(touch x).py",
    "'; touch x;'.py",
]  # fmt: skip
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028\u202a-\u202e\u2066-\u2069]")


def hostile_tree(folder: Path) -> None:
    for name in NAMES:
        with open(os.path.join(os.fsencode(folder), os.fsencode(name)), "w", encoding="utf-8") as file:
            file.write(PROGRAM)
    with open(folder / "broken\x1b[31m.py", "w", encoding="utf-8") as file:
        file.write("from torch.nn.parallel import DistributedDataParallel\n'" + ESCAPE)


@pytest.mark.parametrize("form", ["text", "markdown", "html", "json", "sarif"])
def test_reports(real: Real, tmp_path: Path, form: str) -> None:
    hostile_tree(tmp_path)
    code, out, err = real("scan", "--all", "--format", form)
    assert code == 2
    assert _ACTING.search(out) is None
    assert _ACTING.search(err) is None
    assert err.count("\n") == 1
    assert "\\x1b[2Jclear.py" in out or form in ("json", "sarif", "html")


def test_names_do_not_add_lines(real: Real, tmp_path: Path) -> None:
    (tmp_path / "x.py\nfake.py: 0 files to change").write_text("")
    (tmp_path / "line\nfeed.py").write_text(PROGRAM)
    _, out, _ = real("scan")
    assert "line\\nfeed.py: 1 file to change" in out


@pytest.mark.parametrize("command", ["scan", "diff", "check", "apply"])
def test_a_terminal_gets_colours_and_nothing_else(tmp_path: Path, command: str) -> None:
    hostile_tree(tmp_path)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    program = Path(sys.executable).parent / "to-fsdp2"
    with subprocess.Popen(
        [program, command], cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break
            if not piece:
                break
            shown += piece
    os.close(ours)
    assert process.returncode in (0, 1, 2, 3)
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode("utf-8", "surrogateescape")).replace("\r\n", "\n")
    text = re.sub(r"\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A|\r", "", text)  # the progress bar
    assert _ACTING.search(text) is None
    assert "owned" in text or command != "diff"


def test_a_console_that_knows_ascii_alone(tmp_path: Path) -> None:
    hostile_tree(tmp_path)
    program = Path(sys.executable).parent / "to-fsdp2"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    finished = subprocess.run([program, "scan", "--all"], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert finished.returncode == 2, finished.stderr


def test_messages_about_arguments(real: Real) -> None:
    code, _, err = real("scan", "\x1b[2Jmissing")
    assert code == 64
    assert "\\x1b[2Jmissing" in err


def test_printable_leaves_text_alone() -> None:
    assert printable("naïve → 模型 é 🙂 'x' \\n") == "naïve → 模型 é 🙂 'x' \\n"
    assert printable("\udcff\x1b") == "\\udcff\\x1b"
