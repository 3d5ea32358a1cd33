"""The formats of reports."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
from report_schema import SCHEMA
from rich.console import Console
from to_fsdp2.migrate import report_github, report_html, report_json, report_markdown, report_sarif, report_text
from to_fsdp2.migrate.__main__ import run
from to_fsdp2.migrate.report import Report
from to_fsdp2.transforms.findings import FileError, Finding, Level, Step
from to_fsdp2.transforms.rule import Outcome, Rule, all_rules

Command = Callable[..., tuple[int, bytes, str]]

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((path for path in map(shutil.which, BROWSERS) if path), None)
RULE = Rule("FS101", "Wrap", "because", (), lambda site, migration: Outcome(""))
OTHER = Rule("FS102", "Unwrap", "because", (), lambda site, migration: Outcome(""))


def finding(level: Level, line: int, **more: object) -> Finding:
    values: dict = {"message": "uses [bold]list[int][/bold] | `x`", "programs": ("train.py",), **more}
    return Finding(RULE.id, level, "pkg/a b.py", line, 5, line, 9, "torch.X", **values)


@pytest.fixture
def report() -> Report:
    chain = (Step("pkg/wrap.py", 9, "model = FSDP(net)"), Step("main.py", 10, "train(model)"))
    return Report(
        target_torch="2.6",
        seen=5,
        parsed=4,
        findings=[
            finding(Level.SAFE, 1, provenance=chain),
            finding(Level.REVIEW, 2, why="rounds differently", provenance=chain),
            finding(Level.MANUAL, 3, advice="write <b>this</b>", why="it hangs", programs=("sample.py", "train.py")),
            finding(Level.MANUAL, 4, advice="write <b>this</b>", suppressed=True),
            finding(Level.OK, 5),
        ],
        errors=[FileError("bad.py", 3, "invalid syntax"), FileError("gone.py", None, "cannot be read")],
        patches=[("pkg/a b.py", b"--- a\n+++ b\n@@ -1 +1 @@\n-x[0] = '```'\n+<script>\xff\n")],
    )


def as_text(report: Report, **options: object) -> str:
    console = Console(width=80, **options)  # pyright: ignore[reportArgumentType]
    with console.capture() as capture:
        report_text.render(report, console)
    return capture.get()


def test_json_follows_the_contract(report: Report) -> None:
    document = json.loads(report_json.render(report))
    jsonschema.validate(document, SCHEMA)
    assert document["programs"] == [
        {"entry": "sample.py", "files": ["pkg/a b.py"], "safe": 0, "review": 0, "manual": 1},
        {"entry": "train.py", "files": ["pkg/a b.py"], "safe": 1, "review": 1, "manual": 1},
    ]
    assert document["files"] == {"seen": 5, "parsed": 4, "changed": 1, "failed": 2}
    assert [entry["level"] for entry in document["findings"]] == ["safe", "review", "manual", "manual"]
    assert len({entry["id"] for entry in document["findings"]}) == 4
    report.show_ok = True
    assert json.loads(report_json.render(report))["findings"][-1]["level"] == "ok"


def test_json_of_the_commands(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("model = FSDP(net)  # manual\n")
    (tmp_path / "b.py").write_text("FSDP(\n")
    for name in ("scan", "diff", "check", "apply"):
        document = json.loads(command(name, "--format", "json")[1])
        jsonschema.validate(document, SCHEMA)
        assert len(document["findings"]) == len(document["errors"]) == 1


def test_summary(report: Report) -> None:
    assert report.summary == "5 files, 1 to change, 1 safe, 1 review, 1 manual, 2 failed, 1 suppressed"


def test_text_says_what_changes_and_what_needs_somebody(report: Report) -> None:
    lines = [line for line in as_text(report).splitlines() if line]
    assert lines == [
        "train.py: 1 file to change, +1 -1 lines; 1 open stop, 1 to review",
        f"  pkg/a b.py:3:5 manual {RULE.id} uses [bold]list[int][/bold] | `x`",
        "      it hangs",
        "      instead: write <b>this</b>",
        f"      not so? say it on that line: # to-fsdp2: ignore[{RULE.id}] reason",
        f"  pkg/a b.py:2:5 review {RULE.id} uses [bold]list[int][/bold] | `x`",
        "      because pkg/wrap.py:9 model = FSDP(net) → main.py:10 train(model)",
        "  1 site rewritten that needs nobody (--all)",
        "sample.py: 1 file to change, +1 -1 lines; 1 open stop, 0 to review",
        "  1 finding told above",
        "Could not be processed",
        "  bad.py:3  invalid syntax",
        "  gone.py  cannot be read",
        "to-fsdp2 rules ID tells more about a rule, with examples.",
    ]


def test_text_shows_the_rest_when_asked_to(report: Report) -> None:
    def levels() -> list[str]:
        found = re.findall(r"^  pkg/a b\.py:\d:5 (\w+) .*?( \(suppressed\))?$", as_text(report), re.MULTILINE)
        return [level + suppressed for level, suppressed in found]

    assert levels() == ["manual", "review"]
    report.show_safe = True
    assert levels() == ["manual", "review", "safe"]
    report.show_ok = True
    assert levels() == ["manual", "review", "safe", "ok", "manual (suppressed)"]


def test_text_names_programs_that_are_left_alone(report: Report) -> None:
    report.left_alone = {"train.py": "there are findings above the level asked for"}
    assert "train.py: left alone: there are findings above the level asked for; 1 open stop" in as_text(report)
    assert "left alone" in report_markdown.render(report)


def test_text_shows_programs_with_the_same_findings_once(report: Report) -> None:
    report.findings = [finding(Level.REVIEW, 1, programs=("a.py", "b.py", "c.py", "d.py", "e.py"))]
    text = as_text(report)
    assert "a.py, b.py, c.py and 2 more: 1 file to change" in text
    assert text.count(" review ") == 1


def test_what_was_written_is_said_in_the_past(report: Report) -> None:
    report.written = True
    assert "1 file changed, +1 -1 lines" in as_text(report)
    assert "5 files, 1 changed, " in report.summary


def test_lines_are_never_broken(report: Report) -> None:
    report.findings = [finding(Level.REVIEW, 1, message="long " * 100)]
    assert f"{'long ' * 100}".rstrip() in as_text(report)


def test_colours_only_on_a_terminal_that_wants_them(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" not in as_text(report)
    assert "\x1b[3" in as_text(report, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[\d;]*3\d", as_text(report, force_terminal=True))


def test_piped_commands_are_plain(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("model = FSDP(net)\n")
    for arguments in (["scan"], ["diff"], ["rules"], ["scan", "-o", "report.txt"]):
        _, out, err = command(*arguments)
        assert b"\x1b" not in out
        assert "\x1b" not in err
    assert "\x1b" not in (tmp_path / "report.txt").read_text()


def test_sarif(report: Report) -> None:
    document = json.loads(report_sarif.render(report, [RULE, OTHER]))
    assert document["version"] == "2.1.0"
    [run] = document["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "to-fsdp2"
    assert [entry["id"] for entry in driver["rules"]] == [RULE.id]
    assert run["columnKind"] == "unicodeCodePoints"
    results = run["results"]
    assert [result["level"] for result in results] == ["note", "warning", "error", "error"]
    for result in results:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        [location] = result["locations"]
        physical = location["physicalLocation"]
        assert physical["artifactLocation"]["uri"] == "pkg/a%20b.py"
        assert physical["region"]["endColumn"] > physical["region"]["startColumn"] >= 1
        assert result["message"]["text"]
    assert results[2]["properties"] == {"symbol": "torch.X", "form": "note", "programs": ["sample.py", "train.py"]}
    assert results[3]["suppressions"] == [{"kind": "inSource"}]
    flow = results[0]["codeFlows"][0]["threadFlows"][0]["locations"]
    assert [step["location"]["physicalLocation"]["region"]["startLine"] for step in flow] == [9, 10]
    notifications = run["invocations"][0]["toolExecutionNotifications"]
    assert [entry["message"]["text"] for entry in notifications] == ["invalid syntax", "cannot be read"]
    assert "region" not in notifications[1]["locations"][0]["physicalLocation"]


def test_sarif_survives_moved_lines_and_brings_help_and_fixes(command: Command, tmp_path: Path) -> None:
    def results() -> list[dict]:
        [run] = json.loads(command("scan", "--format", "sarif", "--all")[1])["runs"]
        assert all(rule["helpUri"].startswith("https://") for rule in run["tool"]["driver"]["rules"])
        assert all("```python" in rule["help"]["markdown"] for rule in run["tool"]["driver"]["rules"])
        return run["results"]

    text = "import torch\n\nmodel = FSDP(net)\nother = FSDP(net)  # review\nmodel = FSDP(net)\n"
    (tmp_path / "a.py").write_text(text)
    before = results()
    names = [result["partialFingerprints"]["site/v2"] for result in before]
    assert len(set(names)) == 3
    for result in before:
        line = result["locations"][0]["physicalLocation"]["region"]["startLine"]
        [fix] = result["fixes"]
        [change] = fix["artifactChanges"]
        lines = text.splitlines(keepends=True)
        for part in reversed(change["replacements"]):
            region = part["deletedRegion"]
            assert region["startLine"] <= line < region["endLine"]
            lines[region["startLine"] - 1 : region["endLine"] - 1] = [part["insertedContent"]["text"]]
        assert "FSDP(" not in "".join(lines)
    (tmp_path / "a.py").write_text("# moved\n# down\n" + text)
    assert [result["partialFingerprints"]["site/v2"] for result in results()] == names


def test_annotations_of_github(report: Report) -> None:
    report.findings[1] = dataclasses.replace(report.findings[1], message="100%: a,b", end_line=4)
    lines = report_github.render(report).splitlines()
    assert lines == [
        "::error file=bad.py,line=3,title=could not be processed::invalid syntax",
        "::error file=gone.py,title=could not be processed::cannot be read",
        "::error file=pkg/a b.py,line=3,endLine=3,col=5,endColumn=9,title=FS101 FullyShardedDataParallel"
        "::uses [bold]list[int][/bold] | `x`%0Awrite <b>this</b>",
        "::warning file=pkg/a b.py,line=2,endLine=4,title=FS101 FullyShardedDataParallel::100%25: a,b",
        "::notice file=pkg/a b.py,line=1,endLine=1,col=5,endColumn=9,title=FS101 FullyShardedDataParallel"
        "::uses [bold]list[int][/bold] | `x`",
    ]


def test_annotations_hold_no_commands_of_the_repository(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a\n::set-env name=X::y,b.py").write_text("FSDP(\n")
    (tmp_path / "::error::c.py").write_text("model = FSDP(net)\n")
    code, out, _ = command("check", "--format", "github")
    assert code == 3
    assert all(re.match(rb"::(error|notice) file=[^:,]*,", line) for line in out.splitlines())
    assert len(out.splitlines()) == 2


def test_markdown_shows_code_as_it_is(report: Report) -> None:
    text = report_markdown.render(report)
    rows = [line for line in text.splitlines() if line.startswith("| 1 ")]
    assert len(rows) == 1
    assert r"uses \[bold\]list\[int\]\[/bold\] \| \`x\`" in rows[0]
    assert "`pkg/wrap.py:9` → `main.py:10`" in rows[0]
    assert "write &#60;b&#62;this" in text
    assert "````diff\n" in text
    assert text.count("````") == 2
    assert "5 files, 1 to change" in text
    assert "| `train.py` | 1 | 1 | 1 | 1 |  |" in text


class Page(HTMLParser):
    """Collects tags and text, and whether what is opened is closed."""

    alone = ("meta", "input")

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.alone:
            self.open.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_html_is_one_whole_page(report: Report) -> None:
    html = report_html.render(report, [RULE, OTHER])
    page = Page()
    page.feed(html)
    page.close()
    assert page.open == []
    assert set(page.links) <= {f"#{name}" for name in page.ids}
    assert len(set(page.ids)) == len(page.ids)
    text = " ".join("".join(page.text).split())
    assert "uses [bold]list[int][/bold] | `x`" in text
    assert "write <b>this</b>" in text
    assert "<script>\N{REPLACEMENT CHARACTER}" in text
    assert html.count("<script") == 1
    assert "sample.py" in text
    assert "pkg/wrap.py:9 model = FSDP(net) main.py:10 train(model)" in text
    assert "gone.py" in text


@pytest.fixture
def page_of_a_migration(real: Callable[..., tuple[int, str, str]], tmp_path: Path) -> Path:
    code = "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\n"
    code += "\ndef train(net):\n    model = DDP(net)\n"
    code += "    with model.no_sync():\n        model(torch.ones(4, 4)).sum().backward()\n"
    code += f"    print({'model.module.weight, ' * 40})\n    print(model.reducer)\n"
    folder = "a_folder_with_quite_a_long_name/" * 3
    for number in range(8):
        (tmp_path / folder / f"n{number}").mkdir(parents=True)
        (tmp_path / folder / f"n{number}" / "train_a_model_with_a_long_name.py").write_text(code)
    real("scan", "--all", "--format", "html", "-o", "report.html")
    return tmp_path / "report.html"


def test_html_shows_each_change_with_its_rule_and_reason(page_of_a_migration: Path) -> None:
    html = page_of_a_migration.read_text()
    page = Page()
    page.feed(html)
    assert page.open == []
    targets = {link.removeprefix("#") for link in page.links}
    assert targets <= set(page.ids)
    assert any(target.startswith("file-") for target in targets)
    changes = re.findall(r'<div class="change is-change".*?<div class="side old code">(.*?)<div class="side new', html, re.DOTALL)
    assert any("no_sync" in re.sub(r"<[^>]+>", "", change) for change in changes)
    assert '<span class="kn">import</span>' in html


def test_html_has_code_for_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
        "def clip(state, bucket):\n    return bucket.buffer().clamp_(-1, 1)\n\n\n"
        "model = DDP(net)\nmodel.register_comm_hook(None, clip)\n"
    )
    assert run(["scan", "--format", "html"]) == 0
    html = capsys.readouterr().out
    [recipe] = re.findall(r'<details class="recipe">(.*?)</details>', html, re.DOTALL)
    text = re.sub(r"<[^>]+>", "", recipe)
    assert "policy = MixedPrecisionPolicy(reduce_dtype=torch.float16)" in text
    assert "```" not in text and "`" not in text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found")
def test_html_fits_a_telephone_and_is_filtered_by_its_address(page_of_a_migration: Path, tmp_path: Path) -> None:
    link = re.findall(r'href="#(file-[^"]*)"', page_of_a_migration.read_text())[0]
    frames = ["", "#rule=FS301", "#without=safe,ok", f"#{link}"]
    listed = "".join(f'<iframe width="400" height="900" src="report.html{state}"></iframe>' for state in frames)
    script = """
        onload = () => out.textContent = JSON.stringify([...document.querySelectorAll("iframe")].map(frame => {
            const page = frame.contentDocument, seen = one => one.checkVisibility();
            return {width: page.documentElement.scrollWidth, height: page.documentElement.scrollHeight,
                findings: [...page.querySelectorAll(".finding:not([hidden])")].map(one => one.dataset.rule + one.dataset.level),
                changes: [...page.querySelectorAll(".change")].filter(seen).length};
        }))"""
    (tmp_path / "frames.html").write_text(f'{listed}<pre id="out"></pre><script>{script}</script>')
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom", f"file://{tmp_path}/frames.html"]
    dump = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    [found] = re.findall(r'<pre id="out">(.*?)</pre>', dump)
    everything, rule, levels, anchor = json.loads(found)
    assert all(frame["width"] <= 400 for frame in (everything, rule, levels, anchor))
    assert everything["height"] < 8 * 1000, "each file takes a screen: what needs nobody is folded"
    assert everything["changes"] == 0 < anchor["changes"]
    assert set(rule["findings"]) == {"FS301safe"}
    assert levels["findings"] and not any(one.endswith(("safe", "ok")) for one in levels["findings"])


def test_paths_are_those_from_the_working_directory(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repo" / "pkg").mkdir(parents=True)
    (tmp_path / "repo" / ".git").mkdir()
    (tmp_path / "repo" / "pkg" / "a.py").write_text("model = FSDP(net)\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    [entry] = json.loads(command("scan", "--format", "json", "../repo")[1])["findings"]
    assert entry["file"] == "../repo/pkg/a.py"
    assert entry["provenance"][0]["file"] == "../repo/pkg/a.py"


def test_rules_are_listed_and_explained(command: Command) -> None:
    code, out, _ = command("rules")
    assert code == 0
    listed = [line.split()[0] for line in out.decode().splitlines()]
    assert listed == [rule.id for rule in all_rules()]
    for rule in all_rules():
        code, out, _ = command("rules", rule.id)
        text = out.decode()
        assert code == 0
        assert rule.title in text
        for example in rule.examples:
            assert example.before.strip() in text
            assert example.after.strip() in text


def test_interpreter_without_utf8(tmp_path: Path) -> None:
    """A report of a file with an unusual name comes out under an ASCII locale too."""
    import os

    (tmp_path / "naïve.py").write_text("from torch.nn.parallel import DistributedDataParallel as DDP\nDDP(\n")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = subprocess.run(
        [sys.executable, "-m", "to_fsdp2.migrate", "scan"], cwd=tmp_path, env=environment, capture_output=True
    )
    assert result.returncode == 2, result.stderr
    assert b"ve.py:2" in result.stdout


def test_text_says_once_what_holds_for_several_sites_of_a_line(report: Report) -> None:
    report.show_safe = True
    first = finding(Level.REVIEW, 7)
    report.findings = [first, dataclasses.replace(first, column=31), finding(Level.REVIEW, 8), finding(Level.SAFE, 8)]
    lines = [line for line in as_text(report).splitlines() if line.startswith("  pkg/a b.py:")]
    places = ["pkg/a b.py:7:5, :31 review", "pkg/a b.py:8:5 review", "pkg/a b.py:8:5 safe"]
    assert all(line.strip().startswith(place) for line, place in zip(lines, places, strict=True))
    assert len(json.loads(report_json.render(report))["findings"]) == 4
