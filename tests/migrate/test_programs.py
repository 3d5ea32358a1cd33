"""Programs: what is run with what it reaches, chosen together where they share a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from to_fsdp2.transforms.findings import Level
from to_fsdp2.transforms.migration import Migration
from to_fsdp2.transforms.rule import Outcome, Rule
from to_fsdp2.transforms.sites import Site

Real = Callable[..., tuple[int, str, str]]

WRAP = "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\ndef wrap(net):\n    return DDP(net)\n"
MAIN = 'if __name__ == "__main__":\n    main()\n'
HOOK = "\n\ndef hooked(net):\n    model = DDP(net)\n    model.register_comm_hook(None, print)\n"


def programs_of(real: Real, file: str) -> list[str]:
    findings = json.loads(real("scan", "--format", "json", "--all")[1])["findings"]
    found = {tuple(finding["programs"]) for finding in findings if finding["file"] == file}
    assert len(found) == 1
    return list(found.pop())


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_files_that_are_run_reach_others_over_any_number_of_imports(real: Real, tmp_path: Path) -> None:
    write(
        tmp_path,
        pkg__wrap=WRAP,
        pkg__relay="from .wrap import wrap\n",
        pkg__star="from pkg.relay import *\n",
        train="import pkg.relay\n" + MAIN,
        pretrain="def main():\n    from pkg import star\n" + MAIN,
        other="import pkg\n" + MAIN,
    )
    assert programs_of(real, "pkg/wrap.py") == ["pretrain.py", "train.py"]


def test_a_script_without_a_guard_is_known_by_the_model_that_it_wraps(real: Real, tmp_path: Path) -> None:
    text = "import wrap\nfrom torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(net)\n"
    write(tmp_path, train=text, wrap=WRAP, again="import train\n" + MAIN)
    assert programs_of(real, "wrap.py") == ["again.py", "train.py"]


def test_commands_of_the_project_are_programs(real: Real, tmp_path: Path) -> None:
    write(tmp_path, src__cli=WRAP, src__api="from .cli import wrap\n" + MAIN)
    assert programs_of(real, "src/cli.py") == ["src/api.py"]
    (tmp_path / "pyproject.toml").write_text("[project.scripts]\ntrain = 'cli:wrap'\n")
    assert programs_of(real, "src/cli.py") == ["src/api.py", "src/cli.py"]


def test_what_no_program_reaches_belongs_to_who_imports_it(real: Real, tmp_path: Path) -> None:
    write(tmp_path, library=WRAP, relay="import library\n", test_library="import relay\n", train="x = 1\n" + MAIN)
    assert programs_of(real, "library.py") == ["test_library.py"]


def test_files_that_import_each_other_are_one_program(real: Real, tmp_path: Path) -> None:
    write(tmp_path, a="import b\n" + WRAP, b="import a\n")
    assert programs_of(real, "a.py") == ["a.py"]


@pytest.fixture
def three_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that share a file, one of which has a finding to review, and one of their neighbours' own."""
    write(
        tmp_path,
        one="import shared\n" + WRAP + HOOK + MAIN,
        two="import shared\n" + WRAP + MAIN,
        shared=WRAP,
        alone=WRAP + MAIN,
    )
    reviewed = Rule(
        "FS301", "hook", "why", ("*.register_comm_hook",), lambda site, migration: Outcome("look", level=Level.REVIEW)
    )
    from to_fsdp2.transforms import engine

    rule_for = engine.rule_for
    monkeypatch.setattr(
        engine, "rule_for", lambda symbol, role: reviewed if symbol.endswith("comm_hook") else rule_for(symbol, role)
    )


def changed(patch: str) -> set[str]:
    return {line.split("/")[-1] for line in patch.splitlines() if line.startswith("--- a/")}


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ([], {"one.py", "two.py", "shared.py", "alone.py"}),
        (["--level", "safe"], {"alone.py"}),
        (["--level", "review"], {"one.py", "two.py", "shared.py", "alone.py"}),
        (["--select", "FS301"], {"one.py", "two.py", "shared.py"}),
        (["--ignore", "FS3"], {"alone.py"}),
    ],
)
def test_programs_that_share_a_file_are_chosen_together(
    real: Real, three_programs: None, options: list[str], files: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert changed(real("diff", *options)[1]) == files


def test_a_program_that_is_left_alone_says_why(real: Real, three_programs: None) -> None:
    out = real("scan", "--level", "safe")[1]
    reason = "there are findings above the level asked for"
    assert f"one.py: left alone: {reason}; 0 open stops, 1 to review" in out
    assert f"two.py: left alone: {reason}; 0 open stops, 0 to review" in out
    assert "alone.py: 1 file to change" in out


def test_a_program_with_a_file_that_fails_is_left_alone_and_no_other(
    real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from to_fsdp2.transforms import writing

    apply_changes = writing.apply_changes

    def failing(source, changes):
        if source.path == "two.py":
            raise KeyError("lost")
        return apply_changes(source, changes)

    monkeypatch.setattr(writing, "apply_changes", failing)
    write(tmp_path, one="import shared\n" + WRAP + MAIN, two="import shared\n" + WRAP + MAIN, shared=WRAP, alone=WRAP + MAIN)
    code, patch, err = real("diff")
    assert code == 3
    assert changed(patch) == {"alone.py"}
    assert "two.py: could not be rewritten" in err
    assert "KeyError: 'lost'" in err


def test_a_rule_that_fails_is_an_error_of_the_file(real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from to_fsdp2.transforms import engine

    def failing(site: Site, migration: Migration) -> Outcome:
        raise KeyError("lost")

    rule_for = engine.rule_for
    broken = Rule("FS301", "hook", "why", (), failing)
    monkeypatch.setattr(
        engine, "rule_for", lambda symbol, role: broken if symbol.endswith("comm_hook") else rule_for(symbol, role)
    )
    write(tmp_path, one=WRAP + HOOK + MAIN, alone=WRAP + MAIN)
    code, patch, err = real("diff")
    assert code == 3
    assert changed(patch) == {"alone.py"}
    assert "one.py:10: could not be rewritten" in err


def test_a_program_that_never_wraps_is_left_as_it_is(real: Real, tmp_path: Path) -> None:
    load = "import torch\nfrom model import make\n\n\ndef main():\n    net = make()\n    net.load_state_dict(torch.load('x'))\n"
    write(
        tmp_path,
        model="import torch\n\n\ndef make():\n    return torch.nn.Linear(2, 2)\n",
        train=WRAP + load.replace("make()", "wrap(make())") + "    torch.save(net.state_dict(), 'x')\n" + MAIN,
        sample=load + "    torch.save(net.state_dict(), 'x')\n" + MAIN,
        script=load + "with torch.no_grad():\n    torch.save(make().state_dict(), 'x')\n",
    )
    assert changed(real("diff")[1]) == {"train.py"}


def test_code_of_fsdp2_is_left_as_it_is(real: Real, tmp_path: Path) -> None:
    text = "import torch\nfrom torch.distributed.fsdp import fully_shard\n\n\ndef main(net):\n    fully_shard(net)\n"
    more = "    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n    torch.save(net.state_dict(), 'x')\n"
    write(tmp_path, train=text + more + MAIN, library=text + more)
    assert real("diff")[:2] == (0, "")
