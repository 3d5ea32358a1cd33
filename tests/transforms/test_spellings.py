"""The same said in other words: each spelling is migrated to what its plain form is."""

from __future__ import annotations

import pytest
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

HEAD = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP
"""

NET = """class Net(torch.nn.Module):
    def generate(self, x):
        return x @ self.weight


"""


def migrated(text: str) -> str:
    source = Source.decode("train.py", text.encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert not analysis.errors
    return analysis.texts.get("train.py", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            'def f(net, kind):\n    model = FSDP(net)\n    with getattr(FSDP, "state_dict_type")(model, kind):\n        pass\n',
            "with state_dict_type(model, kind):",
            id="function of a class by its name",
        ),
        pytest.param(
            'name = "summon_full_params"\n\n\ndef f(net):\n    FSDP(net)\n    whole = getattr(FSDP, name)\n    return whole\n',
            "whole = full_parameters",
            id="function of a class by a name that a variable holds",
        ),
        pytest.param(
            "class Sharded(FSDP):\n    pass\n\n\ndef f(net, optimizer):\n    model = Sharded(net)\n"
            "    return Sharded.optim_state_dict(model, optimizer)\n",
            "return optim_state_dict(model, optimizer)",
            id="function of a class by one derived from it",
        ),
        pytest.param(
            "class Parallel(DDP):\n    pass\n\n\ndef f(net):\n    return unwrap(Parallel(net))\n\n\n"
            'def unwrap(model):\n    return model.module if hasattr(model, "module") else model\n',
            'return model.module if hasattr(model, "module") else model',
            id="a class derived from a wrapper keeps the module inside",
        ),
        pytest.param(
            "class Parallel(DDP):\n    pass\n\n\ndef f(net):\n    return unwrap(Parallel(net))\n\n\n"
            "def unwrap(model):\n    return model.module if isinstance(model, DDP) else model\n",
            "return model.module if isinstance(model, ShardedLikeDDP) else model",
            id="a class derived from a wrapper is told by its base",
        ),
        pytest.param(
            "def f(net):\n    with DDP.no_sync(DDP(net)):\n        pass\n",
            "with no_gradient_sync(shard_like_ddp(net)):",
            id="method called on the class",
        ),
        pytest.param(
            "class Net(torch.nn.Module):\n    def state_dict(self):\n        return torch.nn.Module.state_dict(self)\n\n\n"
            "def f():\n    return DDP(Net())\n",
            "    return torch.nn.Module.state_dict(self)",
            id="method of all modules, called by what overrides it",
        ),
        pytest.param(
            "def f(net):\n    model = DDP(net)\n    state = model.state_dict\n    return state()\n",
            'state = as_method(model, "state_dict", model_state)',
            id="method as a value",
        ),
        pytest.param(
            NET + 'def f(x):\n    model = DDP(Net())\n    return getattr(model.module, "generate")(x)\n',
            'return forward_method(model, "generate")(x)',
            id="a model's own method by its name",
        ),
        pytest.param(
            NET + "def f(x):\n    model = FSDP(Net())\n    generate = model.generate\n    return generate(x)\n",
            'generate = forward_method(model, "generate")',
            id="a model's own method as a value",
        ),
        pytest.param(
            "def f(net):\n    model = FSDP(net)\n    clip = model.clip_grad_norm_\n    return clip(1.0)\n",
            'clip = as_method(model, "clip_grad_norm_", clip_model_grad_norm)',
            id="method that sharded models lack, as a value",
        ),
        pytest.param(
            "def f(net):\n    model = FSDP(net)\n    whole = model.summon_full_params\n    return whole(model)\n",
            "whole = full_parameters",
            id="function of a class, read off a model",
        ),
        pytest.param(
            "class Trainer:\n    def __init__(self, net):\n        self.model = DDP(net)\n\n    def look(self, rank, x):\n"
            "        if rank == 0:\n            self.model(x)\n\n\nTrainer(torch.nn.Linear(1, 1)).look(0, 1)\n",
            "    with whole_on_each_rank(self.model):",
            id="model that is an attribute, called on rank 0",
        ),
        pytest.param(
            "def f(rank, x):\n    model = DDP(torch.nn.Linear(1, 1))\n    if rank == 0:\n        model.module(x)\n",
            "with whole_on_each_rank(model):",
            id="module inside, called on rank 0",
        ),
        pytest.param(
            "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.layer = FSDP(torch.nn.Linear(1, 1))\n\n\ndef f(path):\n    model = Net()\n"
            "    torch.save(model.state_dict(), path)\n",
            "torch.save(state_of(model), path)",
            id="state of a module with sharded parts",
        ),
        pytest.param(
            "import functools\n\n\ndef f(net):\n    clip = functools.partial(torch.nn.utils.clip_grad_norm_, max_norm=1.0)\n"
            "    return clip(DDP(net).parameters())\n",
            "clip = functools.partial(clip_grad_norm, max_norm=1.0)",
            id="function that is handed on",
        ),
        pytest.param(
            "import contextlib\n\n\n@contextlib.contextmanager\ndef held(model):\n    yield model\n\n\n"
            "def f(net, wrap):\n    FSDP(net)\n    with held(wrap(net)) as model:\n        return model.state_dict()\n",
            "    return state_of(model)",
            id="what a context of the program's own gives",
        ),
        pytest.param(
            "class Around:\n    def __init__(self, inner):\n        self.inner = inner\n\n    def __getattr__(self, name):\n"
            "        return getattr(self.inner, name)\n\n\ndef f(net, wrap):\n    FSDP(net)\n    model = Around(wrap(net))\n"
            "    return model.clip_grad_norm_(1.0)\n",
            "return clip_model_grad_norm(model, 1.0)",
            id="an object that hands attributes on",
        ),
        pytest.param(
            "def f(net, rank, path):\n    model = DDP(net)\n    optimizer = torch.optim.SGD(model.parameters())\n"
            '    if rank == 0:\n        torch.save(getattr(optimizer, "state_dict")(), path)\n',
            'optimizer_state_dict = getattr(optimizer, "state_dict")()',
            id="method by its name, on rank 0",
        ),
        pytest.param(
            "def f(net, rank, log):\n    model = DDP(net)\n    optimizer = torch.optim.SGD(model.parameters())\n"
            '    if rank == 0:\n        log(optimizer.state_dict()["param_groups"][0]["lr"])\n',
            '        log(optimizer.param_groups[0]["lr"])',
            id="a setting out of an optimizer's state",
        ),
        pytest.param(
            "def f(net, path):\n    model = DDP(net)\n    torch.save(getattr(model, \"state_dict\")(), path)\n",
            "torch.save(model_state(model), path)",
            id="method by its name, of the wrapper itself",
        ),
    ],
)
def test_spelling(text: str, expected: str) -> None:
    assert expected in migrated(HEAD + text).splitlines() or f"    {expected}" in migrated(HEAD + text).splitlines()


@pytest.mark.parametrize(
    ("definition", "test"),
    [
        pytest.param("def asked(rank):\n    return rank == 0\n", "asked(rank)", id="function"),
        pytest.param("", "(mine := torch.distributed.get_rank()) == 0", id="walrus"),
        pytest.param("asked = lambda rank: rank == 0\n", "asked(rank)", id="lambda"),
        pytest.param("class Tests:\n    def asked(self, rank):\n        return rank == 0\n", "Tests().asked(rank)", id="method"),
        pytest.param(
            "class Tests:\n    @staticmethod\n    def asked(rank):\n        return rank == 0\n", "Tests.asked(rank)", id="static"
        ),
        pytest.param(
            "class Tests:\n    def __init__(self, rank):\n        self.rank = rank\n\n"
            "    @property\n    def asked(self):\n        return self.rank == 0\n",
            "Tests(rank).asked",
            id="property",
        ),
    ],
)
def test_rank_condition_in_other_words(definition: str, test: str) -> None:
    text = f"{definition}\n\ndef f(net, rank, x):\n    model = DDP(net)\n    if {test}:\n        model(x)\n\n\nf(1, 2, 3)\n"
    assert "    with whole_on_each_rank(model):" in migrated(HEAD + text).splitlines()


@pytest.mark.parametrize("used", ["once", "once(times=2)"])
def test_decorator_that_calls_on_some_ranks(used: str) -> None:
    text = (
        "import functools\n\n\ndef once(function=None, times=1):\n    if function is None:\n"
        "        return functools.partial(once, times=times)\n\n"
        "    def inner(*args, **kwargs):\n        if torch.distributed.get_rank() == 0:\n"
        "            return function(*args, **kwargs)\n    return inner\n\n\n"
        f"@{used}\ndef save(model):\n    torch.save(model.state_dict(), 1)\n\n\nsave(DDP(torch.nn.Linear(1, 1)))\n"
    )
    assert "@holding_whole(lambda model, *_, **__: (model,))" in migrated(HEAD + text).splitlines()


def test_rank_guard_in_a_file_without_any_other_site() -> None:
    texts = {
        "evaluation.py": "def evaluate(model, rank, x):\n    if rank != 0:\n        return None\n    return model(x)\n",
        "train.py": f"{HEAD}from evaluation import evaluate\n\nmodel = DDP(torch.nn.Linear(1, 1))\nevaluate(model, 0, 1)\n",
    }
    sources = {path: Source.decode(path, text.encode()) for path, text in texts.items()}
    facts = [extract(source) for source in sources.values()]
    analysis = analyse(facts, sources.__getitem__, Options(target_torch=(2, 13)), paths=list(sources))
    assert "    with whole_on_each_rank(model):\n        if rank != 0:" in analysis.texts["evaluation.py"]


def test_a_wrapper_around_a_hook_is_a_stop_as_the_hook_is() -> None:
    code = HEAD + "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook as power\n"
    code += "model = DDP(torch.nn.Linear(2, 2))\nstate = power.PowerSGDState(None)\n"
    code += "model.register_comm_hook(state, default_hooks.fp16_compress_wrapper(power.powerSGD_hook))\n"
    source = Source.decode("train.py", code.encode())
    found = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"]).findings
    assert [finding.level.value for finding in found if finding.rule == "FS304"] == ["manual"]


def test_a_hook_of_the_repositorys_own_is_a_stop() -> None:
    code = HEAD + "def mine(state, bucket):\n    return bucket\n\n\nmodel = DDP(torch.nn.Linear(2, 2))\n"
    source = Source.decode("train.py", (code + "model.register_comm_hook(None, mine)\n").encode())
    found = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"]).findings
    [stop] = [finding for finding in found if finding.rule == "FS304"]
    assert (stop.level.value, "mine" in stop.message) == ("manual", True)


def test_a_handle_of_what_a_test_says_is_a_unit_is_a_stop() -> None:
    code = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\ndef norms(model):\n"
    code += "    for unit in model.modules():\n        if isinstance(unit, FSDP) and unit._handle is not None:\n"
    code += "            print(unit._handle.flat_param)\n\n\nmodel = FSDP(build())\nnorms(model)\n"
    source = Source.decode("train.py", code.encode())
    found = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"]).findings
    assert (7, "manual") in [(f.line, f.level.value) for f in found if f.rule == "FS610"]


def test_a_handle_that_is_asked_whether_it_shards() -> None:
    code = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\ndef free(unit):\n"
    code += "    if isinstance(unit, FSDP) and unit._handle.uses_sharded_strategy:\n        print(1)\n\n\nfree(FSDP(build()))\n"
    assert "and (isinstance(unit, FSDPModule) or unit._handle.uses_sharded_strategy):" in migrated(code)


def test_a_sharded_model_has_no_logs_of_ddp() -> None:
    new = migrated(HEAD + "model = DDP(torch.nn.Linear(2, 2))\nprint(model._get_ddp_logging_data().get('x'))\n")
    assert 'print(getattr(model, "_get_ddp_logging_data", dict)().get(\'x\'))' in new


def test_a_wrapper_that_a_variable_holds_is_replaced_where_it_is_named() -> None:
    new = migrated(HEAD + "def wrap(net, options):\n    kind = DDP\n    return kind(net, **options)\n\n\nwrap(build(), {})\n")
    assert "    kind = shard_like_ddp\n    return kind(net, **options)\n" in new


def test_what_an_earlier_run_has_laid_out_is_laid_out() -> None:
    code = HEAD + "def average(model, other):\n    for own, p in pairs(model, other):\n"
    code += "        own.mul_(0.9).add_({given}, alpha=0.1)\n\n\ndef pairs(model, other):\n"
    code += "    for name, p in model.named_parameters():\n        yield other[name], p\n\n\n"
    code += "average(FSDP(build(), use_orig_params=True), {})\n"
    assert "add_(laid_out_like(p, own), alpha" in migrated(code.replace("{given}", "p"))
    earlier = "from fsdp2_helpers import laid_out_like\n" + code.replace("{given}", "laid_out_like(p, own)")
    assert "add_(laid_out_like(p, own), alpha" in migrated(earlier)


@pytest.mark.parametrize(("kind", "level"), [("FP16_COMPRESS", "review"), ("POWER_SGD", "manual")])
def test_hooks_that_are_registered_by_their_type(kind: str, level: str) -> None:
    code = HEAD + "from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook\n"
    code += f"model = DDP(torch.nn.Linear(2, 2))\nregister_ddp_comm_hook(DDPCommHookType.{kind}, model)\n"
    source = Source.decode("train.py", code.encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert f"register_comm_hook_type(DDPCommHookType.{kind}, model)\n" in analysis.texts["train.py"]
    assert [finding.level.value for finding in analysis.findings if finding.rule == "FS304"] == [level]
