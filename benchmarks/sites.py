"""What becomes of the sites of whole repositories: how many are rewritten, why the others are not, what no finding names.

    python benchmarks/sites.py FOLDER…

A line per folder and one for all: the sites of the common uses (``COMMON``), the share of them that comes out safe or
review, and the share that comes out safe; then the most frequent reasons of the manual ones, and every line that holds
a name of the old APIs but no finding.
"""

from __future__ import annotations

import ast
import collections
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COMMON = (
    ("imports", "FS600", r"torch\.(distributed\.fsdp|nn\.parallel|distributed\.algorithms\._checkpoint)\b(?!.*\._)"),
    ("imports", "FS600", r".*checkpoint_wrapper.*"),
    ("DDP(…)", "FS12.", r".*DistributedDataParallel.*"),
    ("FSDP(…)", "FS1(01|02|06|08|09|1.)|FS2(00|10|2.|3.)", r".*FullyShardedDataParallel.*"),
    ("policies", "FS10[2-5]", r".*"),
    ("strategies", "FS107", r".*"),
    ("mixed precision", "FS201", r".*"),
    ("clipping", "FS303", r".*"),
    ("no_sync", "FS30[12]", r".*"),
    ("kinds of state dict", "FS4(01|08|09|10)", r".*"),
    ("state dicts", "FS40[2-7]", r".*"),
    ("activation checkpointing", "FS55.", r".*"),
    (".module", "FS601", r".*"),
    ("isinstance", "FS603", r".*"),
)
CLASSES = re.compile(
    r"FullyShardedDataParallel|FSDP|DistributedDataParallel|DDP|StateDictType|ShardingStrategy|MixedPrecision|CPUOffload"
    r"|BackwardPrefetch|ShardedGradScaler|(Full|Local|Sharded)(Optim)?StateDictConfig"
)
MEMBERS = re.compile(
    r"no_sync|state_dict_type|set_state_dict_type|summon_full_params|(full_|sharded_)?optim_state_dict(_to_load)?"
    r"|require_backward_grad_sync|apply_activation_checkpointing|checkpoint_wrapper"
)
Finding = dict[str, Any]


def main(folders: list[str]) -> None:
    """Print the table, the reasons, and the lines without a finding."""
    everything: list[Finding] = []
    unnamed: list[str] = []
    print(f"{'tree':<20}{'findings':>9}{'common':>8}{'safe':>6}{'review':>8}{'manual':>8}{'safe+review':>13}{'safe':>7}")
    for folder in folders:
        findings = scan(Path(folder))
        everything += findings
        unnamed += lines_without_finding(Path(folder), findings)
        _line(Path(folder).name, findings)
    _line("all", everything)
    print("\nmost frequent reasons of manual findings among the common uses")
    manual = [f for f in everything if f["level"] == "manual" and use(f)]
    reasons = collections.Counter(_reason(f, everything) for f in manual)
    for reason, count in reasons.most_common(10):
        print(f"{count:>5}  {reason}")
    print(f"\n{len(unnamed)} lines with a name of the old APIs and no finding")
    for line in unnamed:
        print(f"  {line}")


def scan(folder: Path) -> list[Finding]:
    """All findings of a folder, also those of sites that are right as they stand."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "to_fsdp2.migrate", "scan", ".", "--all", "--format", "json", "-o", file.name]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        findings = json.loads(Path(file.name).read_text())["findings"]
    return [{**finding, "tree": folder.name} for finding in findings]


def use(finding: Finding) -> str:
    """Which of the common uses a finding is about, empty if it is none of them."""
    for name, rule, symbol in COMMON:
        if re.fullmatch(rule, finding["rule"]) and re.match(symbol, finding["symbol"]):
            return name
    return ""


def lines_without_finding(folder: Path, findings: list[Finding]) -> list[str]:
    """Code lines (comments and strings aside) that use a name of the old APIs, where no finding is."""
    covered = {(f["file"], line) for f in findings for line in range(f["line"], f["end_line"] + 1)}
    found: list[str] = []
    for path in sorted(folder.rglob("*.py")):
        label = path.relative_to(folder).as_posix()
        text = path.read_text(encoding="utf-8", errors="replace")
        if not (CLASSES.search(text) or MEMBERS.search(text)):
            continue
        lines = text.splitlines()
        named = sorted(set(_lines_of_names(text)))
        found += [f"{folder.name}: {label}:{n}: {lines[n - 1].strip()}" for n in named if (label, n) not in covered]
    return found


def _lines_of_names(text: str) -> Iterator[int]:
    """Lines of class names, wherever they stand, and of method names where they are read off something."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name) | ast.alias(name=name) if CLASSES.fullmatch(name):
                yield node.lineno
            case ast.Attribute(attr=name) if CLASSES.fullmatch(name) or MEMBERS.fullmatch(name):
                yield node.end_lineno or node.lineno
            case _:
                pass


def _line(name: str, findings: list[Finding]) -> None:
    levels = collections.Counter(f["level"] for f in findings if use(f))
    safe, review, manual = levels["safe"], levels["review"], levels["manual"]
    common = safe + review + manual
    rewritten, surely = (100 * (safe + review) / common, 100 * safe / common) if common else (100, 100)
    print(f"{name:<20}{len(findings):>9}{common:>8}{safe:>6}{review:>8}{manual:>8}{rewritten:>11.0f} %{surely:>5.0f} %")


def _reason(finding: Finding, findings: list[Finding]) -> str:
    """Why a site stays: a blocked one counts for what blocks it."""
    holder = finding
    if finding["blocked_by"]:
        file, _, line = finding["blocked_by"].rpartition(":")
        here = [f for f in findings if (f["tree"], f["file"], f["line"]) == (finding["tree"], file, int(line))]
        holder = next((f for f in here if not f["blocked_by"]), finding)
    return f"{holder['rule']} {holder['message']}"


if __name__ == "__main__":
    main(sys.argv[1:])
