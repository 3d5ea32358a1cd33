"""From two sides to a verdict: which runs it takes, which checks they allow, and what follows."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from . import checkpoints, expected, reference, reordering, resume
from .causes import add_causes
from .changes import find_changes
from .check_tripwires import check_tripwires
from .comparison import Comparison, compare
from .coverage import Coverage, check_coverage, dead_parameters
from .devices import choose_device
from .headline import sentence
from .launch import needs_of
from .options import VerifyOptions
from .record import Record
from .script_needs import Needs
from .series import build_series
from .session import Session
from .sides import Place, open_sides
from .terminal import Progress
from .tolerance import Tolerance
from .verdict import CHECKS, NOT_RUN, CheckResult, Judgement, Run, Side, Verdict
from .weighing import weigh

DECISIVE = ("loss", "gradients", "parameters")
"""Without one of these having been compared, nothing can be called equivalent."""
EMULATION_HINT = " (CUDA was emulated; --device cpu lets the script take its branch for the CPU, if it has one)"
SAME_CODE = (
    "the code of the two sides does not differ: there is nothing to compare (give both the same value to see whether "
    "a script agrees with itself)"
)
ENDING = ("stop", "ranks")
"""Tripwires that a run ends by."""
PERTURBED = {"TO_FSDP2_MODE": "exact", "TO_FSDP2_PERTURB": "1"}


def judge(session: Session, workspace: Path) -> Verdict | None:
    """Runs both sides (and the controls that mode and options ask for) and joins the evidence.

    A side whose run the session knows is not run. None on a machine that took part without holding rank 0: the one that
    does has the checkpoints, and judges.
    """
    options = session.options
    if options.old != options.new and not session.changes.files and not session.changes.other:
        return _not_judged(session, SAME_CODE)
    for side in ("old", "new"):
        if side in session.runs:
            continue
        if side == "old" and options.reference is not None:
            run, record = reference.load(session, options.reference)
        else:
            run, record = session.run(side, side)
            if record.starts and session.holds_rank_0(side):
                session.keep_checkpoints(side)
        if run.failure is not None:
            hint = EMULATION_HINT if session.device.name == "emulated cuda" else ""
            return _not_judged(session, f"the {side} run failed: {run.failure}{hint}{_why(side, record)}")
    return _compare(session, workspace) if session.holds_rank_0("new") else None


def open_session(options: VerifyOptions, places: tuple[Place, Place], workspace: Path, progress: Progress) -> Session:
    """What the runs of a verification have in common. Raises UsageError."""
    old, new = places
    needs: dict[Side, Needs] = {"old": needs_of(options.command, old), "new": needs_of(options.command, new)}
    keep = workspace / "kept" if options.report is None else options.report.resolve()
    return Session(
        options, {"old": old, "new": new}, needs, find_changes(old, new),
        choose_device(options, any(need.cuda for need in needs.values())), keep, workspace / "tmp", progress,
    )  # fmt: skip


def _compare(session: Session, workspace: Path) -> Verdict:
    old, new = session.runs["old"][1], session.runs["new"][1]
    coverage = check_coverage((session.places["old"], session.places["new"]), (old, new), session.changes)
    if coverage.blocking is not None:
        return _not_judged(session, coverage.blocking, coverage)
    tolerance = Tolerance()
    if session.device.mode == "noise":
        run, control = _elsewhere(session, workspace / "noise", ("old",), [], PERTURBED)["old"]
        if run.failure is not None:
            return _not_judged(session, f"the second run of the old side failed: {run.failure}", coverage)
        tolerance = Tolerance.from_control(old, control)
    comparison = compare(old, new, tolerance)
    comparison.results["coverage"] = coverage.result
    comparison.results["checkpoints"] = _checkpoints(session, tolerance)
    _explain(session, comparison, workspace)
    reordered = _reorder(session, comparison, workspace / "reordered")
    comparison.results["resume"] = _resume(session, comparison, reordered)
    resumed = [record for name, (_, record) in session.runs.items() if name.startswith("new-from-")]
    comparison.results["tripwires"] = check_tripwires(new, *resumed)
    weigh(comparison)
    add_causes(comparison)
    return _verdict(session, coverage, comparison)


def _verdict(session: Session, coverage: Coverage, comparison: Comparison) -> Verdict:
    results = [comparison.results[name] for name in CHECKS]
    failed = [result for result in results if result.outcome == "fail"]
    decided = [result for result in results if result.name in DECISIVE and result.outcome in ("pass", "expected")]
    judgement: Judgement = "equivalent"
    if failed:
        judgement = "different"
        reason = sentence(results)
    elif session.options.resume and comparison.results["resume"].outcome == "not compared":
        judgement = "not judged"
        reason = f"resume: {comparison.results['resume'].reason}"
    elif not decided:
        judgement = "not judged"
        reason = "neither losses nor gradients nor parameters could be compared"
    else:
        named = {kind: [r.name for r in results if r.outcome == kind] for kind in ("pass", "expected", "warn")}
        reason = f"{len(named['pass'])} checks pass"
        if named["expected"]:
            reason += f", {', '.join(named['expected'])} differ as intended"
        if named["warn"]:
            reason += f"; done in another way, with the same results: {', '.join(named['warn'])}"
    notes = [*session.device.notes, *([coverage.unproved] if coverage.unproved else [])]
    if session.options.old == session.options.new:
        notes.append("both sides are the same code: that it agrees with itself says nothing about a migration")
    if comparison.tolerance.exact and comparison.old.world & (comparison.old.world - 1):
        notes.append(f"{comparison.old.world} ranks: only powers of two divide without rounding, last bits may differ")
    return Verdict(
        judgement, reason, session.device.mode, session.device.name, results, _runs(session),
        coverage.not_executed, notes, build_series(comparison),
    )  # fmt: skip


def _why(side: Side, record: Record) -> str:
    """What the record of a failed run says about it, where it is what makes saving and clipping fail."""
    dead = dead_parameters(record) if side == "new" else None
    return "" if dead is None else f"; likely: {dead.causes[0]} ({dead.reason})"


def _not_judged(session: Session, reason: str, coverage: Coverage | None = None) -> Verdict:
    """The verdict where a comparison would say nothing. What both sides did record is compared all the same."""
    results = {name: CheckResult(name, "not compared", reason.partition(":")[0]) for name in CHECKS}
    records = [session.runs[side][1] for side in ("old", "new") if side in session.runs]
    verdict = Verdict("not judged", reason, session.device.mode, session.device.name, [], _runs(session))
    if len(records) == 2 and all(record.step_count for record in records) and coverage is None:
        comparison = compare(records[0], records[1], Tolerance())
        for name, result in comparison.results.items():
            if result.outcome == "fail" and session.device.mode == "exact":
                results[name] = result
        verdict.series = build_series(comparison)
    if coverage is not None:
        results["coverage"] = coverage.result
        verdict.not_executed = coverage.not_executed
    if len(records) == 2 and records[1].tripwires:
        results["tripwires"] = found = check_tripwires(records[1])
        # What some ranks alone call, or a check that raises, is why a run fails; how it fails is a consequence.
        ends = any(event["kind"] in ENDING for events in records[1].tripwires.values() for event in events)
        verdict.reason = f"{found.reason}; {reason}" if ends else f"{reason}; tripwire: {found.reason}"
    verdict.checks = list(results.values())
    verdict.notes = list(session.device.notes)
    return verdict


def _runs(session: Session) -> dict[str, Run]:
    runs = {name: run for name, (run, _) in session.runs.items()}
    for side, place in session.places.items():
        runs.setdefault(side, Run(side, place.origin, str(place.root), [], 0, failure=NOT_RUN))
    return runs


def _elsewhere(
    session: Session, directory: Path, sides: tuple[str, ...], extra: list[str], environment: dict[str, str]
) -> dict[str, tuple[Run, Record]]:
    """Further runs in fresh places, where nothing that the first runs wrote can be picked up."""
    with open_sides(session.options, directory) as (old, new):
        session.prepare(new)
        fresh = replace(session, places={"old": old, "new": new}, runs={})
        for side in sides:
            name = f"{directory.name}-{side}"
            if name in session.runs and environment.items() <= session.runs[name][0].environment.items():
                continue
            session.runs[name] = fresh.run("old" if side == "old" else "new", name, extra, environment)
            if session.runs[name][1].starts and session.holds_rank_0("old"):
                fresh.keep_checkpoints(name)
    return {side: session.runs[f"{directory.name}-{side}"] for side in sides}


def _checkpoints(session: Session, tolerance: Tolerance) -> CheckResult:
    old, new = session.kept_checkpoints("old"), session.kept_checkpoints("new")
    return checkpoints.joined(checkpoints.compare(old, new, tolerance.largest("parameter")))


def _resume(session: Session, comparison: Comparison, reordered: dict[str, str]) -> CheckResult:
    if not session.options.resume:
        return CheckResult("resume", "not compared", "not asked for (--resume)")
    resumption = resume.Resumption(
        tops={side: place.top for side, place in session.places.items()},
        kept={side: session.kept_checkpoints(side) for side in session.places},
        arguments=session.options.resume_arguments,
    )

    def start(side: Side, extra: list[str], name: str) -> tuple[Run, Record]:
        return session.run(side, name, extra, reordered if side == "old" else None)

    rounded = comparison.results["checkpoints"].outcome == "expected"
    return resume.check(resumption, start, _training_results, rounded)


def _training_results(old: Record, new: Record) -> list[CheckResult]:
    """What the main runs are compared by, in a pair of resumed runs."""
    comparison = compare(old, new, Tolerance())
    expected.apply(comparison, expected.explain(comparison))
    weigh(comparison)
    return list(comparison.results.values())


def _reorder(session: Session, comparison: Comparison, workspace: Path) -> dict[str, str]:
    """Where gradients differ by rounding, runs the old side once more, with sums in fully_shard's order.

    Returns what the old side has to be told to add up in that order; nothing where this is not what differs.
    """
    environment = reordering.environment(comparison)
    if environment is None:
        return {}
    run, record = _elsewhere(session, workspace, ("old",), [], environment)["old"]
    if run.failure is None:
        control = compare(record, session.runs["new"][1], comparison.tolerance)
        saved = session.kept_checkpoints(f"{workspace.name}-old"), session.kept_checkpoints("new")
        reordering.apply(comparison, control, checkpoints.joined(checkpoints.compare(*saved)))
    return environment if comparison.results["gradients"].outcome == "expected" else {}


def _explain(session: Session, comparison: Comparison, workspace: Path) -> None:
    """Marks intended differences as expected; with --control they must also vanish in the control runs."""
    explanations = expected.explain(comparison)
    extra = shlex.split(session.options.control)
    for explanation in [explanation for explanation in explanations if explanation.needs_control and extra]:
        runs = _elsewhere(session, workspace / "control", ("old", "new"), extra, {})
        problem = next((run.failure for run, _ in runs.values() if run.failure is not None), None)
        control = compare(runs["old"][1], runs["new"][1], comparison.tolerance)
        left = [r.name for r in control.results.values() if r.outcome == "fail" and r.name in explanation.checks]
        if problem is not None or left:
            why = f"a control run failed: {problem}" if problem else f"{', '.join(left)} differ there too"
            comparison.results["gradients"].reason += f" (not explained by the control runs: {why})"
            explanations.remove(explanation)
        else:
            explanations[explanations.index(explanation)] = explanation.confirmed(session.options.control)
    expected.apply(comparison, explanations)
