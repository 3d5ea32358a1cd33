"""`apply` writes everything or nothing, however it ends; what a killed run leaves, the next one puts in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from repositories import commit_all
from to_fsdp2.migrate import __main__ as command_line
from to_fsdp2.migrate import writer

OLD = "model = FSDP(net)\n"
NEW = "model = fully_shard(net)\n"

Files = dict[str, str]
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def tree(tmp_path: Path, fake_engine: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs in two folders, one of them behind a link."""
    folder = tmp_path / "tree"
    (folder / "pkg").mkdir(parents=True)
    fill(folder)
    monkeypatch.chdir(folder)
    return folder


def fill(folder: Path) -> None:
    for name in ("a.py", "b.py", "pkg/c.py"):
        (folder / name).write_text(OLD)


def files(folder: Path) -> Files:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }


def in_a_process(prepare: Callable[[], None] = lambda: None, *arguments: str, stdin: str = "") -> tuple[int, str]:
    """Run the command line in a process of its own, which `prepare` may have die; its exit code and what it said."""
    reader, writing = os.pipe()
    process = os.fork()
    if process == 0:
        code = 99
        try:
            os.dup2(writing, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what runs in the background
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            prepare()
            command_line.main(list(arguments) or ["apply", "-j", "1"])
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reader) as said:
        text = said.read()
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), text


class Counted:
    """Lets something happen before the n-th call of a function that touches the file system."""

    NAMES = ("link", "replace", "unlink", "rename", "fsync", "fchmod")

    def __init__(self, at: int, happen: Callable[[], None], names: Sequence[str] = NAMES) -> None:
        self.left = at
        self.names = names
        self.happen = happen

    def __call__(self) -> None:
        """Put it in place."""
        for name in self.names:
            setattr(os, name, self._counting(getattr(os, name)))

    def _counting(self, function: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            self.left -= 1
            if self.left == 0:
                self.happen()
            return function(*arguments, **options)

        return counted


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def full() -> None:
    raise OSError(28, "No space left on device")


def test_killed_before_every_single_step(tree: Path) -> None:
    old = files(tree)
    states: list[str] = []
    for step in range(1, 200):
        code, said = in_a_process(Counted(step, kill))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        now = files(tree)
        seen = {name: text for name, text in now.items() if not name.endswith(writer.ENDING)}
        assert set(seen.values()) <= {OLD, NEW}, "torn"
        states.append("old" if seen == old else "new" if NEW in seen.values() and OLD not in seen.values() else "mixed")
        assert "the reverse patch is" in said or states[-1] == "old"
        code, said = in_a_process()
        assert code == 0, said
        assert "an earlier run was killed" in said or states[-1] == "new" or now == old
        assert set(files(tree)) == set(old)
        assert set(files(tree).values()) == {NEW}
        fill(tree)
    assert set(states) == {"old", "mixed", "new"}
    assert len(states) > 20


@pytest.mark.parametrize(("number", "stride"), [(signal.SIGTERM, 1), (signal.SIGINT, 5), (signal.SIGHUP, 5)])
def test_a_signal_at_many_steps(tree: Path, number: int, stride: int) -> None:
    old = files(tree)
    ends = set()
    for step in range(1, 200, stride):
        code, said = in_a_process(Counted(step, lambda: os.kill(os.getpid(), number)))
        if code == 0:
            break
        assert code == 128 + number
        now = files(tree)
        assert now == old or set(now.values()) == {NEW}
        assert ("3 files had been written" in said) == (now != old)
        ends.add(now == old)
        fill(tree)
    assert ends == {True, False} if stride == 1 else True in ends


def test_a_full_disk_at_many_steps(tree: Path) -> None:
    old = files(tree)
    failed = 0
    for step in range(1, 50, 2):
        _, said = in_a_process(Counted(step, full, [name for name in Counted.NAMES if name != "unlink"]))
        now = files(tree)
        assert now == old or set(now.values()) == {NEW}, said
        assert set(now) == set(old)
        failed += now == old
        fill(tree)
    assert failed > 8


@pytest.mark.parametrize("command", ["scan", "diff", "check"])
def test_commands_that_change_nothing_say_it(tree: Path, command: str) -> None:
    mixed = half_written(tree)
    _, said = in_a_process(lambda: None, command)
    assert "`apply` was killed here" in said
    assert files(tree) == mixed


def test_what_was_written_since_is_left(tree: Path) -> None:
    half_written(tree)
    written = next(name for name, text in files(tree).items() if text == NEW)
    (tree / written).write_text("mine = 1\n")
    code, said = in_a_process(lambda: None, "apply", "-j", "1")
    assert code == 0
    assert f"{tree / written} has been changed since then" in said
    assert (tree / written).read_text() == "mine = 1\n"
    assert {text for name, text in files(tree).items() if name.endswith(writer.ENDING)} == {OLD}


def test_the_tree_is_clean_again_before_git_is_asked(tree: Path) -> None:
    commit_all(tree)
    half_written(tree)
    code, said = in_a_process()
    assert code == 0, said
    assert "are as before again" in said


def half_written(tree: Path) -> Files:
    """A tree of which a killed run has written two of three files."""
    assert in_a_process(Counted(3, kill, ("replace",)))[0] == -signal.SIGKILL
    now = files(tree)
    assert sorted(text for name, text in now.items() if not name.endswith(writer.ENDING)) == sorted([NEW, NEW, OLD])
    return now


def test_a_closed_pipe(tree: Path) -> None:
    command = f"{Path(sys.executable).parent / 'to-fsdp2'} apply"
    (tree / "train.py").write_text(f"from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n{OLD}")
    before = files(tree)
    shell = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} 2>undo | true; echo $?"], capture_output=True, text=True, check=False
    )
    assert shell.stdout.strip() in ("0", "1")
    assert files(tree).keys() >= before.keys()
    undo = (tree / "undo").read_text()
    (tree / "undo").unlink()
    assert undo.startswith("the reverse patch is ")
    assert os.system(undo.partition("to undo: ")[2]) == 0
    assert files(tree) == before
    shell = subprocess.run(
        ["bash", "-c", f"{command} 2>&1 >/dev/null | true; echo ${{PIPESTATUS[0]}}"], capture_output=True, check=False
    )
    assert shell.stdout.strip() == b"141"
    assert files(tree) == before


def test_two_runs_at_once_do_not_mix(tree: Path) -> None:
    with writer._one_at_a_time(tree):
        code, said = in_a_process()
    assert code == 64
    assert "another run is writing" in said
    assert set(files(tree).values()) == {OLD}


def test_links_that_lead_out_are_never_written_through(tree: Path) -> None:
    outside = tree.parent / "outside.py"
    outside.write_text(OLD)
    (tree / "link.py").symlink_to("../outside.py")
    (tree / ".git").mkdir()
    (tree / ".git" / "own.py").write_text(OLD)
    (tree / "hook.py").symlink_to(".git/own.py")
    (tree / "inside.py").symlink_to("pkg/c.py")
    code, said = in_a_process(lambda: None, "apply", "--allow-dirty", ".", "link.py")
    assert code == 2
    assert "2 failed" in said
    assert outside.read_text() == (tree / ".git" / "own.py").read_text() == OLD
    assert (tree / "inside.py").is_symlink()
    assert (tree / "pkg" / "c.py").read_text() == NEW


@pytest.mark.parametrize("target", ["/outside/new.py", "../new.py", "../outside.py"])
def test_a_module_of_helpers_that_is_a_link(tree: Path, target: str) -> None:
    (tree.parent / "outside.py").write_text("# mine\n")
    (tree / "helpers.py").symlink_to(target)
    change = writer.Change("helpers.py", tree / "helpers.py", None, b"x = 1\n")
    with pytest.raises(writer.WriteError, match="leads out of the tree"):
        writer.write_all([change], tree)
    assert not (tree.parent / "new.py").exists()
    assert (tree.parent / "outside.py").read_text() == "# mine\n"


def test_a_report_is_not_written_through_a_link_of_the_repositorys(tree: Path) -> None:
    commit_all(tree)
    mine = tree.parent / "mine"
    mine.write_text("mine")
    (tree / "report.json").symlink_to(mine)
    code, said = in_a_process(lambda: None, "scan", "-o", "report.json", "--format", "json")
    assert (code, mine.read_text()) == (64, "mine"), said
    assert "leads elsewhere" in said
