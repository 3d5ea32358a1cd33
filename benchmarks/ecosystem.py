"""What becomes of real repositories: levels and forms of the findings, what changes, what is left, and whether it is sound.

    python benchmarks/ecosystem.py FOLDER [--only NAME…] [--jobs N] [--json FILE] [--keep FOLDER] [--check | --update]

FOLDER holds a clone of each repository of ecosystem.tsv (columns: owner/name, commit) as FOLDER/name, at that commit.
Each is migrated in a copy, without files above a megabyte, by the to-fsdp2 of the Python that runs this. Its figures:

    safe, review, manual, ok        findings by level
    idiom, fallback, stop, note     findings by form
    wraps, left                     uses of FSDP1 and DDP that make a wrapper, before and after; see wrapper_uses.py
    files, added, removed, helpers  files changed and their lines; lines added to helper modules, which count apart
    broken, undefined, unused       files that are no Python any more; names that ruff did not complain of before
    failed, again                   files that could not be processed; hunks of a second run
    seconds, megabytes              processor time and peak memory of the scan in one process

ecosystem.json, beside the list, keeps all but the last two. `--check` prints what differs from it and exits with 1 if
anything does, `--update` writes it.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import multiprocessing
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from wrapper_uses import parse, wrapper_uses

LIST = Path(__file__).with_name("ecosystem.tsv")
LEVELS = ("safe", "review", "manual", "ok")
FORMS = ("idiom", "fallback", "stop", "note")
SOUNDNESS = ("broken", "undefined", "unused", "failed", "again")
KEPT = (*LEVELS, *FORMS, "wraps", "left", "files", "added", "removed", "helpers", *SOUNDNESS)
COLUMNS = (*KEPT, "seconds", "megabytes")
UNDEFINED = ("F821", "F822", "F823")
UNUSED = ("F401", "F811", "F841")
LARGEST = 1_000_000


class Repository(NamedTuple):
    name: str
    """Owner and name, as in an address."""
    commit: str

    @property
    def folder(self) -> str:
        return self.name.partition("/")[2]


class Outcome(NamedTuple):
    name: str
    figures: dict[str, float]
    """By column; empty where the tool failed."""
    reasons: collections.Counter[str]
    """Why findings are manual: rule and message."""
    problem: str = ""
    """Why there are no figures."""


class _Failure(Exception):
    """The tool took too long or ended as it must not."""


def main() -> int:
    """Print the table and the reasons; the exit code is 1 where `--check` finds a difference or a repository failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--list", type=Path, default=LIST, help="repositories and commits; its summary is the .json beside it")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="name or owner/name")
    parser.add_argument("--jobs", type=int, default=1, help="repositories at a time")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one run of the tool")
    parser.add_argument("--json", type=Path, help="all figures and reasons")
    parser.add_argument("--keep", type=Path, help="leaves NAME and NAME.json there: the migrated copy, and what scan said")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true")
    what.add_argument("--update", action="store_true")
    options = parser.parse_args()
    if options.keep and options.keep.resolve() == options.folder.resolve():
        parser.error("--keep would overwrite the clones")

    everything = [Repository(*line.split("\t")) for line in options.list.read_text().splitlines()]
    chosen = [one for one in everything if not options.only or {one.name, one.folder} & set(options.only)]
    width = max(map(len, (one.name for one in chosen)), default=0)
    print(" " * width, *COLUMNS)
    outcomes: list[Outcome] = []
    # A process for each repository: the system tells time and memory of all children of one together.
    with multiprocessing.Pool(options.jobs, maxtasksperchild=1) as pool:
        work = functools.partial(measure, options.folder, options.timeout, options.keep)
        for outcome in pool.imap(work, chosen, chunksize=1):
            outcomes.append(outcome)
            print(outcome.name.ljust(width), outcome.problem or _row(outcome.figures), flush=True)
            if options.json:
                options.json.write_text(json.dumps([done._asdict() for done in outcomes], indent=1) + "\n")
    print("all".ljust(width), _row({column: sum(o.figures.get(column, 0) for o in outcomes) for column in COLUMNS}))
    _print_reasons(outcomes)

    figures = {o.name: {column: o.figures[column] for column in KEPT} if o.figures else {} for o in outcomes}
    summary = options.list.with_suffix(".json")
    kept = json.loads(summary.read_text()) if summary.exists() else {}
    if options.update:
        summary.write_text(_summary({one.name: figures.get(one.name) or kept.get(one.name, {}) for one in everything}))
    changes = list(differences(kept, figures)) if options.check else []
    print(*changes, sep="\n", end="\n" if changes else "")
    return int(bool(changes) or any(outcome.problem for outcome in outcomes))


def measure(folder: Path, timeout: float, keep: Path | None, repository: Repository) -> Outcome:
    """Migrate a copy of one repository and take its figures. Has to be the first work of its process."""
    clone = folder / repository.folder
    if not clone.is_dir():
        return Outcome(repository.name, {}, collections.Counter(), f"no clone in {clone}")
    commit = _run(["git", "rev-parse", "HEAD"], clone).stdout.strip()
    if commit != repository.commit:
        return Outcome(repository.name, {}, collections.Counter(), f"at {commit[:12]}, not at {repository.commit[:12]}")
    with tempfile.TemporaryDirectory() as scratch:
        place = keep or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        tree, found = place.resolve() / repository.folder, place.resolve() / f"{repository.folder}.json"
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(clone, tree, symlinks=True, ignore=_unwanted)
        try:
            return Outcome(repository.name, *_migrate(tree, found, timeout))
        except (_Failure, subprocess.CalledProcessError) as failure:
            return Outcome(repository.name, {}, collections.Counter(), str(failure))


def _migrate(tree: Path, found: Path, timeout: float) -> tuple[dict[str, float], collections.Counter[str]]:
    _git(tree, "init", "-q")  # the root, by which the tool resolves imports
    _tool(tree, timeout, "scan", "--all", "--format", "json", "-o", str(found), passes=(0, 2))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads(found.read_text())
    findings: list[dict[str, Any]] = report["findings"]

    _git(tree, "add", "-A", "-f")
    _git(tree, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "--no-verify", "-m", "old")
    before = wrapper_uses(tree), _complaints(tree)
    _tool(tree, timeout, "apply", passes=(0, 1, 2, 3))
    again = _tool(tree, timeout, "diff", passes=(0, 1, 2, 3))
    _git(tree, "add", "-A", "-N")
    lines = dict(_changed_lines(tree))
    helpers = {name for name in lines if name.endswith("fsdp2_helpers.py")}
    own = [lines[name] for name in lines.keys() - helpers]
    names = _complaints(tree) - before[1]

    figures: dict[str, float] = {level: sum(f["level"] == level for f in findings) for level in LEVELS}
    figures |= {form: sum(f.get("form") == form for f in findings) for form in FORMS}
    figures |= {"wraps": before[0], "left": wrapper_uses(tree)}
    figures |= {"files": len(own), "added": sum(added for added, _ in own), "removed": sum(removed for _, removed in own)}
    figures |= {"helpers": sum(lines[name][0] for name in helpers)}
    figures |= {"broken": sum(parse(tree / name) is None for name in lines if (tree / name).suffix == ".py")}
    figures |= {"undefined": sum(count for (_, code, _), count in names.items() if code in UNDEFINED)}
    figures |= {"unused": sum(count for (_, code, _), count in names.items() if code in UNUSED)}
    figures |= {"failed": report["files"]["failed"], "again": again.count("\n@@ ")}
    figures |= {"seconds": round(used.ru_utime + used.ru_stime, 1), "megabytes": round(used.ru_maxrss / 1024)}
    manual = (f"{f['rule']} {re.sub('`[^`]*`', '`…`', f['message'])}" for f in findings if f["level"] == "manual")
    return figures, collections.Counter(manual)


def _complaints(tree: Path) -> collections.Counter[tuple[str, str, str]]:
    """(file, code, message) of what ruff says of names; without lines, which move."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--output-format=json"]
    output = _run([*command, "--select", ",".join(UNDEFINED + UNUSED), "."], tree).stdout
    return collections.Counter((entry["filename"], entry["code"], entry["message"]) for entry in json.loads(output))


def _changed_lines(tree: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """(file, (lines added, lines removed)) since the commit."""
    for line in _git(tree, "-c", "core.quotePath=false", "diff", "--numstat", "--no-renames").splitlines():
        added, removed, name = line.split("\t")
        if added != "-":  # a binary file
            yield name, (int(added), int(removed))


def differences(kept: dict[str, dict[str, int]], figures: dict[str, dict[str, float]]) -> Iterator[str]:
    """A line for each repository whose figures are not those that were kept."""
    for name, now in figures.items():
        then = kept.get(name, {})
        changed = [key for key in KEPT if then.get(key) != now.get(key)]
        if changed:
            yield f"{name}: " + ", ".join(f"{key} {then.get(key, '–')} → {now.get(key, '–')}" for key in changed)


def _summary(figures: dict[str, dict[str, float]]) -> str:
    """A line for each repository, so that a diff of two summaries reads well."""
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in figures.items()) + "\n}\n"


def _row(figures: dict[str, float]) -> str:
    return " ".join(f"{figures[column]:>{len(column)}.6g}" for column in COLUMNS)


def _print_reasons(outcomes: list[Outcome]) -> None:
    reasons: collections.Counter[str] = collections.Counter()
    for outcome in outcomes:
        reasons += outcome.reasons
    print("\nmost frequent reasons of manual findings" if reasons else "")
    for reason, count in reasons.most_common(20):
        print(f"{count:>5}  {reason}")


def _unwanted(folder: str, names: list[str]) -> list[str]:
    files = {name: Path(folder, name) for name in names}
    return [name for name, file in files.items() if name == ".git" or (file.is_file() and file.stat().st_size > LARGEST)]


def _tool(tree: Path, timeout: float, command: str, *arguments: str, passes: tuple[int, ...]) -> str:
    """What the command prints; raises _Failure if it takes too long or ends with a code that is not in `passes`."""
    try:
        done = _run([sys.executable, "-m", "to_fsdp2.migrate", command, ".", "--jobs", "1", *arguments], tree, timeout)
    except subprocess.TimeoutExpired:
        raise _Failure(f"{command} takes more than {timeout:.0f} s") from None
    if done.returncode not in passes:
        raise _Failure(f"{command} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def _git(tree: Path, *arguments: str) -> str:
    done = _run(["git", *arguments], tree)
    done.check_returncode()
    return done.stdout


def _run(command: list[str], at: Path, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=at, capture_output=True, text=True, errors="replace", timeout=timeout)


if __name__ == "__main__":
    sys.exit(main())
