"""The document that programs read, and the text that people read."""

from __future__ import annotations

import io
import json
from importlib.resources import files

import jsonschema
import pytest
from rich.console import Console
from to_fsdp2.equivalence.terminal import Progress, print_verdict, ranges
from to_fsdp2.equivalence.verdict import CHECKS, CheckResult, Judgement, NotExecuted, Run, Series, Verdict


def verdict(judgement: Judgement = "different") -> Verdict:
    checks = [CheckResult(name, "pass", "fine") for name in CHECKS]
    checks[1] = CheckResult("loss", "fail", "at step 1 [rank] 0", 1, None, float("inf"), ["data"])
    runs = {"old": Run("old", "HEAD", "/old", ["python"], 2, failure="it broke", log="[bold]no markup[/x]")}
    series = Series(losses={"old": [1.0, float("nan")]})
    return Verdict(judgement, "loss", "exact", "cpu", checks, runs, [NotExecuted("a.py", [1, 2, 3, 7])], ["a note"], series)


SCHEMA = json.loads(files("to_fsdp2.equivalence").joinpath("schemas/verdict.json").read_text())


def test_the_document_is_json_without_nan():
    document = json.loads(json.dumps(verdict().to_json(), allow_nan=False))
    jsonschema.validate(document, SCHEMA)
    assert (document["tool"], document["schema"], document["kind"]) == ("to-fsdp2", 2, "verdict")
    assert [check["name"] for check in document["checks"]] == list(CHECKS)
    assert document["checks"][1] == {
        "name": "loss", "outcome": "fail", "reason": "at step 1 [rank] 0", "step": 1, "tensor": None,
        "difference": None, "causes": ["data"], "places": [],
    }  # fmt: skip
    assert document["not_executed"] == [{"file": "a.py", "lines": [1, 2, 3, 7]}]
    assert document["series"]["losses"]["old"] == [1.0, None]


@pytest.mark.parametrize(("judgement", "code"), [("equivalent", 0), ("different", 1), ("not judged", 2)])
def test_exit_codes(judgement, code: int):
    assert verdict(judgement).exit_code == code


def test_the_text_says_it_all_and_takes_nothing_for_markup():
    stream = io.StringIO()
    print_verdict(verdict(), Console(file=stream, width=40))
    text = stream.getvalue()
    assert "at step 1 [rank] 0" in text
    assert "likely: data" in text
    assert "not executed: a.py: 1-3, 7" in text
    assert "[bold]no markup[/x]" in text
    assert text.rstrip().endswith("different: loss")


def test_progress_in_a_log_is_one_line_at_the_start_and_one_at_the_end():
    stream = io.StringIO()
    progress = Progress(stream)
    progress.start("old run")
    progress.step(3)
    progress.end("4 steps")
    assert stream.getvalue().splitlines()[0] == "old run: started"
    assert stream.getvalue().splitlines()[1].startswith("old run: 4 steps (")
    assert len(stream.getvalue().splitlines()) == 2


def test_ranges():
    assert ranges([]) == ""
    assert ranges([5]) == "5"
    assert ranges([1, 2, 4, 5, 6, 9]) == "1-2, 4-6, 9"
