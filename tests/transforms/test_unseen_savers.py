"""Functions that save whatever they are handed, where nothing shows what that is."""

from __future__ import annotations

from migrating import analyse_texts
from state_programs import DDP, findings
from to_fsdp2.transforms.findings import Level

SAVERS = """
SAVERS = {}


def saves(kind):
    return lambda saver: SAVERS.setdefault(kind, saver)


@saves(torch.nn.Module)
def save(obj, path):
    state = obj.state_dict()
    torch.save(state, path)
"""
TRAIN = """

def main(net, path):
    model = DDP(net)
    {save}
"""


def test_model_that_is_saved_out_of_sight_is_held() -> None:
    text = DDP + SAVERS + TRAIN.format(save="model(path)")
    analysis, results = analyse_texts({"train.py": text})
    assert results["train.py"] == text
    (wrap,) = [f for f in analysis.findings if f.rule == "FS120"]
    assert wrap.level is Level.MANUAL
    assert "train.py:15" in wrap.message


def test_model_that_is_saved_in_sight_is_not() -> None:
    text = DDP + SAVERS + TRAIN.format(save="torch.save(model.module.state_dict(), path)")
    analysis, results = analyse_texts({"train.py": text})
    assert "fully_shard(net)" in results["train.py"]
    (read,) = [f for f in analysis.findings if f.line == 15]
    assert (read.rule, read.level) == ("FS402", Level.MANUAL)


def test_other_objects_are_none() -> None:
    savers = SAVERS.replace("def save(obj,", "def save(scheduler,").replace("obj.state_dict", "scheduler.state_dict")
    assert not findings(DDP + savers, TRAIN.format(save="model(path)"), "FS402")
    assert not findings(DDP, SAVERS, "FS402")


FIXTURES = """
import pytest


@pytest.fixture
def net():
    yield {net}


def test_state_goes_round(net):
    copy = build()
    copy.load_state_dict(net.state_dict())


def check_state(other, path):
    torch.save(other.state_dict(), path)
"""


def test_what_pytest_passes_is_what_fixtures_give() -> None:
    plain = findings(DDP + FIXTURES.format(net="build()"), TRAIN.format(save="pass"), "FS402")
    assert [(f.level, "nothing in these files" in f.message) for f in plain] == [(Level.MANUAL, True)]
    wrapped = findings(DDP + FIXTURES.format(net="DDP(build())"), TRAIN.format(save="pass"), "FS402")
    assert len(wrapped) == 2


def test_names_alone_are_the_same_for_sharded_models() -> None:
    keys = "\n\ndef keys(model):\n    return sorted(model.state_dict().keys())\n"
    (finding,) = findings(DDP + keys, TRAIN.format(save="pass"), "FS402")
    assert finding.level is Level.OK


BOTH = """
def save(model, optimizer, path):
    save_on_master({"optimizer": optimizer.state_dict()}, path)


def load(optimizer=None):
    if optimizer is not None:
        optimizer.load_state_dict(torch.load("state.pt"))


def main(net):
    model = DDP(net)
    torch.save(model.module.state_dict(), "model.pt")
    load()
"""


def test_optimizer_that_is_saved_out_of_sight_holds_its_model() -> None:
    analysis, results = analyse_texts({"train.py": DDP + BOTH})
    assert results["train.py"] == DDP + BOTH
    found = {(f.rule, f.level) for f in analysis.findings}
    assert {("FS404", Level.MANUAL), ("FS405", Level.MANUAL)} <= found
    (wrap,) = [f for f in analysis.findings if f.rule == "FS120"]
    assert "nothing is seen to save this model's optimizer but train.py:7" in wrap.message


def test_optimizer_that_is_saved_in_sight_does_not() -> None:
    seen = "    optimizer = torch.optim.AdamW(model.parameters())\n    torch.save(optimizer.state_dict(), 'o.pt')\n"
    _, results = analyse_texts({"train.py": DDP + BOTH + seen})
    assert "fully_shard(net)" in results["train.py"]


def test_optimizer_state_that_is_not_written_holds_nothing() -> None:
    analysis, results = analyse_texts({"train.py": DDP + BOTH.replace("save_on_master", "compare")})
    assert "fully_shard(net)" in results["train.py"]
    assert [f.level for f in analysis.findings if f.rule == "FS404"] == [Level.MANUAL]
