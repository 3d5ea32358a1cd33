"""Writes a verdict for machines and people: report.json, junit.xml and report.html.

The page needs no network and no other file: style, script and charts are in it. It works without the
script, too; the script sorts and filters the table and reads values off the charts.
"""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from .report_charts import charts, memory_bars, traffic_bars
from .verdict import CheckResult, TensorDifference, Verdict

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HEADLINES = {
    "equivalent": "Training is the same",
    "different": "Training differs",
    "not judged": "Not judged",
}


def write(verdict: Verdict, directory: Path) -> None:
    """Writes the three files into `directory`, which is made if need be."""
    directory.mkdir(parents=True, exist_ok=True)
    document = json.dumps(_finite(verdict.to_json()), indent=1, allow_nan=False)
    (directory / "report.json").write_text(document + "\n", encoding="utf-8")
    (directory / "junit.xml").write_text(junit(verdict), encoding="utf-8")
    (directory / "report.html").write_text(html(verdict), encoding="utf-8")


def junit(verdict: Verdict) -> str:
    """A test suite with one case for each check, and one for the runs themselves.

    A failed check is a failure, one that was not compared is skipped, one that differs as intended passes
    with the reason as its output. What could not be judged is an error of the case `runs`.
    """
    results = verdict.checks
    counted = {outcome: sum(result.outcome == outcome for result in results) for outcome in ("fail", "not compared")}
    seconds = sum(run.seconds for run in verdict.runs.values())
    suite = xml.Element(
        "testsuite",
        name="to-fsdp2 verify",
        tests=str(len(results) + 1),
        failures=str(counted["fail"]),
        errors=str(int(verdict.verdict == "not judged")),
        skipped=str(counted["not compared"]),
        time=f"{seconds:.3f}",
    )
    runs = xml.SubElement(suite, "testcase", classname="verify", name="runs", time=f"{seconds:.3f}")
    if verdict.verdict == "not judged":
        error = xml.SubElement(runs, "error", message=_printable(verdict.reason))
        error.text = _printable("\n\n".join(run.log for run in verdict.runs.values() if run.failure))
    for result in results:
        _case(suite, result)
    xml.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + xml.tostring(suite, encoding="unicode") + "\n"


def _case(suite: xml.Element, result: CheckResult) -> None:
    case = xml.SubElement(suite, "testcase", classname="verify", name=result.name, time="0")
    if result.outcome == "fail":
        failure = xml.SubElement(case, "failure", message=_printable(result.reason))
        failure.text = _printable("\n".join([_place(result), *result.places, *result.causes]).strip())
    elif result.outcome == "not compared":
        xml.SubElement(case, "skipped", message=_printable(result.reason))
    else:
        xml.SubElement(case, "system-out").text = _printable(f"{result.outcome}: {result.reason}")


def html(verdict: Verdict) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("to_fsdp2.equivalence", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        size=size,
        place=_place,
        largest=largest,
        seconds=_seconds,
        elements=math.prod,
        number=_number,
        ranges=ranges,
        printable=_printable,
    )
    series = verdict.series
    curves = charts(series)
    page = environment.get_template("report.html.j2")
    return page.render(
        verdict=verdict,
        headline=_HEADLINES[verdict.verdict],
        sides={side: run for side, run in verdict.runs.items() if side in ("old", "new")},
        first=first_difference(verdict),
        charts=curves,
        readings={
            chart.name: {"steps": chart.steps, "lines": [_finite(vars(line)) for line in chart.lines]}
            for chart in curves
        },
        traffic=traffic_bars(series.communication),
        memory=memory_bars(series.memory),
        parameters=sorted(series.parameters, key=lambda row: -largest(row)),
        differing=sum(largest(row) > 0 for row in series.parameters),
        counts=_counts(verdict),
    )


def first_difference(verdict: Verdict) -> CheckResult | None:
    """The failed check that the verdict's reason begins with, else the one that shows at the earliest step."""
    failed = [result for result in verdict.checks if result.outcome == "fail"]
    for result in failed:
        if verdict.reason.startswith(f"{result.name}:"):
            return result
    return min(failed, key=lambda result: math.inf if result.step is None else result.step, default=None)


def largest(row: TensorDifference) -> float:
    """The largest of a row's differences; infinity for NaN, which is no number to sort by."""
    values = [value for value in (row.gradient, row.parameter, row.optimizer) if value is not None]
    return max((math.inf if math.isnan(value) else value for value in values), default=0.0)


def size(difference: float | None) -> str:
    """A difference in words and figures: "equal" for 0, a dash where nothing was compared."""
    if difference is None:
        return "–"
    return "equal" if difference == 0 else f"{difference:.2g}"


def ranges(lines: list[int]) -> str:
    """[3, 4, 5, 9] → "3–5, 9"."""
    found: list[list[int]] = []
    for line in sorted(lines):
        if found and line == found[-1][1] + 1:
            found[-1][1] = line
        else:
            found.append([line, line])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in found)


def _number(value: float | None) -> str:
    """For the page's script to sort by: infinity for NaN, nothing where nothing was compared."""
    if value is None:
        return ""
    return "Infinity" if math.isnan(value) or math.isinf(value) else repr(value)


def _place(result: CheckResult) -> str:
    parts = [
        f"step {result.step}" if result.step is not None else "",
        result.tensor or "",
        f"difference {size(result.difference)}" if result.difference is not None else "",
    ]
    return " · ".join(part for part in parts if part)


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"


def _counts(verdict: Verdict) -> list[tuple[str, int]]:
    outcomes = ("pass", "expected", "warn", "fail", "not compared")
    counted = [(name, sum(check.outcome == name for check in verdict.checks)) for name in outcomes]
    return [(outcome, count) for outcome, count in counted if count]


def _finite(value: Any) -> Any:
    """NaN and infinities become null: JSON has no word for them, and parsers outside Python refuse
    Python's."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _printable(text: str) -> str:
    """Without colour codes and the other control characters, which XML does not allow and nobody can read."""
    text = _COLOUR.sub("", text)
    return "".join(c for c in text if c in "\t\n\r" or (ord(c) >= 0x20 and ord(c) not in (0xFFFE, 0xFFFF)))
