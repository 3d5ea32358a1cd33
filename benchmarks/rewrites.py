"""Whether whole repositories come out sound: syntax, names, and nothing left for a second run.

    python benchmarks/rewrites.py FOLDER…

Each folder is migrated in a copy. A line per folder: files changed, hunks, files that are no Python any more, names
that ruff calls undefined or unused and did not before, whether files failed, and changes of a second run. The last
four have to be 0.
"""

from __future__ import annotations

import ast
import collections
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RULES = "F401,F811,F821,F822,F823,F841"
_PACKAGES = re.compile(r"`(?:\w+\.)+(?=\w+`)")


def main(folders: list[str]) -> None:
    """Print the table, and what is wrong under it."""
    print(f"{'tree':<20}{'files':>7}{'hunks':>7}{'broken':>8}{'names':>7}{'failed':>8}{'again':>7}")
    for folder in folders:
        with tempfile.TemporaryDirectory() as scratch:
            tree = Path(shutil.copytree(folder, Path(scratch) / Path(folder).name))
            before = complaints(tree)
            patch, _ = _run("diff", tree)
            _, code = _run("apply", tree)
            changed = [line.removeprefix("+++ b/") for line in patch.splitlines() if line.startswith("+++ b/")]
            broken = [name for name in changed if not _parses(tree / name)]
            names = complaints(tree) - before
            again, _ = _run("diff", tree)
            hunks = sum(line.startswith("@@") for line in patch.splitlines())
            print(
                f"{tree.name:<20}{len(changed):>7}{hunks:>7}{len(broken):>8}{names.total():>7}{code & 2:>8}"
                f"{sum(line.startswith('@@') for line in again.splitlines()):>7}"
            )
            for problem in [*broken, *names.elements(), *again.splitlines()]:
                print(f"    {problem}")


def complaints(tree: Path) -> collections.Counter[str]:
    """What ruff says of names, without lines, which move, and packages, which old imports change."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", RULES, "--output-format=json", "."]
    output = subprocess.run(command, cwd=tree, capture_output=True, text=True).stdout
    return collections.Counter(
        f"{Path(entry['filename']).relative_to(tree.resolve())}: {_PACKAGES.sub('`', entry['message'])}"
        for entry in json.loads(output)
    )


def _run(command: str, tree: Path) -> tuple[str, int]:
    done = subprocess.run([sys.executable, "-m", "to_fsdp2.migrate", command, "."], cwd=tree, capture_output=True, text=True)
    return done.stdout, done.returncode


def _parses(file: Path) -> bool:
    try:
        ast.parse(file.read_bytes())
    except SyntaxError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
