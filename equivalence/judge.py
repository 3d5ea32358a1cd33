"""From two sides to a verdict: which runs it takes, which checks they allow, and what follows."""

from __future__ import annotations

import shlex
from pathlib import Path

from . import checkpoints, expected, resume
from .causes import add_causes
from .changes import find_changes
from .comparison import Comparison, compare
from .coverage import Coverage, check_coverage
from .devices import choose_device
from .launch import needs_of
from .options import VerifyOptions
from .record import Record
from .script_needs import Needs
from .series import build_series
from .session import Session
from .sides import Place, open_sides
from .terminal import Progress
from .tolerance import Tolerance
from .verdict import CHECKS, CheckResult, Judgement, Run, Side, Verdict

DECISIVE = ("loss", "gradients", "parameters")
"""Without one of these having been compared, nothing can be called equivalent."""
EMULATION_HINT = " (CUDA was emulated; --device cpu lets the script take its branch for the CPU, if it has one)"
PERTURBED = {"TO_FSDP2_MODE": "exact", "TO_FSDP2_PERTURB": "1"}


def judge(options: VerifyOptions, places: tuple[Place, Place], workspace: Path, progress: Progress) -> Verdict | None:
    """Runs both sides (and the controls that mode and options ask for) and joins the evidence.

    None on a machine that took part without holding rank 0: the one that does has the checkpoints, and judges.
    """
    old, new = places
    needs: dict[Side, Needs] = {"old": needs_of(options.command, old), "new": needs_of(options.command, new)}
    keep = workspace / "kept" if options.report is None else options.report.resolve()
    session = Session(
        options, {"old": old, "new": new}, needs, find_changes(old, new),
        choose_device(options, any(need.cuda for need in needs.values())), keep, workspace / "tmp", progress,
    )  # fmt: skip
    if not session.changes.files and not session.changes.other:
        return _not_judged(session, "the code of the two sides does not differ: there is nothing to compare")
    for side in ("old", "new"):
        run, record = session.run(side, side)
        if record.starts and session.holds_rank_0(side):
            session.keep_checkpoints(side)
        if run.failure is not None:
            hint = EMULATION_HINT if session.device.name == "emulated cuda" else ""
            return _not_judged(session, f"the {side} run failed: {run.failure}{hint}")
    return _compare(session, workspace) if session.holds_rank_0("new") else None


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
    comparison.results["resume"] = _resume(session)
    _explain(session, comparison, workspace)
    add_causes(comparison)
    return _verdict(session, coverage, comparison)


def _verdict(session: Session, coverage: Coverage, comparison: Comparison) -> Verdict:
    results = [comparison.results[name] for name in CHECKS]
    failed = [result for result in results if result.outcome == "fail"]
    decided = [result for result in results if result.name in DECISIVE and result.outcome in ("pass", "expected")]
    judgement: Judgement = "equivalent"
    if failed:
        judgement = "different"
        first = min(failed, key=lambda result: (-1 if result.step is None else result.step, _causal(result.name)))
        others = [result.name for result in failed if result is not first]
        reason = f"{first.name}: {first.reason}" + (f" (also: {', '.join(others)})" if others else "")
    elif not decided:
        judgement = "not judged"
        reason = "neither losses nor gradients nor parameters could be compared"
    else:
        expected_names = [result.name for result in results if result.outcome == "expected"]
        passed = sum(result.outcome == "pass" for result in results)
        reason = f"{passed} checks pass" + (
            f", {', '.join(expected_names)} differ as intended" if expected_names else ""
        )
    notes = list(session.device.notes)
    if comparison.tolerance.exact and comparison.old.world & (comparison.old.world - 1):
        notes.append(f"{comparison.old.world} ranks: only powers of two divide without rounding, last bits may differ")
    return Verdict(
        judgement, reason, session.device.mode, session.device.name, results, _runs(session),
        coverage.not_executed, notes, build_series(comparison),
    )  # fmt: skip


def _causal(name: str) -> int:
    """Among checks that fail at the same step, the one that explains the others comes first."""
    order = ("coverage", "hyperparameters", "scaler", "gradients", "clipping", "optimizer", "parameters", "loss")
    return order.index(name) if name in order else len(order)


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
    verdict.checks = list(results.values())
    verdict.notes = list(session.device.notes)
    return verdict


def _runs(session: Session) -> dict[str, Run]:
    runs = {name: run for name, (run, _) in session.runs.items()}
    for side, place in session.places.items():
        runs.setdefault(side, Run(side, place.origin, str(place.root), [], 0, failure="not run"))
    return runs


def _elsewhere(
    session: Session, directory: Path, sides: tuple[str, ...], extra: list[str], environment: dict[str, str]
) -> dict[str, tuple[Run, Record]]:
    """Further runs in fresh places, where nothing that the first runs wrote can be picked up."""
    with open_sides(session.options, directory) as (old, new):
        fresh = Session(
            session.options, {"old": old, "new": new}, session.needs, session.changes, session.device,
            session.keep, session.temporary, session.progress,
        )  # fmt: skip
        for side in sides:
            name = f"{directory.name}-{side}"
            session.runs[name] = fresh.run("old" if side == "old" else "new", name, extra, environment)
    return {side: session.runs[f"{directory.name}-{side}"] for side in sides}


def _checkpoints(session: Session, tolerance: Tolerance) -> CheckResult:
    old, new = session.kept_checkpoints("old"), session.kept_checkpoints("new")
    return checkpoints.joined(checkpoints.compare(old, new, tolerance.largest("parameter")))


def _resume(session: Session) -> CheckResult:
    if not session.options.resume:
        return CheckResult("resume", "not compared", "not asked for (--resume)")
    resumption = resume.Resumption(
        tops={side: place.top for side, place in session.places.items()},
        kept={side: session.kept_checkpoints(side) for side in session.places},
        arguments=session.options.resume_arguments,
    )
    return resume.check(resumption, session.run_again, _training_results)


def _training_results(old: Record, new: Record) -> list[CheckResult]:
    return list(compare(old, new, Tolerance()).results.values())


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
