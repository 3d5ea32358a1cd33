"""Notebooks are migrated cell by cell; everything that is not the code of a changed cell keeps every byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from repositories import commit_all, git

Real = Callable[..., tuple[int, str, str]]

IMPORTS = "%matplotlib inline\nimport torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n!pip install x"
WRAP = "%%time\nnet = torch.nn.Linear(4, 4)\nmodel = DDP(net)"
SAVE = 'for step in range(2):\n    model(torch.ones(4)).sum().backward()\ntorch.save(model.module.state_dict(), "x.pt")'


def cell(source: str | list[str], kind: str = "code") -> dict[str, object]:
    outputs = {"execution_count": 3, "outputs": [{"output_type": "stream", "name": "stdout", "text": ["DDP naïve\n"]}]}
    return {"cell_type": kind, "id": "a", "metadata": {}, **(outputs if kind == "code" else {}), "source": source}


def notebook(*cells: dict[str, object], **style: object) -> bytes:
    document = {"cells": list(cells), "metadata": {"kernelspec": {"language": "python"}}, "nbformat": 4, "nbformat_minor": 5}
    return (json.dumps(document, **{"indent": 1, "ensure_ascii": False, **style}) + "\n").encode()  # pyright: ignore[reportArgumentType]


def sources(file: Path) -> list[str]:
    return ["".join(entry["source"]) for entry in json.loads(file.read_text())["cells"]]


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


@pytest.mark.parametrize("style", [{}, {"indent": 2}, {"indent": None}, {"ensure_ascii": True}], ids=str)
def test_cells_are_migrated_and_the_rest_keeps_every_byte(real: Real, tmp_path: Path, style: dict[str, object]) -> None:
    before = notebook(
        cell("# DDP, explained", "markdown"),
        cell(lines(IMPORTS)),
        cell(WRAP),
        cell("%%bash\nls"),
        cell("x =  1"),
        cell(lines(SAVE)),
        **style,
    )
    file = tmp_path / "train.ipynb"
    file.write_bytes(before)
    commit_all(tmp_path)
    code, _, err = real("apply")
    assert code in (0, 1), err
    after = sources(file)
    assert after[0] == "# DDP, explained"
    assert after[1].startswith("%matplotlib inline\nimport torch\n")
    assert after[1].rstrip("\n").endswith("!pip install x") or "!pip install x\n" in after[1]
    assert "DistributedDataParallel" not in after[1]
    assert after[2].startswith("%%time\nnet = torch.nn.Linear(4, 4)\n")
    assert "DDP(" not in after[2]
    assert after[3:5] == ["%%bash\nls", "x =  1"]
    assert "model.module" not in after[5]
    assert "to-fsdp2" not in file.read_text()
    document, original = json.loads(file.read_text()), json.loads(before)
    for entry, old in zip(document["cells"], original["cells"], strict=True):
        assert type(entry["source"]) is type(old["source"])
        old["source"] = entry["source"]
    assert document == original
    assert file.read_bytes() == (json.dumps(original, **{"indent": 1, "ensure_ascii": False, **style}) + "\n").encode()  # pyright: ignore[reportArgumentType]
    assert real("diff")[:2] == (0, "")


def test_the_patch_is_one_for_git(real: Real, tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_bytes(notebook(cell(IMPORTS), cell(WRAP)))
    commit_all(tmp_path)
    code, patch, _ = real("diff")
    assert code == 1
    assert git(tmp_path, "apply", "-", stdin=patch.encode()).returncode == 0
    assert real("diff")[:2] == (0, "")


def test_findings_name_the_cell_and_its_line(real: Real, tmp_path: Path) -> None:
    (tmp_path / "wrap.py").write_text(
        "from torch.nn.parallel import DistributedDataParallel as DDP\n\ndef wrap(net):\n    return DDP(net)\n"
    )
    (tmp_path / "use.ipynb").write_bytes(
        notebook(cell("intro", "markdown"), cell("import wrap"), cell("\nmodel = wrap.wrap(net)\nmodel.module"))
    )
    findings = json.loads(real("scan", "--all", "--format", "json")[1])["findings"]
    assert {(finding["file"], finding["line"]) for finding in findings if "ipynb" in finding["file"]} == {("use.ipynb#cell3", 3)}
    text = real("scan", "--all")[1]
    assert "use.ipynb#cell3:3:1 " in text
    [run] = json.loads(real("scan", "--format", "sarif")[1])["runs"]
    uris = {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in run["results"]}
    assert uris == {"use.ipynb", "wrap.py"}


def test_comments_of_suppression_work_in_cells(real: Real, tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_bytes(notebook(cell(IMPORTS), cell("model = DDP(net)  # to-fsdp2: ignore[FS120] teacher")))
    findings = json.loads(real("scan", "--all", "--format", "json")[1])["findings"]
    assert [finding["suppressed"] for finding in findings if finding["rule"] == "FS120"] == [True]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"cells": ["from torch.nn.parallel import DistributedDataParallel"]}', "is not a notebook of format 4"),
        (notebook(cell(IMPORTS), cell("DDP(")), "cell 2 is not Python"),
        (notebook(cell(IMPORTS + "\nmodel = DDP(net)")).replace(b": 3", b": 3.0e0"), "written in a way that could not be kept"),
    ],
)
def test_what_cannot_be_read_or_written_is_named(real: Real, tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "train.ipynb").write_bytes(data)
    code, out, _ = real("diff", "--format", "json")
    document = json.loads(out)
    assert code & 2
    [error] = document["errors"]
    assert error["file"] == "train.ipynb"
    assert reason in error["message"]
    assert document["files"]["changed"] == 0


def test_what_has_no_site_is_left_in_peace(real: Real, tmp_path: Path) -> None:
    (tmp_path / "plot.ipynb").write_text('{"cells": ["iVBORw0KDDP"]}')
    (tmp_path / "r.ipynb").write_bytes(notebook(cell("x <- 1")).replace(b'"python"', b'"R"'))
    (tmp_path / "text.ipynb").write_bytes(notebook(cell("about DistributedDataParallel", "markdown")))
    assert real("check")[0] == 0


def test_other_languages_in_cells_are_named_where_it_matters(real: Real, tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_bytes(
        notebook(cell("%%writefile train.py\nfrom torch.nn.parallel import DistributedDataParallel"))
    )
    err = real("check")[2]
    assert "not looked at: a.ipynb#cell1 uses FSDP or DDP behind %%writefile" in err
