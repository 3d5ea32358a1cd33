"""Rewrites that can never matter are not made; the same kind of code that needs them still gets them."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, helpers, migrated, texts

NAMES = (
    HEAD
    + """def run(net, options, log):
    model = DDP(net, **options)
    for name, p in {pairs}:
        log(f"{{{shown}:>8}}")
"""
)


@pytest.mark.parametrize(
    "pairs",
    ["model.named_parameters()", "list(model.named_parameters())", "sorted(model.named_parameters())",
     "dict(model.named_parameters()).items()"],
)  # fmt: skip
def test_a_name_beside_a_parameter_is_no_tensor(pairs: str) -> None:
    assert "compute_as_whole" not in helpers(train=NAMES.format(pairs=pairs, shown="name"))
    assert "compute_as_whole" in helpers(train=NAMES.format(pairs=pairs, shown="p.norm()"))


OWN = (
    HEAD
    + """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(2, 2)) for _ in range(2)])
        self.gamma = nn.Parameter(torch.ones(2))
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        return self.scaled(x)

    def scaled(self, x):
        {body}
        return x


def run(options, x):
    model = DDP(Net(), **options)
    return model(x)
"""
)


@pytest.mark.parametrize(
    "body",
    ["x = x @ self.layer.weight[0]", "x.mul_(self.gamma)", "self.mean.mul_(0.9).add_(self.gamma.data)",
     "x = torch.cat([x, self.layer.weight])"],
)  # fmt: skip
def test_a_modules_own_parameters_are_whole_in_its_methods(body: str) -> None:
    text = migrated(train=OWN.format(body=body))["train"]
    assert body in text and "fsdp2_helpers" not in text.partition("class Net")[2]


def test_parameters_that_lie_in_units_or_in_other_models_may_be_sharded() -> None:
    assert "compute_as_whole" in helpers(train=OWN.format(body="x = x @ self.blocks[0][0].weight"))
    holder = "class Loss(nn.Module):\n    def __init__(self, head):\n        super().__init__()\n        self.head = head\n\n"
    holder += "    def forward(self, x):\n        return x @ self.head.weight\n\n\ndef train(options, x):\n    net = Net()\n"
    holder += "    model = DDP(net, **options)\n    return Loss(model.module.layer)(model(x))\n"
    assert "compute_as_whole" in helpers(train=OWN.format(body="pass") + "\n\n" + holder)


HANDED = (
    HEAD
    + """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))

    def embed(self, x):
        return x @ self.weight

    def forward(self, x):
        return compute(self, x)


def compute(net, x):
    return net.embed(x)


def run(options, x):
    model = DDP(Net(), **options)
    {more}
    return model(x)
"""
)


def test_a_function_that_gets_self_runs_where_parameters_are_gathered() -> None:
    assert "    return net.embed(x)" in migrated(train=HANDED.format(more="pass"))["train"]
    for more in ("compute(model.module, x)", "print(compute)", "list(map(compute, [model.module]))"):
        assert 'forward_method(net, "embed")(x)' in migrated(train=HANDED.format(more=more))["train"]


UNUSED = "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
UNUSED_WAYS = {
    "class": UNUSED + "class Wrapper(DDP):\n    pass\n",
    "function": UNUSED + "def distribute(model):\n    model = DDP(model)\n    return model.module.state_dict()\n",
}
TRAINS = """import importlib
import torch
import tools


def main(config):
    model = importlib.import_module(config.model).Net()
    loss = model(torch.ones(2))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main(tools)
"""


@pytest.mark.parametrize("way", UNUSED_WAYS)
def test_wrappers_that_no_program_comes_to_change_nothing(way: str) -> None:
    files = {"tools": UNUSED_WAYS[way], "train": TRAINS}
    assert migrated(**files) == files
    name = "Wrapper" if way == "class" else "distribute"
    for use in (f"tools.{name}(model)\n", f"getattr(tools, '{name}')(model)\n"):
        used = migrated(tools=UNUSED_WAYS[way], train=TRAINS.replace("loss = ", f"model = {use}    loss = "))
        assert "clip_grad_norm_(" not in used["train"] and used["tools"] != files["tools"]
    said = migrated(**files, plan=f"NAMES = ['{name}']\n")
    assert "clip_grad_norm_(" not in said["train"] and said["tools"] != files["tools"]
    assert migrated(tools=files["tools"])["tools"] != files["tools"]  # a library: its users are not seen


AVERAGED = (
    HEAD
    + """from timm.utils import ModelEmaV3


class Task(nn.Module):
    def __init__(self, net, {parameter}):
        super().__init__()
        self.net = net
        self.ema = {initial}

    def setup(self):
        self.ema = ModelEmaV3(self.net)

    def distribute(self):
        self.net = DDP(self.net)

    def state_dict(self):
        return self.ema.module.norm_of()


def run(net, make):
    task = Task(net, make(net))
    task.setup()
    task.distribute()
    make(task)
    make(Task)
    return task.state_dict()
"""
)


def test_an_average_has_a_module_of_its_own() -> None:
    assert "self.ema.module.norm_of()" in migrated(train=AVERAGED.format(parameter="_", initial="None"))["train"]
    assert "unwrap(self.ema)" in migrated(train=AVERAGED.format(parameter="ema", initial="ema"))["train"]


FRESH = (
    HEAD
    + """class Net(nn.Module):
    def __init__(self, width, other=None):
        super().__init__()
        self.head, self.other = nn.Linear(width, width), other

    def freeze(self):
        self.head.weight.requires_grad_(False)
        return self.head.weight.sum()


def create(config, name):
    kind = {{"net": Net}}[name]
    net = kind(**config)
    return net, config


def run(config, unknown):
    net, _ = create(config, "net")
    old = create(config, "net")[0]
    {body}
    net, old = DDP(net), DDP(old)
    DDP(unknown.net)
    return net


def main(config, unknown):
    while True:
        run(config, unknown)


if __name__ == "__main__":
    main({{"width": 2}}, input())
"""
)


@pytest.mark.parametrize(
    "body",
    ["net.freeze()", "from timm.utils import ModelEma\\n    ema = ModelEma(net)".replace("\\n", "\n")],
)  # fmt: skip
def test_a_model_that_was_just_made_needs_nothing(body: str) -> None:
    assert body in migrated(train=FRESH.format(body=body))["train"]
    late = FRESH.format(body="pass").replace("    return net\n\n\ndef main", f"    {body}\n    return net\n\n\ndef main")
    assert body not in migrated(train=late)["train"]


def test_a_model_into_which_others_come_may_be_sharded() -> None:
    ema = "from timm.utils import ModelEma\n    mixed = Net(2, unknown.net)\n    ema = ModelEma(mixed)\n    DDP(mixed)"
    assert "ModelEma(as_plain(mixed))" in migrated(train=FRESH.format(body=ema))["train"]
    assert "ModelEma(mixed)" in migrated(train=FRESH.format(body=ema.replace("unknown.net", "None")))["train"]


GROUPS = (
    HEAD
    + """def groups(net):
    return {{name: p for name, p in net.named_parameters()}}


def optimizer_of(model):
    {inside}
    return torch.optim.SGD(groups(model).values(), lr=0.1)


def unwrapped(model):
    if hasattr(model, "module"):
        model = model.module
    return model


def run(net, options):
    model = DDP(net, **options)
    return optimizer_of({given})
"""
)


@pytest.mark.parametrize(("inside", "given"), [("pass", "model.module"), ("model = unwrapped(model)", "model")])
def test_names_inside_of_the_wrapper_have_no_prefix(inside: str, given: str) -> None:
    text = migrated(train=GROUPS.format(inside=inside, given=given))["train"]
    assert "for name, p in net.named_parameters()" in text
    assert "named_parameters(net)" in migrated(train=GROUPS.format(inside="pass", given="model"))["train"]


CLIPPED = """import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.sum()


def step(loss, optimizer, clip, parameters=None):
    loss.backward()
    if parameters is not None:
        {body}
    optimizer.step()


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DDP(Net().cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.ones(3, 2).cuda():
        step(model(x), optimizer, 1.0, parameters=model.parameters())


if __name__ == "__main__":
    main()
"""
CALL = "torch.nn.utils.clip_grad_norm_(parameters, clip)"


@pytest.mark.parametrize(
    ("body", "after"),
    [(CALL, CALL), (f"norm = {CALL}", f"norm = {CALL}"), (f"return {CALL}", f"return {CALL}"),
     (f"print({CALL})", f"print({CALL}.full_tensor())"), (f"norm = {CALL}\n        print(norm)", f"norm = {CALL}.full_tensor()")],
)  # fmt: skip
def test_torchs_own_function_clips_what_is_sharded_alike(body: str, after: str) -> None:
    text = migrated(train=CLIPPED.format(body=body))["train"]
    assert "fully_shard(" in text
    assert f"        {after}\n" in text
    assert "clip_grad_norm(parameters, clip)" in texts({"train": CLIPPED.format(body=body)}, blind=True)["train"]


def test_a_branch_beside_fsdp1s_own_clipping_is_for_plain_models() -> None:
    branches = """from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(config, model, loss):
    if config.shard:
        model = FSDP(model, **config.fsdp)
    loss(model).backward()
    if config.shard:
        {own}model.clip_grad_norm_(1.0)
    else:
        {other}torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    print(norm)
"""
    beside = migrated(train="import torch\n" + branches.format(own="", other=""))["train"]
    assert "clip_model_grad_norm(model, 1.0)" in beside and "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)" in beside
    used = migrated(train="import torch\n" + branches.format(own="norm = ", other="norm = "))["train"]
    assert "clip_grad_norm(model.parameters(), 1.0)" in used
    mixed = migrated(train=HEAD + branches.format(own="", other="") + "\n\ndef other(net):\n    return DDP(net)\n")["train"]
    assert "clip_grad_norm(model.parameters(), 1.0)" in mixed


TASK = (
    HEAD
    + """class Net(nn.Module):
    def forward(self, x):
        return x


class Task(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def distribute(self, options):
        self.net = DDP(self.net, **options)

    def prepare(self, x):
        return self.move(x)


def evaluate(task_or_model, x):
    return task_or_model.prepare(x)


def run(options, unknown, x):
    net = Net()
    task = Task(net)
    {distribute}
    DDP(unknown.net)
    return evaluate(task, x), evaluate(net, x)
"""
)


def test_methods_of_what_holds_a_model_in_ddp_are_its_own() -> None:
    text = migrated(train=TASK.format(distribute="task.distribute(options)"))["train"]
    assert "return task_or_model.prepare(x)" in text
    text = migrated(train=TASK.format(distribute="task = DDP(task, **options)"))["train"]
    assert 'forward_method(task_or_model, "prepare")(x)' in text


def test_names_of_a_module_that_ddp_got_and_of_one_in_fsdp1_have_no_prefix() -> None:
    more = "\n\ndef other(net, options):\n    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    more += "    return optimizer_of(FSDP(net, **options))\n"
    made = "def run(options):\n    net = nn.Linear(2, 2)\n"
    text = GROUPS.format(inside="pass", given="model.module").replace("def run(net, options):\n", made)
    assert "for name, p in net.named_parameters()" in migrated(train=text + more)["train"]


UPDATED = (
    HEAD
    + """from timm.utils import {average}


def step(model, average):
    average.update(model)


def run(net, options):
    average = {average}(net)
    model = {wrapper}(net, **options)
    step(model, average)
"""
)


def test_an_average_that_reads_a_state_dict_needs_no_copy() -> None:
    for average in ("ModelEma", "ModelEmaV2"):
        text = UPDATED.format(average=average, wrapper="DDP")
        assert "average.update(model)" in migrated(train=text)["train"]
        assert "    keep_state_dicts_whole(module)" in helpers(train=text)
    fsdp1 = UPDATED.replace("import torch\n", "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel\n", 1)
    for text in (UPDATED.format(average="ModelEmaV3", wrapper="DDP"),
                 fsdp1.format(average="ModelEma", wrapper="FullyShardedDataParallel")):  # fmt: skip
        assert "average.update(as_plain(model))" in migrated(train=text)["train"]


FIELDS = HEAD + """import dataclasses


class Sampler:
    def state_dict(self):
        return {"epoch": 1}


@dataclasses.dataclass
class Data:
    sampler: Sampler = dataclasses.field(metadata={"help": "order"})


def main(net, options, path):
    model, data = DDP(net, **options), Data(Sampler())
    torch.save(data.sampler.state_dict(), path)
"""


def test_a_field_of_a_dataclass_holds_what_its_objects_are_given() -> None:
    assert "torch.save(data.sampler.state_dict(), path)" in migrated(train=FIELDS)["train"]


def test_a_function_that_unwraps_by_another_one_asks_for_wrappers_alone() -> None:
    """It would call itself for ever with a model that has no wrapper to take off."""
    program = """
def inner(model):
    return model.module if hasattr(model, "module") else model


def unwrap_all(model):
    if isinstance(model, DDP):
        return unwrap_all(inner(model))
    return model


def run(net, options):
    model = DDP(net, **options)
    return unwrap_all(model)
"""
    assert "if isinstance(model, DDP):\n        return unwrap_all(inner(model))" in migrated(train=HEAD + program)["train"]


FILLED = HEAD + """def fill(layer):
    layer.weight.data[0] = 0.5


class Net(nn.Module):
    def __init__(self, {given}):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        {call}

    def forward(self, x):
        return self.layer(x)


def main(options):
    model = DDP(Net({value}), **options)
    {after}
"""


@pytest.mark.parametrize(
    ("given", "call", "value", "after", "is_needed"),
    [
        ("size", "fill(self.layer)", "4", "return model", False),
        ("size", "fill(self.layer)", "4", "fill(model.module.layer)", True),
        ("model", "fill(model)", "options", "return model", True),
    ],
)
def test_what_constructors_fill_is_still_plain(given: str, call: str, value: str, after: str, is_needed: bool) -> None:
    text = FILLED.format(given=given, call=call, value=value, after=after)
    assert ("compute_as_whole" in helpers(train=text)) == is_needed
