"""Functions that save whatever they are handed, where nothing shows what that is."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from state_programs import DDP, findings
from to_fsdp2.transforms.engine import Options
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


RANKS = """
import functools
import torch.distributed as dist


def is_main():
    return not dist.is_initialized() or dist.get_rank() == 0


def main_only(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) if is_main() else None

    return wrapper


def save_on_master(*args):
    if is_main():
        torch.save(*args)
"""
DECORATED = """

@main_only
def save(obj, path):
    \"\"\"Saves anything.\"\"\"
    state = obj.state_dict()
    if not state:
        print("nothing")
    torch.save(state, path)


HOOKS = {torch.nn.Module: save}
"""
SPLIT = """

def save(obj, path):
    \"\"\"Saves anything.\"\"\"
    state = tree_map_only(DTensor, gather_to_rank_zero, obj.state_dict())

    @main_only
    def write():
        if not state:
            print("nothing")
        torch.save(state, path)

    write()


HOOKS = {torch.nn.Module: save}
"""
HANDED = TRAIN.format(save="model(path)")


def migrated(text: str, options: Options | None = None) -> str:
    _, results = analyse_texts({"train.py": text}, options)
    assert analyse_texts(results)[1] == results or results["train.py"] == text
    return results["train.py"]


def test_decorator_stays_with_what_is_written() -> None:
    result = migrated(DDP + RANKS + DECORATED + HANDED)
    assert SPLIT in result
    assert 'return shard.full_tensor().to("meta" if dist.get_rank() else "cpu")' in result
    assert "fully_shard(net)" in result


def test_state_inside_a_larger_statement_is_bound_before_the_decorated_rest() -> None:
    saver = DECORATED.replace("    state = obj.state_dict()\n", "").replace("save(state, path)", "save(obj.state_dict(), path)")
    result = migrated(DDP + RANKS + saver.replace("if not state:", "if not path:") + HANDED)
    assert "    obj_state_dict = tree_map_only(DTensor, gather_to_rank_zero, obj.state_dict())\n\n    @main_only\n" in result
    assert "        torch.save(obj_state_dict, path)\n\n    write()\n" in result


def test_saver_that_several_ranks_go_on_with_keeps_the_whole_state() -> None:
    ranks = RANKS.replace("import func", "import os\nimport func")
    ranks = ranks.replace("if is_main() else", 'if int(os.environ["LOCAL_RANK"]) == 0 else')
    result = migrated(DDP + ranks + DECORATED + HANDED)
    assert "tree_map_only(DTensor, lambda shard: shard.full_tensor().cpu(), obj.state_dict())" in result


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("wrapper(*args, **kwargs)", "wrapper(obj, path)"),
        ('        print("nothing")', "        path = None"),
        ('        print("nothing")', "        yield"),
        ("@main_only\ndef save", "@main_only\n@register\ndef save"),
    ],
)
def test_decorated_function_that_cannot_be_split_holds_the_model(old: str, new: str) -> None:
    text = DDP + (RANKS + DECORATED).replace(old, new) + HANDED
    assert migrated(text) == text


def test_function_that_guarded_callers_reach_holds_the_model() -> None:
    text = DDP + RANKS + DECORATED + HANDED + "    if is_main():\n        save(None, path)\n"
    assert migrated(text) == text


def test_guard_stays_with_what_is_written() -> None:
    saver = "\n\ndef save(obj, path, epoch):\n    if epoch % 2 == 0 and is_main():\n        torch.save(obj.state_dict(), path)\n"
    result = migrated(DDP + RANKS + saver + TRAIN.format(save="pass"))
    assert (
        "    if epoch % 2 == 0:\n"
        "        obj_state_dict = tree_map_only(DTensor, gather_to_rank_zero, obj.state_dict())\n"
        "    if epoch % 2 == 0 and is_main():\n"
        "        torch.save(obj_state_dict, path)\n"
    ) in result


def test_optimizer_is_gathered_for_a_function_that_writes_on_rank_zero() -> None:
    result = migrated(DDP + RANKS + BOTH)
    assert (
        "    optimizer_state_dict = tree_map_only(DTensor, gather_to_rank_zero, optimizer.state_dict())\n"
        '    save_on_master({"optimizer": optimizer_state_dict}, path)\n'
    ) in result
    assert 'optimizer.load_state_dict(optimizer_shards(optimizer, torch.load("state.pt")))' in result
    assert "fully_shard(net)" in result


def test_one_function_lays_out_whatever_is_loaded() -> None:
    load = "\n\ndef recover(obj, optimizer):\n    obj.load_state_dict(torch.load(1), strict=False)\n"
    load += "    optimizer.load_state_dict(torch.load(2))\n"
    result = migrated(DDP + RANKS + DECORATED + load + HANDED)
    assert "obj.load_state_dict(state_shards(obj, torch.load(1)), strict=False)" in result
    assert "optimizer.load_state_dict(state_shards(optimizer, torch.load(2)))" in result
    assert result.count("def local_shard") == result.count("def state_shards") == 1


def test_schedulers_by_registration_are_right_as_they_are() -> None:
    hooks = SAVERS.replace("@saves(torch.nn.Module)\n", "") + "\n\nSAVERS[torch.optim.lr_scheduler.CyclicLR] = save\n"
    result = migrated(DDP + hooks + TRAIN.format(save="pass"))
    assert "fully_shard(net)" in result and "tree_map_only" not in result


@pytest.mark.parametrize("options", [Options(ignore=frozenset({"FS402"})), None])
def test_saver_that_is_left_alone_holds_the_model(options: Options | None) -> None:
    saver = DECORATED if options else DECORATED.replace("obj.state_dict()", "obj.state_dict()  # to-fsdp2: ignore[FS402] mine")
    text = DDP + RANKS + saver + HANDED
    assert migrated(text, options) == text


PARTS = """

class Pair(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.student = {student}


def save(model, path):
    state = model.module.state_dict() if isinstance(model, (DDP, torch.nn.DataParallel)) else model.state_dict()
    save_on_master(state, path)


def main(net, path):
    save({model}, path)
"""


def test_model_that_is_not_wrapped_itself_may_have_wrapped_parts() -> None:
    text = DDP + RANKS + PARTS.format(student="DDP(net)", model="Pair(net)")
    analysis, results = analyse_texts({"train.py": text})
    assert results["train.py"].count("get_model_state_dict(") == 1
    assert any("their keys have no module. in them any more" in f.message for f in analysis.findings)


RETURNED = """

def state_of(anything):
    return anything.state_dict()


def save(model, path):
    state = state_of(model)
    {write}
"""


def test_state_that_is_returned_to_a_function_which_writes_on_rank_zero_is_gathered() -> None:
    text = DDP + RANKS + RETURNED + TRAIN.format(save="pass")
    result = migrated(text.replace("{write}", 'save_on_master({"model": state}, path)'))
    assert "return tree_map_only(DTensor, gather_to_rank_zero, anything.state_dict())" in result
    unguarded = text.replace("{write}", "torch.save(state, path)")
    assert migrated(unguarded) == unguarded


TAKEN = """

class Task:
    def __init__(self, net, names):
        self.names = names
        self.model = DDP(net)

    def write(self, path):
{body}


def main(net, path):
    task = Task(net, path.split())
    task.write(path)
"""


@pytest.mark.parametrize(
    "body",
    [
        "        for name, value in vars(self).items():\n            torch.save(value.state_dict(), path)",
        "        torch.save({name: value.state_dict() for name, value in self.__dict__.items()}, path)",
        "        torch.save([getattr(self, name).state_dict() for name in self.names], path)",
        "        for name in self.names:\n            part = getattr(self, name)\n"
        "            torch.save(part.state_dict(), path)",
        "        packed = {}\n        for name in list(vars(self)):\n            packed[name] = vars(self)[name].state_dict()\n"
        "        return packed",
    ],
)
def test_model_that_is_saved_as_one_of_the_attributes_is_held(body: str) -> None:
    text = DDP + TAKEN.format(body=body)
    analysis, results = analyse_texts({"train.py": text})
    assert results["train.py"] == text
    assert any(f.rule == "FS120" and "nothing is seen to save this model" in f.message for f in analysis.findings)
    assert any(f.rule == "FS402" and "nothing in these files shows what this is" in f.message for f in analysis.findings)


@pytest.mark.parametrize(
    "body",
    [
        "        for name, value in vars(self).items():\n            print(value.state_dict())",
        "        for name, scheduler in vars(self).items():\n            torch.save(scheduler.state_dict(), path)",
        "        for name in self.names:\n            parts = getattr(self, name)\n            if name == 'train_metrics':\n"
        "                torch.save([part.state_dict() for part in parts.values()], path)",
        "        kinds = {}\n        torch.save(kinds.get(path).state_dict(), path)",
    ],
)
def test_model_beside_other_reads_of_attributes_is_not(body: str) -> None:
    assert "fully_shard(net)" in migrated(DDP + TAKEN.format(body=body))


QUEUED = """
import queue

jobs = queue.{kind}()


def write(path):
    while True:
        item = jobs.{get}
        if item is None:
            return
        place, model = item
        torch.save(model.state_dict(), path)


def main(net, path):
    model = DDP(net)
    jobs.put((path, model.module))
    write(path)
"""


@pytest.mark.parametrize(
    ("kind", "get"), [("Queue", "get()"), ("SimpleQueue", "get(True, 5)"), ("Queue", "get_nowait()"), ("Queue", "get(timeout=1)")]
)
def test_model_that_is_saved_from_a_queue_is_held(kind: str, get: str) -> None:
    text = DDP + QUEUED.format(kind=kind, get=get)
    assert migrated(text) == text


def test_model_that_a_script_takes_from_a_queue_is_held() -> None:
    taken = "import queue\n\njobs = queue.SimpleQueue()\njobs.put(DDP(torch.nn.Linear(2, 2)).module)\n"
    text = DDP + taken + 'if dist.get_rank() == 0:\n    net = jobs.get()\n    torch.save(net.state_dict(), "net.pt")\n'
    assert migrated(text) == text


def test_attribute_by_a_computed_name_is_gathered_where_rank_zero_alone_writes_it() -> None:
    body = "        for name in self.names:\n            part = getattr(self, name)\n"
    body += "            save_on_master({name: part.state_dict()}, path)"
    result = migrated(DDP + RANKS + TAKEN.format(body=body))
    assert "part_state_dict = tree_map_only(DTensor, gather_to_rank_zero, part.state_dict())" in result
    assert "save_on_master({name: part_state_dict}, path)" in result and "fully_shard(net)" in result


_FIELDS = """\
import dataclasses

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclasses.dataclass
class State:
    model: object
    optimizer: object
    step: int = 0

    def to_dict(self):
        held = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value.state_dict() for name, value in held.items() if hasattr(value, "state_dict")}


net = DDP(build())
state = State({model}, torch.optim.AdamW({parameters}))
if dist.get_rank() == 0:
    torch.save(state.to_dict(), "state.pt")
    torch.save(net.module.state_dict(), "model.pt")
"""


@pytest.mark.parametrize(("model", "parameters", "is_held"), [("net", "net.parameters()", True), ("None", "others", False)])
def test_savers_of_all_fields_hold_the_models_among_these(model: str, parameters: str, is_held: bool) -> None:
    text = _FIELDS.replace("{model}", model).replace("{parameters}", parameters)
    _, results = analyse_texts({"train.py": text})
    assert ("fully_shard" not in results["train.py"]) == is_held
