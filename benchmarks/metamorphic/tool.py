"""The command that migrates, run in forks of one process that has imported it: its start is paid once.

A server, started as `INTERPRETER tool.py COMMAND`; it needs the standard library only, for the tool may be in another
environment. It reads one job a line (JSON: `args`, `folder`, `work`, `seconds`) and answers one line with the exit code, None
where it took too long; what the tool said is in `stdout.json` and `stderr.txt` in the folder `work`. All migrations of a
measurement are made by the tool as it was when the server started.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 300


@dataclass(frozen=True)
class Migration:
    """What the tool said: the messages of manual findings, and why it failed, or an empty text."""

    manual: list[str]
    failure: str


class Tool:
    """A server of migrations with a command, whose first line names a Python interpreter; it may be used by several threads."""

    def __init__(self, command: Path) -> None:
        interpreter = command.read_text().partition("\n")[0].removeprefix("#!").strip()
        self._server = subprocess.Popen(
            [interpreter, __file__, str(command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lock = threading.Lock()

    def close(self) -> None:
        """Ends the server."""
        self._server.terminate()
        self._server.communicate()

    def migrate(self, folder: Path, options: Sequence[str], work: Path) -> Migration:
        """Migrates a folder in place; `work` is a new folder for what the tool writes besides."""
        assert self._server.stdin and self._server.stdout
        work.mkdir()
        args = ["apply", "--allow-dirty", "--format", "json", *options, str(folder)]
        with self._lock:
            job = {"args": args, "folder": str(folder), "work": str(work), "seconds": SECONDS}
            self._server.stdin.write(json.dumps(job) + "\n")
            self._server.stdin.flush()
            code = json.loads(self._server.stdout.readline())
        if code is None:
            return Migration([], f"the tool took longer than {SECONDS} s.")
        try:
            findings = json.loads((work / "stdout.json").read_text())["findings"]
        except (ValueError, KeyError):
            return Migration([], f"the tool ended with {code}: {(work / 'stderr.txt').read_text().strip()[-500:]}")
        manual = [f"{one['rule']} {one['message']}" for one in findings if one["level"] == "manual" and not one.get("suppressed")]
        # 0 and 1 are the exit codes of a run in which every file was processed.
        return Migration(manual, "" if code in (0, 1) else f"the tool ended with {code}.")


def serve(command: str) -> None:
    """Answers jobs until stdin ends."""
    # The folder of this file is no place for the tool to import from.
    sys.path[0] = os.path.dirname(command)
    with contextlib.suppress(ImportError):
        importlib.import_module("to_fsdp2.migrate.__main__")
        importlib.import_module("to_fsdp2.transforms.rule").all_rules()
        importlib.import_module("to_fsdp2.transforms.rewrites.helper_source").definitions()
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(run(command, json.loads(line))), flush=True)


def run(command: str, job: dict[str, Any]) -> int | None:
    """Forks a process for a job and waits for it; gives its exit code, None where it took too long."""
    pid = os.fork()
    if not pid:
        be_tool(command, job)
    deadline = time.monotonic() + job["seconds"]
    late = False
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return None if late else os.waitstatus_to_exitcode(status)
        if not late and time.monotonic() > deadline:
            late = True
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def be_tool(command: str, job: dict[str, Any]) -> None:
    """Runs the command as a program; never returns."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for descriptor, name in ((1, "stdout.json"), (2, "stderr.txt")):
            os.dup2(os.open(os.path.join(job["work"], name), os.O_WRONLY | os.O_CREAT), descriptor)
        os.chdir(job["folder"])
        os.environ["TMPDIR"] = job["work"]
        sys.argv = [command, *job["args"]]
        runpy.run_path(command, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
