"""Objects of classes with code that is not seen, which keep a sharded model and are handed on behind a guard."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated
from to_fsdp2.transforms.findings import Level

SAVES = HEAD + """import torch.distributed as dist
from fvcore.common.checkpoint import Checkpointer, PeriodicCheckpointer


class Saver(Checkpointer):
    def add(self, name):
        self.name = name


class Plain:
    def __init__(self, model):
        self.model = model


class Periodic(PeriodicCheckpointer):
    pass


def run(net, cfg):
    model = DDP(net)
    saver = {made}
    hooks = []
    if dist.get_rank() == 0:
        hooks.append({handed})
    return hooks
"""


@pytest.mark.parametrize(
    ("made", "handed", "told"),
    [
        ("Saver(model, cfg.path)", "Periodic(saver, cfg.period)", True),
        ("Saver(cfg.path)", "Periodic(saver, cfg.period)", False),
        ("Saver(model, cfg.path)", "Plain(saver)", False),
        ("Plain(model)", "Periodic(saver, cfg.period)", False),
    ],
)
def test_what_code_out_of_sight_may_save_on_one_rank_is_told(made: str, handed: str, told: bool) -> None:
    found = [f for f in findings(train=SAVES.format(made=made, handed=handed)) if f.rule == "FS414"]
    assert [f.level for f in found if "out of sight" in f.message] == ([Level.MANUAL] if told else [])


CHOSEN = HEAD + """import torch.distributed as dist
from monai.handlers import CheckpointSaver, StatsHandler
from fvcore.common.checkpoint import Checkpointer


class Saver(Checkpointer):
    pass


def run(net, trainer):
    model = DDP(net)
    handlers = [StatsHandler(), {made}]
    trainer.attach({chosen})
"""
SAVER = "CheckpointSaver(save_dict={'net': model})"


@pytest.mark.parametrize(
    ("made", "chosen", "told"),
    [
        (SAVER, "handlers if dist.get_rank() == 0 else None", True),
        (SAVER, "handlers if trainer.saves else None", False),
        ("CheckpointSaver(save_dict={'step': 3})", "handlers if dist.get_rank() == 0 else None", False),
    ],
)
def test_what_a_library_made_with_a_model_is_told_where_some_ranks_alone_have_it(made: str, chosen: str, told: bool) -> None:
    found = [f for f in findings(train=CHOSEN.format(made=made, chosen=chosen)) if f.rule == "FS414"]
    assert [f.level for f in found if "out of sight" in f.message] == ([Level.MANUAL] if told else [])


@pytest.mark.parametrize("method", ["load", "save"])
def test_own_classes_after_a_librarys_checkpointer_save_with_the_model_whole(method: str) -> None:
    """One that saves by itself is looked into."""
    program = CHOSEN.format(made="None", chosen="None").replace("    pass\n", f"    def {method}(self):\n        pass\n")
    program += "    saver = Saver(model)\n    saver.save('last')\n"
    assert any(f.rule == "FS417" for f in findings(train=program)) == (method == "load")


@pytest.mark.parametrize(("use", "saves"), [("saver.load('last')", False), ("saver.save('last')", True), ("keep(saver)", True)])
def test_a_checkpointer_that_only_loads_stays(use: str, saves: bool) -> None:
    program = CHOSEN.format(made="None", chosen="None") + f"    saver = Saver(model)\n    {use}\n"
    assert any(f.rule == "FS417" and f.level is Level.REVIEW for f in findings(train=program)) is saves


MADE = HEAD + """import torch.distributed as dist
from timm.utils import CheckpointSaver


def run(net, batches, optimizer_of):
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saver = None
    if dist.get_rank() == 0:
        saver = CheckpointSaver({given})
    for x in batches:
        model(x).sum().backward()
        optimizer.step()
        if saver is not None:
            saver.save_checkpoint(0)
"""


@pytest.mark.parametrize("given", ["model, optimizer", "model=model, optimizer=optimizer"])
def test_what_is_kept_is_held_where_it_is_worked_on(given: str) -> None:
    text = migrated(train=MADE.format(given=given))["train"]
    assert "    saver = None\n    if dist.get_rank() == 0:\n" in text
    assert "        with whole_on_each_rank(model, optimizer):\n            if saver is not None:\n" in text


SAMPLES = HEAD + """import torch.distributed as dist
from diffusers import DiffusionPipeline
from transformers import pipeline


class Animation(DiffusionPipeline):
    def __init__(self, net, size):
        super().__init__()
        self.register_modules(net=net)
        self.size = size

    def __call__(self, x):
        return self.net(x)


class Size:
    def __init__(self, net):
        self.size = len(list(net.parameters()))

    def __call__(self, x):
        return self.size


def show(pipe, x):
    return pipe(x)


def run(net, batches):
    pipe = {made}
    model = DDP(net)
    for x in batches:
        model(x).sum().backward()
        if dist.get_rank() == 0:
            {used}
"""
HELD = ":\n            if dist.get_rank() == 0:\n"


@pytest.mark.parametrize("used", ["pipe(x)", "show(pipe, x)"])
@pytest.mark.parametrize(
    ("made", "is_held"),
    [
        ("DiffusionPipeline.from_pretrained('x', net=net)", True),
        ("pipeline('text', model=net)", True),
        ("Animation(net, 2)", True),
        ("Animation(None, 2)", False),
        ("pipeline('text', model='gpt2')", False),
        ("Size(net)", False),
    ],
)
def test_what_a_library_made_with_a_model_runs_it_where_it_is_called(made: str, is_held: bool, used: str) -> None:
    assert (HELD in migrated(train=SAMPLES.format(made=made, used=used))["train"]) == is_held


BENCHMARKS = HEAD + """import torch.distributed as dist
from tools import get_class


def benchmark(name, conf, model):
    {work}


def run(net, names, conf):
    model = DDP(net)
    for epoch in range(3):
        if dist.get_rank() == 0:
            for name in names:
                benchmark(name, conf, model.eval())
        train(model)
"""


@pytest.mark.parametrize(
    ("work", "is_held"),
    [
        ("return get_class(name)(conf).run(conf, model=model)", True),
        ("return Table().run(conf, model=model)", False),
        ("return get_class.is_parallel(model)", False),
        ("return setattr(model, 'name', name)", False),
    ],
)
def test_a_model_that_goes_out_of_sight_in_a_function_of_one_rank_is_whole(work: str, is_held: bool) -> None:
    table = "\n\nclass Table:\n    def run(self, conf, model):\n        return len(conf)\n"
    text = migrated(train=BENCHMARKS.format(work=work) + table)["train"]
    assert ("whole_on_each_rank(model)" in text) == is_held
