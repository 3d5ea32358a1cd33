"""The figures of a measurement, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, get_args

from .kinds import KINDS
from .runner import Result, Verdict

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


def as_json(results: Sequence[Result], originals: Sequence[Result], settings: dict[str, Any]) -> dict[str, Any]:
    """Everything: the settings, the counts, and each result."""
    return {
        "settings": settings,
        "variants": _counts(results),
        "of programs that migrate equal unrefactored": _counts(_of_equal(results, originals)),
        "unrefactored": _counts(originals),
        "refactorings": {kind: _counts(_with(results, kind)) for kind in KINDS},
        "results": [asdict(result) for result in results],
        "unrefactored results": [asdict(result) for result in originals],
    }


def _counts(results: Sequence[Result]) -> dict[str, int]:
    verdicts = Counter(result.verdict for result in results)
    manual = sum(bool(result.manual) for result in results)
    passed = sum(bool(result.manual) and result.verdict in ("equal", "unmoved") for result in results)
    counted = {verdict: verdicts[verdict] for verdict in VERDICTS}
    return {"all": len(results), **counted, "with manual findings": manual, "with manual findings, and passed": passed}


def _of_equal(results: Sequence[Result], originals: Sequence[Result]) -> list[Result]:
    equal = {(one.program, one.run) for one in originals if one.verdict == "equal"}
    return [result for result in results if (result.program, result.run) in equal]


def _with(results: Sequence[Result], kind: str) -> list[Result]:
    return [result for result in results if any(step.kind == kind for step in result.steps)]


def as_text(results: Sequence[Result], originals: Sequence[Result], settings: dict[str, Any]) -> str:
    """Tables for people, and a line for each variant that is not equal."""
    return "\n".join(_lines(results, originals, settings)) + "\n"


def _lines(results: Sequence[Result], originals: Sequence[Result], settings: dict[str, Any]) -> Iterator[str]:
    yield ", ".join(f"{name} {value}" for name, value in settings.items())
    yield ""
    yield f"{'':46}{'all':>6}" + "".join(f"{verdict:>11}" for verdict in VERDICTS) + f"{'manual':>9}{'passed':>8}"
    equal = _of_equal(results, originals)
    yield _row("variants", results)
    yield _row("of programs that migrate equal unrefactored", equal)
    yield _row("unrefactored", originals)
    yield ""
    yield "manual: variants with findings that ask for a person; passed: those of them that are equal or unmoved."
    yield ""
    yield "The same by refactoring, of the programs that migrate equal unrefactored, with how often it alone made the difference:"
    yield ""
    blamed = Counter(result.blamed for result in results)
    for kind in KINDS:
        if some := _with(equal, kind):
            yield _row(kind, some) + (f"{blamed[kind]:>8} blamed" if blamed[kind] else "")
    for verdict in VERDICTS[1:]:
        some = [result for result in (*originals, *results) if result.verdict == verdict]
        if some:
            yield f"\n{verdict}:"
            yield from (_line(result) for result in some)


def _row(name: str, results: Sequence[Result]) -> str:
    counts = _counts(results)
    cells = "".join(f"{counts[verdict]:>6}{counts[verdict] / max(1, len(results)):>5.0%}" for verdict in VERDICTS)
    manual = f"{counts['with manual findings']:>9}{counts['with manual findings, and passed']:>8}"
    return f"{name:<46}{len(results):>6}{cells}{manual}"


def _line(result: Result) -> str:
    number = f"{result.number:>5}" if result.number >= 0 else "   as is"
    last = next((line for line in reversed(result.reason.splitlines()) if line.strip()), "")
    reason = result.reason.splitlines()[0] if "\n" not in result.reason else f"{result.reason.splitlines()[0]} … {last.strip()}"
    kinds = " ".join(f"[{step.kind}]" if step.kind == result.blamed else step.kind for step in result.steps)
    return f"{number} {result.program} {result.run}: {kinds}: {reason[:300]}"
