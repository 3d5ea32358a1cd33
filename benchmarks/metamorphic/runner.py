"""Makes variants, migrates them and judges what they do then."""

from __future__ import annotations

import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Literal, TypeVar

from .composition import Step, compose
from .launch import Outcome, Outcomes, Ranks
from .programs import Program, Run
from .project import Project
from .tool import Tool

Item = TypeVar("Item")
Made = TypeVar("Made")
Verdict = Literal["equal", "stopped", "different", "unmoved", "invalid"]


@dataclass(frozen=True)
class Task:
    """A variant to make: with `length` 0 the program as it is. The same task is the same variant everywhere."""

    number: int
    program: Program
    run: Run
    seed: str
    length: int


@dataclass
class Result:
    """What became of a variant.

    `manual` are the messages of the findings that ask for a person, `reason` says what a verdict other than equal rests on, and
    `blamed` is the step without which the variant would have been equal, where that was looked for.
    """

    number: int
    program: str
    run: str
    steps: list[Step]
    verdict: Verdict = "equal"
    reason: str = ""
    manual: list[str] = field(default_factory=list)
    blamed: str = ""


def tasks(programs: Sequence[Program], seed: int, count: int, longest: int) -> Iterator[Task]:
    """`count` variants, taking the programs in turn in a random order, each with one of its runs."""
    order: list[Program] = []
    for number in range(count):
        rng = Random(f"{seed} {number}")
        if not order:
            order = list(programs)
            rng.shuffle(order)
        program = order.pop()
        yield Task(number, program, rng.choice(program.runs), f"{seed} {number} steps", rng.randint(1, longest))


def unrefactored(wanted: Sequence[Task]) -> list[Task]:
    """The programs as they are, with the runs that the variants have."""
    found = {(task.program.name, task.run.name): Task(-1, task.program, task.run, "", 0) for task in wanted}
    return list(found.values())


class Runner:
    """Judges variants with a tool. `kinds` are the refactorings to draw from, `keep` a folder for what is not equal, if any."""

    def __init__(self, tool: Path, cache: Path, kinds: Sequence[str], keep: Path | None) -> None:
        self.tool, self.outcomes, self.kinds, self.keep = Tool(tool), Outcomes(cache), kinds, keep

    def close(self) -> None:
        """Ends what was started."""
        self.tool.close()

    def judge_all(self, wanted: Sequence[Task], jobs: int, done: Callable[[Result], None]) -> list[Result]:
        """The results in the order of the tasks; `done` is told each as soon as it is there."""

        def judge(ranks: Ranks, task: Task) -> Result:
            result = self.judge(ranks, task)
            done(result)
            return result

        return self._at_a_time(jobs, wanted, wanted, judge)

    def blame_all(self, blamed: Sequence[tuple[Task, Result]], jobs: int) -> None:
        """Notes the last refactoring of the shortest beginning of each variant that has the same verdict."""
        self._at_a_time(jobs, [task for task, _ in blamed], blamed, lambda ranks, pair: self._blame(ranks, *pair))

    def _blame(self, ranks: Ranks, task: Task, result: Result) -> None:
        for length in range(1, len(result.steps)):
            if self.judge(ranks, replace(task, length=length), keep=False).verdict == result.verdict:
                result.blamed = result.steps[length - 1].kind
                return
        result.blamed = result.steps[-1].kind

    def _at_a_time(
        self, jobs: int, wanted: Sequence[Task], items: Sequence[Item], work: Callable[[Ranks, Item], Made]
    ) -> list[Made]:
        """Does the work on all items, `jobs` at a time, each with a server of ranks that is ready for the wanted programs."""
        left: queue.SimpleQueue[tuple[int, Item]] = queue.SimpleQueue()
        for item in enumerate(items):
            left.put(item)
        results: dict[int, Made] = {}
        failures: list[BaseException] = []

        def take(ranks: Ranks) -> None:
            while not failures:
                try:
                    index, item = left.get_nowait()
                    results[index] = work(ranks, item)
                except queue.Empty:
                    return
                except BaseException as error:
                    failures.append(error)

        modules = ("transformers",) if any(_mentions(task.program, "transformers") for task in wanted) else ()
        servers = [Ranks(modules) for _ in range(min(jobs, len(items)))]
        threads = [threading.Thread(target=take, args=(ranks,)) for ranks in servers]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for ranks in servers:
                ranks.close()
        if failures:
            raise failures[0]
        return [results[index] for index in sorted(results)]

    def judge(self, ranks: Ranks, task: Task, keep: bool = True) -> Result:
        """Makes a variant, migrates it, runs it, and compares; what differs is asked whether it was the old program still."""
        with tempfile.TemporaryDirectory(prefix="metamorphic-") as scratch:
            result = self._judge(ranks, task, Path(scratch))
            if keep and self.keep and result.verdict != "equal":
                self._kept(task, result, Path(scratch))
        return result

    def _judge(self, ranks: Ranks, task: Task, work: Path) -> Result:
        program, run = task.program, task.run
        project = Project.read(program.old, frozenset(one.script for one in program.runs))
        variant, steps = compose(project, Random(task.seed), task.length, self.kinds)
        result = Result(task.number, program.name, run.name, steps)
        old = self.outcomes.of(ranks, run, program.old)
        source = work / "variant"
        shutil.copytree(program.old, source, ignore=shutil.ignore_patterns("__pycache__"))
        variant.write(source)
        migrated = work / "migrated"
        shutil.copytree(source, migrated)
        migration = self.tool.migrate(migrated, program.options, work / "tool")
        result.manual = migration.manual
        after = self.outcomes.of(ranks, run, migrated)
        result.reason = after.failure or _difference(program, run, old, after, exact=False)
        if result.reason and steps and (mistake := self._mistake(ranks, task, old, source)):
            result.verdict, result.reason = "invalid", mistake
        elif result.reason:
            result.verdict = "stopped" if migration.manual else "different"
            result.reason = f"{migration.failure} {result.reason}".strip()
        elif after.constructed - self.outcomes.of(ranks, run, program.by_hand).constructed:
            result.verdict, result.reason = "unmoved", f"{migration.failure} {', '.join(after.constructed)} is still built"
        return result

    def _mistake(self, ranks: Ranks, task: Task, old: Outcome, variant: Path) -> str:
        """How a variant that was not migrated differs from the program, or an empty text."""
        before = self.outcomes.of(ranks, task.run, variant)
        return before.failure or _difference(task.program, task.run, old, before, exact=True)

    def _kept(self, task: Task, result: Result, work: Path) -> None:
        assert self.keep
        folder = self.keep / f"{task.number:04}_{result.program}_{result.verdict}"
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("variant", "migrated", "tool"):
            if (work / name).exists():
                shutil.copytree(work / name, folder / name)
        steps = "\n".join(f"{step.kind} {step.path}: {step.near}" for step in result.steps)
        manual = "\n".join(f"manual: {message}" for message in result.manual)
        (folder / "result.txt").write_text(f"{result.program} {result.run}\n{steps}\n{manual}\n{result.reason}\n")


def _difference(program: Program, run: Run, old: Outcome, new: Outcome, exact: bool) -> str:
    try:
        return program.compare(run, old, new, exact)
    except Exception as error:  # a checkpoint that cannot be read is a difference, whatever the reader raises
        return f"{type(error).__name__}: {error}"


def _mentions(program: Program, word: str) -> bool:
    return any(word in path.read_text() for path in program.old.rglob("*.py"))
