# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportIncompatibleMethodOverride=false
"""report.json, junit.xml and report.html: what they say, and what the page does in a real browser."""

import html.parser
import io
import json
import math
import shutil
import subprocess
import xml.etree.ElementTree as xml

import pytest
from rich.console import Console
from to_fsdp2.equivalence import report
from to_fsdp2.equivalence.report_charts import difference_chart, differences, in_bytes, line_chart, round_values
from to_fsdp2.equivalence.terminal import print_verdict
from to_fsdp2.equivalence.verdict import (
    CHECKS,
    CheckResult,
    NotExecuted,
    Run,
    Series,
    TensorDifference,
    Traffic,
    Verdict,
)

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def run(side, **more):
    return Run(side, "HEAD", "/r", ["torchrun", "train.py", "--name=<b>"], 2, 0, 3.0, 4, **more)


def verdict(judgement="different", **more):
    checks = {name: CheckResult(name, "pass", "equal, bit for bit") for name in CHECKS}
    if judgement == "different":
        checks["loss"] = CheckResult("loss", "fail", "the loss differs", 2, None, 3e-6)
        checks["parameters"] = CheckResult(
            "parameters", "fail", "2 parameters differ", 1, "a.weight", 2.5e-4, ["weight decay <lost>", "learning rate"]
        )
    checks["resume"] = CheckResult("resume", "not compared", "not asked for")
    checks["checkpoints"] = CheckResult("checkpoints", "expected", "keyed by names")
    series = Series(
        losses={"old": [4.0, 3.0, 2.0, math.nan], "new": [4.0, 3.0, 2.5, None]},
        gradient_norms={"old": [1.0, 1.0, 1.0, 1.0], "new": [1.0, 1.0, 1.0, 1.0]},
        parameters=[
            TensorDifference("layer.10.weight", [4, 8], 0.0, 2.5e-4, None, 1),
            TensorDifference("layer.9.weight", [4, 8], 0.0, 0.0, 0.0),
            TensorDifference("head.bias", [61], math.nan, 1e-3, 0.0, 0),
            TensorDifference("frozen", [], None, None, None),
        ],
        communication={
            "old": [Traffic("all_gather", "float32", 14, 2048)],
            "new": [Traffic("all_gather", "bfloat16", 14, 1024)],
        },
        memory={"old": [1 << 30, None], "new": [1 << 29, None]},
        step_seconds={"old": [1.0], "new": [2.0]},
    )
    fields = {
        "verdict": judgement,
        "reason": "parameters differ at step 1",
        "mode": "exact",
        "device": "cpu",
        "checks": list(checks.values()),
        "runs": {"old": run("old"), "new": run("new")},
        "not_executed": [NotExecuted("train.py", [3, 4, 5, 9])],
        "notes": ["Emulation proves what the wrappers do."],
        "series": series,
    }
    return Verdict(**{**fields, **more})


class Page(html.parser.HTMLParser):
    """Collects the table's rows with their attributes, addresses that the page would load, and its text."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.loaded, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "tr" and "data-name" in attributes:
            self.rows.append(attributes)
        self.loaded += [attributes[key] for key in ("src", "href") if key in attributes]

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def test_all_three_files_are_written(tmp_path):
    report.write(verdict(), tmp_path / "new" / "report")
    assert {path.name for path in (tmp_path / "new" / "report").iterdir()} == {
        "report.json",
        "junit.xml",
        "report.html",
    }


def test_json_is_the_contract_and_strict(tmp_path):
    report.write(verdict(), tmp_path)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    document = json.loads((tmp_path / "report.json").read_text(), parse_constant=refuse)
    assert (document["tool"], document["schema"], document["kind"]) == ("to-fsdp2", 2, "verdict")
    assert [check["name"] for check in document["checks"]] == list(CHECKS)
    assert document["checks"][4]["causes"] == ["weight decay <lost>", "learning rate"]
    assert document["series"]["losses"]["old"] == [4.0, 3.0, 2.0, None]
    assert document["not_executed"] == [{"file": "train.py", "lines": [3, 4, 5, 9]}]


def test_junit_counts_and_details():
    suite = xml.fromstring(report.junit(verdict()))
    assert suite.attrib["tests"] == str(len(CHECKS) + 1) == str(len(suite.findall("testcase")))
    assert (suite.attrib["failures"], suite.attrib["skipped"], suite.attrib["errors"]) == ("2", "1", "0")
    failure = suite.find("testcase[@name='parameters']/failure")
    assert failure.attrib["message"] == "2 parameters differ"
    assert "step 1 · a.weight · difference 0.00025" in failure.text
    assert "keyed by names" in suite.find("testcase[@name='checkpoints']/system-out").text


def test_every_report_lists_all_tripwires():
    places = ["train.py:7 reads a shard (FS701)", "train.py:9 assigns .data (FS702)"]
    found = CheckResult("tripwires", "fail", f"{places[0]} (and 1 more places)", 1, places=places)
    judged = verdict()
    judged.checks = [found if check.name == "tripwires" else check for check in judged.checks]
    stream = io.StringIO()
    print_verdict(judged, Console(file=stream, width=200))
    for text in (report.html(judged), report.junit(judged), json.dumps(judged.to_json()), stream.getvalue()):
        assert all(place in text for place in places)


def test_junit_of_a_failed_run_is_an_error_with_its_log():
    failed = run("new", failure="rank 1 ended with exit code 1", log="\x1b[31mRuntimeError\x1b[0m: mixed \x00")
    suite = xml.fromstring(report.junit(verdict("not judged", reason="the new side failed", runs={"new": failed})))
    error = suite.find("testcase[@name='runs']/error")
    assert suite.attrib["errors"] == "1"
    assert error.attrib["message"] == "the new side failed"
    assert error.text == "RuntimeError: mixed "


@pytest.mark.parametrize(
    ("judgement", "headline"),
    [("equivalent", "Training is the same"), ("different", "Training differs"), ("not judged", "Not judged")],
)
def test_the_verdict_is_on_top(judgement, headline):
    text = Page(report.html(verdict(judgement))).text
    assert text.index(headline) < text.index("Checks")


def test_the_page_says_everything_the_verdict_does():
    page = Page(report.html(verdict()))
    for expected in [
        "First difference: parameters", "step 1 · a.weight · difference 0.00025", "weight decay <lost>",
        "keyed by names", "train.py 3–5, 9", "Emulation proves what the wrappers do.", "--name=<b>", "2 of 4 differ",
        "all-gather bfloat16", "1 GiB", "old is not finite at 1 step(s), first at 3",
    ]:  # fmt: skip
        assert expected in page.text, expected
    assert "rank 1" not in page.text


def test_the_page_loads_nothing():
    text = report.html(verdict())
    assert Page(text).loaded == []
    assert "http://" not in text and "https://" not in text and "@import" not in text and "url(" not in text


def test_a_failed_side_is_shown_before_the_checks():
    failed = run("new", failure="rank 1 ended with exit code 1", log="Traceback")
    text = Page(report.html(verdict("not judged", runs={"old": run("old"), "new": failed}))).text
    assert text.index("The new side failed") < text.index("Traceback") < text.index("Checks")


def test_a_verdict_without_figures_still_makes_a_page():
    text = Page(report.html(verdict("not judged", series=Series(), not_executed=[], notes=[]))).text
    assert "Curves" not in text and "Parameters" not in text
    assert "Runs" in text


def test_without_the_script_rows_are_sorted_by_difference():
    rows = Page(report.html(verdict())).rows
    assert [row["data-name"] for row in rows] == ["head.bias", "layer.10.weight", "layer.9.weight", "frozen"]


def test_curves_leave_gaps_and_mark_lone_points():
    chart = line_chart("x", "X", {"old": [1.0, None, 2.0, 3.0], "new": [math.inf, 1.0]}, {"old": "old", "new": "new"})
    assert chart is not None
    old, new = chart.lines
    assert old.path.count("M") == 2 and old.path.count("L") == 1 and old.path.count("h0.1") == 1
    assert new.path.count("M") == 1
    assert chart.note == "new is not finite at 1 step(s), first at 0"
    assert line_chart("x", "X", {"old": [None]}, {"old": "old"}) is None


def test_equal_values_have_their_own_line_on_the_logarithmic_scale():
    chart = difference_chart("d", "D", {"loss": ("loss", [0.0, 1e-6, 1e-3])})
    assert chart is not None
    heights = {tick.label: tick.place for tick in chart.vertical}
    assert heights["equal"] > heights["1e-6"] > heights["1e-4"]
    assert f"M0.0 {10 * heights['equal']:.1f}" in chart.lines[0].path


def test_differences_are_relative_and_symmetric():
    assert differences([2.0, 0.0, None, math.nan], [1.0, 0.0, 1.0, 1.0]) == [0.5, 0.0, None, None]
    assert differences([1.0], [2.0]) == differences([2.0], [1.0])


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (1.13, 4.31), (-3e-9, 5e-9), (99990.0, 100010.0)])
def test_ticks_are_few_round_and_inside(low, high):
    ticks = round_values(low, high)
    assert 2 <= len(ticks) <= 6
    assert all(low <= tick <= high + 1e-12 for tick in ticks)


def test_bytes_in_words():
    assert [in_bytes(n) for n in (None, 4, 1536, 1 << 30, 5 << 40)] == ["none", "4 B", "1.5 KiB", "1 GiB", "5 TiB"]


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    """Opens the page in headless Chromium at a fragment; returns the page as its script left it."""
    browser = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if browser is None:
        pytest.skip("no Chromium found (looked for " + ", ".join(BROWSERS) + ")")
    directory = tmp_path_factory.mktemp("report")
    report.write(verdict(), directory)

    def browse(fragment="", width=1280):
        profile = tmp_path_factory.mktemp("profile")
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-sync", "--disable-background-networking", "--disable-component-update",
            f"--user-data-dir={profile}", f"--window-size={width},1000", "--dump-dom", f"file://{directory}/report.html{fragment}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return Page(done.stdout)

    return browse


def shown(page):
    return [row["data-name"] for row in page.rows if "hidden" not in row]


@pytest.mark.parametrize(
    ("fragment", "names"),
    [
        ("", ["head.bias", "layer.10.weight", "layer.9.weight", "frozen"]),
        ("#sort=name", ["frozen", "head.bias", "layer.9.weight", "layer.10.weight"]),
        ("#sort=name&order=descending", ["layer.10.weight", "layer.9.weight", "head.bias", "frozen"]),
        ("#sort=elements&order=ascending", ["frozen", "layer.10.weight", "layer.9.weight", "head.bias"]),
        ("#sort=step", ["head.bias", "layer.10.weight", "layer.9.weight", "frozen"]),
        ("#filter=LAYER+9", ["layer.9.weight"]),
        ("#filter=weight&different=1", ["layer.10.weight"]),
        ("#filter=nothing", []),
    ],
)
def test_the_table_sorts_and_filters_in_a_browser(browse, fragment, names):
    page = browse(fragment)
    assert shown(page) == names
    assert f"{len(names)} of 4 shown" in page.text
