"""What the tool writes keeps the contract: `check` on a migrated program finds no breach that is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from to_fsdp2.transforms.engine import Analysis, Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

CASES = sorted(path for path in (Path(__file__).parent.parent.parent / "corpus" / "cases").iterdir() if path.is_dir())
OWN = {
    "held_whole_in_a_class": """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.out(x)


class Runner:
    def __init__(self, model):
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self, x):
        self.model(x).sum().backward()
        print(sum(float(p.grad.abs().sum()) for p in self.model.parameters()))


if __name__ == "__main__":
    runner = Runner(Net())
    runner.fit(torch.ones(2, 4))
    if dist.get_rank() == 0:
        torch.save(runner.model.module.state_dict(), "model.pt")
""",
    "a_state_beside_those_that_helpers_gather": """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model, optimizer, scaler, path):
    with FSDP.state_dict_type(model, "FULL"):
        states = FSDP.full_optim_state_dict(model, optimizer, rank0_only=True)
    if dist.get_rank() == 0:
        torch.save({"optimizer": states, "scaler": scaler.state_dict()}, path)


if __name__ == "__main__":
    model = FSDP(torch.nn.Linear(4, 4), use_orig_params=True)
    save(model, torch.optim.AdamW(model.parameters()), torch.amp.GradScaler(), "state.pt")
""",
    "parts_that_a_helper_takes": """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def norm_of(model):
    total = sum(p.grad.norm() ** 2 for p in model.parameters())
    dist.all_reduce(total)
    return total.sqrt()


if __name__ == "__main__":
    model = FSDP(torch.nn.Linear(4, 4), use_orig_params=True)
    model(torch.ones(2, 4)).sum().backward()
    print(norm_of(model).item())
""",
}


def look(texts: dict[str, str], contract: bool) -> Analysis:
    sources = {name: Source.decode(name, text.encode()) for name, text in texts.items()}
    facts = [extract(source) for source in sources.values()]
    return analyse(facts, sources.__getitem__, Options(target_torch=(2, 13), contract=contract), paths=list(texts))


def breaches_after(texts: dict[str, str]) -> list[tuple[str, str, int, str]]:
    migrated = look(texts, contract=False)
    assert migrated.texts
    found = look(texts | migrated.texts | migrated.new_files, contract=True).findings
    return [(f.rule, f.file, f.line, f.message) for f in found if f.rule.startswith("FS9")]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_migrated_case_of_the_corpus(case: Path) -> None:
    folder = case / "before"
    assert breaches_after({str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.py")}) == []


@pytest.mark.parametrize("name", OWN)
def test_what_was_blamed_once(name: str) -> None:
    assert breaches_after({"train.py": OWN[name]}) == []


def test_a_number_of_a_shard_is_still_one_where_nothing_holds_the_model_whole() -> None:
    texts = {"train.py": OWN["parts_that_a_helper_takes"]}
    migrated = look(texts, contract=False)
    texts = texts | migrated.texts | migrated.new_files
    assert "    compute_with_parts(model)\n" in texts["train.py"]
    texts["train.py"] = texts["train.py"].replace("    compute_with_parts(model)\n", "")
    assert [f.rule for f in look(texts, contract=True).findings if f.rule.startswith("FS9")]


_TWO = """\
import copy
import torch
from torch.distributed.fsdp import fully_shard
from fsdp2_helpers import compute_as_whole, copy_as_plain, keep_parameter_hooks, keep_state_dicts_whole


def make():
    student, teacher = torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 4))
    {shard}
    return student, teacher


def other():
    model = torch.nn.Linear(4, 4)
    fully_shard(model)
    return model


student, teacher = make()
{use}
"""


@pytest.mark.parametrize(("shard", "use", "rule"), [
    ("fully_shard(student); fully_shard(teacher); keep_state_dicts_whole(teacher)", "student.{load}", "FS914"),
    ("fully_shard(student); fully_shard(teacher); keep_state_dicts_whole(teacher)", "teacher.{load}", ""),
    ("for part in teacher:\n        fully_shard(part)\n    keep_state_dicts_whole(teacher)", "teacher[0].{load}", ""),
    ("fully_shard(student); fully_shard(teacher); compute_as_whole(teacher)", "student.{number}", ""),
    ("fully_shard(student)", "student.{number}", "FS933"),
    ("fully_shard(student); compute_as_whole(student)", "model = student if x else other()\nmodel.{number}", "FS933"),
    ("fully_shard(student)", "copy.deepcopy(student)", "FS915"),
    ("fully_shard(student); copy_as_plain(student)", "copy.deepcopy(student)", ""),
    ("student.weight.register_hook(print); fully_shard(student)", "pass", "FS934"),
    ("student.weight.register_hook(print); fully_shard(student); keep_parameter_hooks(student)", "pass", ""),
])  # fmt: skip
def test_a_helper_holds_what_it_is_given(shard: str, use: str, rule: str) -> None:
    use = use.format(load='load_state_dict(torch.load("a.pt"))', number="weight.norm().item()")
    found = look({"train.py": _TWO.format(shard=shard, use=use)}, contract=True).findings
    assert [f.rule for f in found if f.rule.startswith("FS9")] == ([rule] if rule else [])


_ANEW = """\
import torch
from torch.distributed.fsdp import fully_shard


def build():
    return torch.nn.Linear(4, 4)


def wrap(model):
    fully_shard(model)
    return model


def main():
    model = wrap(build())
    model = {second}
    model.load_state_dict(torch.load("a.pt"))
    model = wrap(model)
"""


@pytest.mark.parametrize(("second", "rule"), [("build()", ""), ("wrap(build())", "FS914")])
def test_a_name_for_a_new_model(second: str, rule: str) -> None:
    found = look({"train.py": _ANEW.format(second=second)}, contract=True).findings
    assert [f.rule for f in found if f.rule.startswith("FS9")] == ([rule] if rule else [])
