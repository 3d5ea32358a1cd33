"""The nine forms of ``no_sync``, and where the flag is read: what each becomes."""

from __future__ import annotations

import textwrap

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

WRAP = """\
from contextlib import ExitStack, nullcontext

from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(build(), broadcast_buffers=False)
"""


def migrate(body: str, wrap: str = WRAP) -> tuple[str, set[Level]]:
    """The body after the wrap, migrated, and the levels of what was said about no_sync."""
    analysis, results = analyse_texts({"train.py": wrap + body})
    levels = {f.level for f in analysis.findings if f.rule in ("FS301", "FS302")}
    return results["train.py"], levels


def test_a_plain_block_is_taken_out_of_its_with() -> None:
    text, levels = migrate("with model.no_sync():\n    # accumulate\n    model(x).backward()\n")
    assert text.endswith(
        "model.set_requires_gradient_sync(False)\n# accumulate\nmodel(x).backward()\n"
        "model.set_requires_gradient_sync(True)\n"
    )
    assert levels == {Level.SAFE}


def test_a_block_that_is_left_early_restores_the_switch() -> None:
    text, _ = migrate(
        "for x in data:\n    with model.no_sync():\n"
        "        if bad(x):\n            break\n        model(x).backward()\n"
    )
    assert "    try:\n        if bad(x):\n            break\n" in text
    assert text.endswith("    finally:\n        model.set_requires_gradient_sync(True)\n")


def test_a_string_over_lines_is_not_moved() -> None:
    body = 'with model.no_sync():\n    log("""a\n    b""")\n    model(x).backward()\n'
    text, _ = migrate(body)
    assert 'log("""a\n    b""")' in text
    assert "with model.no_sync()" not in text


@pytest.mark.parametrize(
    ("context", "value"),
    [
        ("nullcontext() if last else model.no_sync()", "last"),
        ("model.no_sync() if not last else nullcontext()", "last"),
        ("model.no_sync() if i < n - 1 else nullcontext()", "i >= n - 1"),
        ("model.no_sync() if i % n and more else nullcontext()", "not (i % n and more)"),
    ],
)
def test_a_choice_becomes_one_call(context: str, value: str) -> None:
    text, levels = migrate(f"for i in data:\n    with {context}:\n        model(i).backward()\n")
    assert text.endswith(f"for i in data:\n    model.set_requires_gradient_sync({value})\n    model(i).backward()\n")
    assert levels == {Level.SAFE}


def test_a_variable_for_the_context_goes() -> None:
    text, _ = migrate(
        "for i in data:\n    if last(i):\n        context = nullcontext\n    else:\n        context = model.no_sync\n"
        "    with context():\n        model(i).backward()\n"
    )
    assert text.endswith(
        "    if last(i):\n        model.set_requires_gradient_sync(True)\n"
        "    else:\n        model.set_requires_gradient_sync(False)\n    model(i).backward()\n"
    )


def test_a_variable_becomes_a_flag_where_plain_models_come_by() -> None:
    body = (
        "def step(net, data):\n    for i in data:\n        context = net.no_sync\n"
        "        if last(i):\n            context = nullcontext\n"
        "        with context():\n            net(i).backward()\n\n\nstep(model, data)\nstep(build(), data)\n"
    )
    text, _ = migrate(body)
    assert (
        "        sync_gradients = False\n        if last(i):\n            sync_gradients = True\n"
        "        if isinstance(net, FSDPModule):\n            net.set_requires_gradient_sync(sync_gradients)\n"
        "        net(i).backward()\n"
    ) in text


def test_another_context_beside_it_stays() -> None:
    text, _ = migrate("with model.no_sync(), autocast():\n    model(x).backward()\n")
    assert "model.set_requires_gradient_sync(False)\nwith autocast():\n    model(x).backward()\n" in text
    assert text.endswith("model.set_requires_gradient_sync(True)\n")


def test_an_exit_stack_gets_a_restoring_context() -> None:
    text, levels = migrate(
        "with ExitStack() as stack:\n    stack.enter_context(model.no_sync())\n    model(x).backward()\n"
    )
    assert "stack.enter_context(no_gradient_sync(model))" in text
    assert text.index("def no_gradient_sync(model):") < text.index("with ExitStack()")
    assert levels == {Level.REVIEW}


def test_ddp_reads_its_flag_in_the_forward() -> None:
    text, levels = migrate(
        "for x in data:\n    with model.no_sync():\n        loss = model(x)\n    loss.backward()\n    count += 1\n"
    )
    assert text.endswith(
        "    model.set_requires_gradient_sync(False)\n    loss = model(x)\n    loss.backward()\n"
        "    model.set_requires_gradient_sync(True)\n    count += 1\n"
    )
    assert levels == {Level.REVIEW}


def test_fsdp1_reads_its_flag_in_the_backward() -> None:
    wrap = WRAP.replace("torch.nn.parallel import DistributedDataParallel as DDP", "torch.distributed.fsdp import "
                        "FullyShardedDataParallel as DDP").replace(", broadcast_buffers=False", "")  # fmt: skip
    body = "for x in data:\n    with model.no_sync():\n        loss = model(x)\n    loss.backward()\n"
    text, levels = migrate(body, wrap)
    assert text.endswith("for x in data:\n    loss = model(x)\n    loss.backward()\n")
    assert levels == {Level.REVIEW}


def test_a_forward_whose_backward_is_not_seen_holds_the_group() -> None:
    body = "with model.no_sync():\n    losses.append(model(x))\n"
    text, levels = migrate(body)
    assert text == WRAP + body
    assert levels == {Level.MANUAL}


def test_a_backward_behind_the_block_keeps_its_own_setting() -> None:
    text, _ = migrate(
        "for i in data:\n    with model.no_sync() if i else nullcontext():\n"
        "        model(i).backward()\n    aux.backward()\n"
    )
    assert "with no_gradient_sync(model) if i else nullcontext():" in text


def test_plain_models_are_asked_for() -> None:
    text, _ = migrate(
        "def build_model(cfg):\n    net = build()\n    if cfg.wrap:\n        net = DDP(net)\n    return net\n\n\n"
        "def step(cfg, last):\n    net = build_model(cfg)\n    net.require_backward_grad_sync = last\n",
        WRAP.partition("model = ")[0],
    )
    assert "    if isinstance(net, FSDPModule):\n        net.set_requires_gradient_sync(last)\n" in text


def test_a_flag_that_decides_holds_the_group() -> None:
    body = "if model.require_backward_grad_sync:\n    optimizer.step()\n"
    text, levels = migrate(body)
    assert text == WRAP + body
    assert levels == {Level.MANUAL}


@pytest.mark.parametrize(
    "body",
    [
        "for x in batch[:-1]:\n    with model.no_sync() if flag else nullcontext():\n        model(x).backward()\n"
        "model(batch[-1]).backward()\n",
        "def first(x, last):\n    with nullcontext() if last else model.no_sync():\n        model(x).backward()\n\n\n"
        "def second(x):\n    model(x).backward()\n",
    ],
)
def test_a_choice_restores_the_switch_where_another_backward_relies_on_it(body: str) -> None:
    text, levels = migrate(body)
    assert "set_requires_gradient_sync(flag)" not in text
    assert "no_gradient_sync(model)" in text
    assert levels == {Level.REVIEW}


@pytest.mark.parametrize(
    ("wraps", "guarded"),
    [
        ("if ddp:\n    if gpu is None:\n        net = DDP(net)\n    else:\n        net = DDP(net, dim=0)\n", False),
        ("if ddp:\n    if gpu is None:\n        pass\n    else:\n        net = DDP(net, dim=0)\n", True),
    ],
)
def test_the_condition_of_the_wrap_is_the_guard(wraps: str, guarded: bool) -> None:
    use = "for x in data:\n    if ddp:\n        net.require_backward_grad_sync = last(x)\n"
    text, _ = migrate(f"net = build()\n{wraps}{use}", WRAP.partition("model = ")[0])
    assert ("isinstance(net, FSDPModule)" in text) == guarded


MODULES = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


class Brain:
    def __init__(self, modules):
        self.modules = torch.nn.ModuleDict(modules).to("cuda")

    def wrap(self):
        for name, module in self.modules.items():
            self.modules[name] = DDP(module)

    def pause(self, others):
        kept = []
        for module in {modules}.values():
            if not hasattr(module, "require_backward_grad_sync"):
                continue
            kept.append(module.require_backward_grad_sync)
            module.require_backward_grad_sync = False
        return kept
"""


def test_test_and_switch_of_the_modules_of_a_dict_change_together() -> None:
    _, results = analyse_texts({"train.py": MODULES.replace("{modules}", "self.modules")})
    assert "if not isinstance(module, FSDPModule):" in results["train.py"]
    assert "module.set_requires_gradient_sync(False)" in results["train.py"]


def test_test_stays_where_nothing_says_whose_the_switch_is() -> None:
    wrap = "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\nmodel = DDP(torch.nn.Linear(2, 2))\n"
    pause = textwrap.dedent(MODULES[MODULES.index("    def pause") :].replace("{modules}", "others"))
    analysis, results = analyse_texts({"one.py": wrap, "two.py": wrap, "pause.py": pause})
    assert results["pause.py"] == pause
    levels = {f.level for f in analysis.findings if f.rule in ("FS302", "FS602")}
    assert levels == {Level.MANUAL}


def test_gradients_that_are_reduced_by_hand_need_a_person() -> None:
    text = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, optimizer_of, data):
    model = DDP(net)
    optimizer = optimizer_of(model.parameters())
    for batch in data:
        with model.no_sync():
            model(batch).sum().backward()
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    dist.all_reduce(p.grad)
        optimizer.step()
"""
    analysis, results = analyse_texts({"train.py": text})
    assert "with model.no_sync():" in results["train.py"], "which raises on an FSDP2 model"
    finding = next(f for f in analysis.findings if f.rule == "FS301")
    assert finding.level is Level.MANUAL and "reduced by hand" in finding.message


def test_the_helper_stands_in_front_of_a_use_by_name() -> None:
    text, _ = migrate('quiet = getattr(model, "no_sync", nullcontext)\nwith quiet():\n    model(x).backward()\n')
    assert "def no_gradient_sync(" in text
    assert text.index("def no_gradient_sync(") < text.index("quiet = ")


_SAVED = """\
import torch
from contextlib import contextmanager
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(torch.nn.Linear(2, 2), broadcast_buffers=False)


@contextmanager
def pause():
    {save}
    model.require_backward_grad_sync = False
    yield
    {restore}
"""


@pytest.mark.parametrize(
    ("save", "restore"),
    [
        ("kept = model.require_backward_grad_sync", "model.require_backward_grad_sync = kept"),
        (
            "kept = []\n    kept.append(model.require_backward_grad_sync)",
            "i = 0\n    model.require_backward_grad_sync = kept[i]\n    i += 1",
        ),
    ],
)
def test_a_flag_that_is_put_away_is_switched_on_again(save: str, restore: str) -> None:
    text = analyse_texts({"train.py": _SAVED.format(save=save, restore=restore)})[1]["train.py"]
    assert text.endswith(
        "def pause():\n    model.set_requires_gradient_sync(False)\n    yield\n    model.set_requires_gradient_sync(True)\n"
    )


def test_a_list_of_flags_that_something_else_reads_stays() -> None:
    save = "kept = []\n    kept.append(model.require_backward_grad_sync)"
    restore = "model.require_backward_grad_sync = kept[0]\n    print(kept)"
    text = analyse_texts({"train.py": _SAVED.format(save=save, restore=restore)})[1]["train.py"]
    assert "kept.append(True)" in text and "model.set_requires_gradient_sync(kept[0])" in text


def test_models_that_stay_under_ddp_elsewhere_are_named() -> None:
    body = (
        "def step(net, data):\n    for i in data:\n        with nullcontext() if last(i) else net.no_sync():\n"
        "            net(i).backward()\n\n\nstep(model, data)\n"
    )
    said = []
    for caller in ("", "step(wrap_elsewhere(), data)\n"):
        analysis, _ = analyse_texts({"train.py": WRAP + body + caller})
        said.append(["other code leaves under DDP" in f.message for f in analysis.findings if f.rule == "FS301"])
    assert said == [[False], [True]]
