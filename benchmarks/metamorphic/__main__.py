"""How many refactored programs train the same after their migration.

    python -m benchmarks.metamorphic [--variants 1000] [--seed 1] [--tool ENVIRONMENT/bin/to-fsdp2] [--cases FOLDER]…

Programs of the corpus, and of folders of cases (see `folder_cases.py`), are refactored at random, in ways that keep their
meaning. Each variant is migrated with `to-fsdp2 apply` and run: *equal* is what does the same as the program within the tolerance
of its case. What does not is *stopped* where the tool reported a manual finding, and *different* where it did not; but it is
*invalid*, a mistake of a refactoring, where the variant did not do the same as the program, bit by bit, before its migration.
*unmoved* does the same, but with the old wrappers. A variant is its seed and number: `--only 17` makes number 17 again, and
`--keep FOLDER` keeps what is not equal. Outcomes of runs that did not fail are kept in a cache, by what they depend on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from .folder_cases import folder_cases
from .kinds import KINDS
from .launch import ROOT
from .programs import corpus
from .report import as_json, as_text
from .runner import Result, Runner, tasks, unrefactored


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.metamorphic", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tool = Path(sys.executable).with_name("to-fsdp2")
    parser.add_argument("--tool", type=Path, default=tool, help="the command that migrates (default: this environment's)")
    parser.add_argument("--cases", type=Path, action="append", default=[], help="a folder of further programs; repeatable")
    parser.add_argument("--programs", nargs="+", metavar="NAME", help="only these programs")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS, metavar="KIND", help="only these refactorings")
    parser.add_argument("--variants", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=int, default=5, help="most refactorings in a variant")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="only the variants with these numbers")
    parser.add_argument("--blame", action="store_true", help="find the refactoring that makes the difference")
    parser.add_argument("--jobs", type=int, default=2, help="variants at a time, with two processes each")
    parser.add_argument("--keep", type=Path, help="a folder for the variants that are not equal")
    cache = ROOT / "build" / "metamorphic"
    parser.add_argument("--cache", type=Path, default=cache, help="where outcomes of runs are kept")
    parser.add_argument("--json", type=Path, help="a file for all results")
    options = parser.parse_args()

    programs = [*corpus(), *(program for folder in options.cases for program in folder_cases(folder))]
    if options.programs:
        programs = [program for program in programs if program.name in options.programs]
    count = max(options.only) + 1 if options.only else options.variants
    wanted = list(tasks(programs, options.seed, count, options.longest))
    wanted = [task for task in wanted if not options.only or task.number in options.only]
    runner = Runner(options.tool.absolute(), options.cache.absolute(), options.kinds, options.keep)
    begun = time.monotonic()
    originals = runner.judge_all(unrefactored(wanted), options.jobs, _progress)
    results = runner.judge_all(wanted, options.jobs, _progress)
    if options.blame:
        equal = {(one.program, one.run) for one in originals if one.verdict == "equal"}
        pairs = zip(wanted, results, strict=True)
        worse = [pair for pair in pairs if pair[1].verdict != "equal" and (pair[1].program, pair[1].run) in equal]
        runner.blame_all(worse, options.jobs)
    runner.close()
    settings = {
        "tool": str(options.tool), "seed": options.seed, "variants": len(results), "programs": len(programs),
        "longest": options.longest, "seconds": round(time.monotonic() - begun),
    }  # fmt: skip
    print(as_text(results, originals, settings), end="")
    if options.json:
        options.json.write_text(json.dumps(as_json(results, originals, settings), indent=1) + "\n")


def _progress(result: Result) -> None:
    print(f"{result.number:>5} {result.verdict:<10} {result.program} {result.run}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
