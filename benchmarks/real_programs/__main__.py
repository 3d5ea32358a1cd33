"""Public training programs through the whole chain: migrated, then judged by verify.

    python -m real_programs CLONES [--only NAME…] [--work FOLDER] [--json FILE] [--no-plain]

Run in benchmarks/, with the Python that has to-fsdp2[verify] and the packages that the recipes name. CLONES holds the
repositories of ecosystem.tsv (see ecosystem.py). Every program is copied to WORK/NAME/old, prepared by its recipe, migrated in a
copy, and verified with a save, and a resume where it has one. A row says the verdict, what stands in front of it, and how long
verify took, as a multiple of the two programs run by themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from .programs import RECIPES
from .recipe import Recipe

HERE = Path(__file__).parent
INJECT = HERE.parents[1] / "equivalence" / "inject"
PLAIN_SECONDS = 300
LEFT_OUT = (".git", "__pycache__", "*.ipynb", "*.png", "*.jpg", "*.gif", "*.pdf", "*.mp4")


class Failed(Exception):
    """A recipe does not fit its clone, or a command gave no answer."""


class Row(NamedTuple):
    name: str
    verdict: str
    headline: str
    not_equal: list[str]
    """Checks that neither pass nor do not apply, with their outcome."""
    findings: dict[str, int]
    seconds: float
    times: float | None
    """Wall time of verify relative to the two plain runs."""


def set_up(recipe: Recipe, clones: Path, work: Path) -> tuple[Path, Path]:
    """The program as it was and a copy to be migrated, both with data and configuration."""
    old, new = work / "old", work / "new"
    shutil.rmtree(work, ignore_errors=True)
    source = clones / recipe.repository.partition("/")[2] / recipe.folder
    shutil.copytree(source, old, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
    for path, changes in recipe.replace.items():
        text = (old / path).read_text()
        for before, after in changes:
            if before not in text:
                raise Failed(f"{path} has no {before!r}")
            text = text.replace(before, after)
        (old / path).write_text(text)
    recipe.prepare(old)
    shutil.copytree(old, new, symlinks=True)
    return old, new


def migrate(new: Path) -> dict[str, int]:
    """Migrates a copy; returns the number of findings by level, and of stops."""
    command = [sys.executable, "-m", "to_fsdp2.migrate", "apply", "--allow-dirty", "--format", "json", str(new)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode > 1 or not done.stdout:
        raise Failed(done.stdout + done.stderr)
    counts: dict[str, int] = {}
    for finding in json.loads(done.stdout)["findings"]:
        counts[finding["level"]] = counts.get(finding["level"], 0) + 1
    return counts


def environment_of(recipe: Recipe) -> dict[str, str]:
    path = [str(HERE / "stubs" / stub) for stub in recipe.stubs]
    inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    settings = {"OMP_NUM_THREADS": "1", **recipe.environment}
    return {**os.environ, **settings, "PYTHONPATH": os.pathsep.join([*path, *inherited])}


def verify(recipe: Recipe, old: Path, new: Path, report: Path) -> tuple[dict[str, Any], float]:
    resume = [] if recipe.resume is None else ["--resume", "--resume-arguments", recipe.resume]
    command = [
        sys.executable, "-m", "to_fsdp2.migrate", "verify", "--old", str(old), "--new", str(new), "--report", str(report),
        "--timeout", "600", *resume, *shlex.split(recipe.options), "--", *shlex.split(recipe.command),
    ]  # fmt: skip
    began = time.monotonic()
    done = subprocess.run(command, env=environment_of(recipe), capture_output=True, text=True)
    seconds = time.monotonic() - began
    (report / "verdict.txt").write_text(done.stdout + done.stderr)
    if not (report / "report.json").exists():
        raise Failed(done.stdout + done.stderr)
    return json.loads((report / "report.json").read_text()), seconds


def plain_seconds(recipe: Recipe, report: dict[str, Any], old: Path, new: Path) -> float | None:
    """Wall time of both programs without verify: only the devices that this machine lacks are emulated. None: one hung."""
    total = 0.0
    for side, folder in (("old", old), ("new", new)):
        run = report["runs"][side]
        emulated = {name: value for name, value in run["environment"].items() if name == "TO_FSDP2_EMULATE_CUDA"}
        with tempfile.TemporaryDirectory() as temporary:
            copy = Path(temporary) / "copy"
            shutil.copytree(folder, copy, symlinks=True)
            environment = {**environment_of(recipe), **emulated}
            environment["PYTHONPATH"] = os.pathsep.join([str(INJECT), environment["PYTHONPATH"]])
            command = [part for part in run["command"] if not part.startswith(("--log-dir", "--redirects"))]
            began = time.monotonic()
            if not run_to_end(command, copy, environment):
                return None
            total += time.monotonic() - began
    return total


def run_to_end(command: list[str], folder: Path, environment: dict[str, str]) -> bool:
    """Whether a program ended by itself: gloo's threads now and then keep a rank from leaving."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, stdout=quiet, stderr=quiet)
    try:
        process.wait(PLAIN_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return False
    return True


def judge(recipe: Recipe, clones: Path, work: Path, plain: bool) -> Row:
    old, new = set_up(recipe, clones, work)
    findings = migrate(new)
    report, seconds = verify(recipe, old, new, work / "report")
    not_equal = [
        f"{check['name']} {check['outcome']}"
        for check in report["checks"]
        if check["outcome"] not in ("pass", "not compared")
        or (check["name"] == "resume" and recipe.resume is not None and check["outcome"] != "pass")
    ]
    has_run = all(run["command"] for run in report["runs"].values())
    alone = plain_seconds(recipe, report, old, new) if plain and has_run else None
    times = seconds / alone if alone else None
    return Row(recipe.name, report["verdict"], report.get("reason") or "", not_equal, findings, seconds, times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clones", type=Path)
    parser.add_argument("--only", nargs="*", default=[recipe.name for recipe in RECIPES])
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "real_programs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-plain", dest="plain", action="store_false", help="do not run the programs by themselves")
    options = parser.parse_args()
    rows = []
    for recipe in RECIPES:
        if recipe.name in options.only:
            try:
                row = judge(recipe, options.clones, options.work / recipe.name, options.plain)
            except Failed as error:
                print(f"{recipe.name}: {error}", flush=True)
                continue
            rows.append(row._asdict())
            times = f", {row.times:.1f} times two plain runs" if row.times else ""
            print(
                f"{row.name}: {row.verdict}  {row.findings}  {row.seconds:.0f} s{times}",
                *row.not_equal,
                row.headline,
                sep="\n    ",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
