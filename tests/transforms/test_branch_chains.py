"""Branches for models of FSDP1 and of DDP, which are models of one kind once both are sharded."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Finding, Level

HEAD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def save(model, path):
"""
SHARDED = "        store(FSDP.optim_state_dict(model, optimizer), path)\n"
DDP_BRANCH = "        # one rank holds all\n        store(model.module.state_dict(), path)\n"


def migrated(text: str) -> tuple[list[Finding], str]:
    analysis, results = analyse_texts({"train.py": text})
    return [finding for finding in analysis.findings if finding.rule == "FS603"], results["train.py"]


@pytest.mark.parametrize("otherwise", ["", "    else:\n        print(path)\n", "    elif path:\n        print(path)\n"])
def test_the_branch_for_ddp_goes_where_both_are_sharded(otherwise: str) -> None:
    text = HEAD + "    if isinstance(model, FSDP):\n" + SHARDED + "    elif isinstance(model, DDP):\n" + DDP_BRANCH + otherwise
    findings, after = migrated(text)
    assert [finding.level for finding in findings] == [Level.SAFE, Level.REVIEW]
    assert "those of DDP take the one of line 6 now" in findings[1].message
    assert after.count("isinstance(model, FSDPModule)") == 1
    assert "DDP" not in after
    assert "model.module" not in after
    assert after.endswith(otherwise)


def test_what_stands_in_the_branch_goes_with_it() -> None:
    text = HEAD + "    if isinstance(model, FSDP):\n" + SHARDED + "    elif isinstance(model, DDP):\n" + DDP_BRANCH
    analysis, results = analyse_texts({"train.py": text + "\n\nsave(DDP(build()), name)\nsave(FSDP(build()), name)\n"})
    messages = [finding.message for finding in analysis.findings if finding.rule == "FS601"]
    assert [message.startswith("goes with the branch that it stands in") for message in messages] == [True]
    assert ".module" not in results["train.py"]


def test_the_branch_for_ddp_goes_where_it_comes_first() -> None:
    text = HEAD + "    if isinstance(model, DDP):\n" + DDP_BRANCH + "    elif isinstance(model, FSDP):\n" + SHARDED
    _, after = migrated(text)
    assert "    if isinstance(model, FSDPModule):\n        store(get_optimizer_state_dict(" in after
    assert "module.state_dict" not in after


FLAT = """\
    if isinstance(model, FSDP):
        for module in model.modules():
            if not isinstance(module, FSDP):
                continue
            for param in module.params:
                param.fill_(0)
    elif isinstance(model, DDP):
        model.module.load_state_dict(path)
    else:
        raise NotImplementedError
"""
ELSEWHERE = "\n\ndef is_sharded(model):\n    return isinstance(model, FSDP)\n"


def test_work_on_flat_parameters_stays_with_its_function() -> None:
    text = HEAD + FLAT + ELSEWHERE
    findings, after = migrated(text)
    assert [finding.level for finding in findings] == [Level.MANUAL] * 3 + [Level.SAFE]
    assert HEAD.partition("\n\n\n")[2] + FLAT in after
    assert after.endswith("return isinstance(model, FSDPModule)\n")


@pytest.mark.parametrize("otherwise", ["", "    else:\n        raise NotImplementedError\n"])
def test_flat_parameters_raise_and_hold_nothing(otherwise: str) -> None:
    flat = FLAT.partition("    else")[0].replace("param.fill_(0)", "report(param._fqns)") + otherwise
    findings, after = migrated(HEAD + flat + ELSEWHERE)
    assert [finding.level for finding in findings] == [Level.SAFE, Level.SAFE, Level.MANUAL, Level.SAFE]
    assert "those of DDP take the branch of line 6 now, where _fqns raises" in findings[2].message
    assert "    if isinstance(model, FSDPModule):\n" in after
    assert "    elif isinstance(model, DDP):\n        model.module.load_state_dict(path)\n" in after
    assert migrated(after)[1] == after


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("if param in known:\n                    report(param._fqns)", id="under a condition"),
        pytest.param("if param not in known:\n                    continue\n                report(param._fqns)", id="left out"),
        pytest.param("for handle in handles(param):\n                    report(handle._fqns)", id="a loop over nothing"),
        pytest.param("report(hasattr(param, '_fqns') and param._fqns)", id="asked for first"),
    ],
)
def test_flat_parameters_that_are_passed_over_hold_their_function(body: str) -> None:
    flat = FLAT.replace("module.params", "module.parameters()").replace("param.fill_(0)", body)
    findings, after = migrated(HEAD + flat + ELSEWHERE)
    assert [finding.level for finding in findings] == [Level.MANUAL] * 3 + [Level.SAFE]
    assert flat in after


def test_models_that_are_not_the_same_keep_their_branches() -> None:
    text = HEAD + "    if isinstance(model, FSDP):\n" + SHARDED + "    elif isinstance(path, DDP):\n        pass\n"
    _, after = migrated(text)
    assert after.count("FSDPModule)") == 2


UNITS = """\
def units(model):
    return FSDP.fsdp_modules(model)


def share(student, teacher):
    for one, other in zip(units(student), units(teacher)):
        one._streams = other._streams
        copy(one.params, other.params)
"""


def test_members_of_units_are_named() -> None:
    text = HEAD.partition("\n\n\n")[0] + "\n\n\n" + UNITS + '    report(student.params)\n    print(other.own)\n'
    analysis, _ = analyse_texts({"train.py": text})
    found = [finding for finding in analysis.findings if finding.rule == "FS614"]
    assert [finding.symbol.rpartition(".")[2] for finding in found] == ["_streams", "params", "params"]
    assert {finding.level for finding in found} == {Level.MANUAL}


def test_members_behind_a_function_that_asks_are_named() -> None:
    text = HEAD.partition("\n\n\n")[0] + (
        "\n\n\ndef is_fsdp(model):\n    return isinstance(model, FSDP)\n\n\n"
        "def has_streams(model, other):\n    return is_fsdp(model) and model._streams is not other.head._streams\n"
    )
    analysis, _ = analyse_texts({"train.py": text})
    assert [finding.rule for finding in analysis.findings].count("FS614") == 2
