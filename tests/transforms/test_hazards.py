"""Programs whose rewrite would run and train otherwise: each is held back, or rewritten so that it does not."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

HEAD = """\
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.scale * self.head(self.body(x))


"""
MODEL = "model = DDP(Net())\n"
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
BACKWARD = "model(batch).sum().backward()\n"

HELD = {
    "names cut from the left": (
        "FS608", 'groups = {n: n.split(".")[1] for n, p in model.named_parameters()}\n'
    ),
    "names that never matched": (
        "FS608", 'for n, p in model.named_parameters():\n    p.requires_grad = n.startswith("head")\n'
    ),
    "random initialisation": ("FS704", "for p in model.parameters():\n    nn.init.normal_(p)\n"),
    "initialiser applied to all modules": (
        "FS704",
        "def initialise(m):\n    if isinstance(m, nn.Linear):\n        nn.init.xavier_uniform_(m.weight)\n"
        "model.apply(initialise)\n",
    ),
    "gradient noise": ("FS704", BACKWARD + "for p in model.parameters():\n    p.grad.add_(torch.randn_like(p.grad))\n"),
    "NaN guard over any()": (
        "FS701", BACKWARD + "if any(torch.isnan(p.grad).any() for p in model.parameters()):\n    raise SystemExit\n"
    ),
    "NaN guard through a name": (
        "FS701",
        BACKWARD + "for p in model.parameters():\n    bad = torch.isnan(p.grad).any()\n    if bad:\n        break\n",
    ),
    "a norm read by one rank": (
        "FS701",
        "if dist.get_rank() == 0:\n    for p in model.parameters():\n        print(p.norm().item())\n",
    ),
    "a norm read by one rank, behind a decorator": (
        "FS701",
        "def rank_zero_only(function):\n    def wrapped(*args):\n        if dist.get_rank() == 0:\n"
        "            return function(*args)\n    return wrapped\n\n\n@rank_zero_only\ndef report(model):\n"
        "    for p in model.parameters():\n        print(p.norm().item())\n\n\nreport(model)\n",
    ),
    "the mean of a loss function over a parameter": (
        "FS702", "for p in model.parameters():\n    print(torch.nn.functional.mse_loss(p, torch.zeros_like(p)))\n"
    ),
    "averages saved by one rank": (
        "FS702",
        "shadow = {n: p.detach().clone() for n, p in model.named_parameters()}\n"
        'if dist.get_rank() == 0:\n    torch.save(shadow, "ema.pt")\n',
    ),
    "hooks on parameters": ("FS702", "for p in model.parameters():\n    p.register_hook(lambda g: g * 2)\n"),
    "a row that is set to zero": ("FS702", "with torch.no_grad():\n    model.module.head.weight[0].zero_()\n"),
    "rows that are scaled": ("FS702", "with torch.no_grad():\n    for p in model.parameters():\n        p[:2] *= 0.5\n"),
    "a row by its name": (
        "FS702", "for p in model.parameters():\n    row = p.data.select(0, 1)\n    row.fill_(0)\n"
    ),
    "a row that is initialised": ("FS702", "nn.init.zeros_(model.module.head.weight[0])\n"),
    "hooks on accumulated gradients": (
        "FS702", "for p in model.parameters():\n    p.register_post_accumulate_grad_hook(lambda p: p.grad.clamp_(-1, 1))\n"
    ),
    "no_sync around one of two forwards": (
        "FS301",
        "with model.no_sync():\n    a = model(batch).sum()\nb = model(batch).sum()\n(a + b).backward()\n",
    ),
    "weights put back through data by an optimizer of the repository": (
        "FS702",
        "class Sharp(torch.optim.Optimizer):\n    def step(self):\n        for group in self.param_groups:\n"
        '            for p in group["params"]:\n                p.data = self.state[p]["old"]\n\n\n'
        "optimizer = Sharp(model.parameters(), {})\n",
    ),
    "lists of parameters written to behind an evaluation": (
        "FS309",
        "weights = list(model.parameters())\n" + BACKWARD
        + "with torch.no_grad():\n    model(batch)\n    for w in weights:\n        w.clamp_(-1, 1)\n",
    ),
    "LBFGS": ("FS504", "optimizer = torch.optim.LBFGS(model.parameters())\n"),
    "gradient penalty": (
        "FS310",
        "out = model(batch)\n(g,) = torch.autograd.grad(out.sum(), batch, create_graph=True)\n"
        "(out.mean() + g.pow(2).mean()).backward()\n",
    ),
    "gradient penalty in a function that is given the scores": (
        "FS310",
        "def penalty(scores, inputs):\n"
        "    return torch.autograd.grad(scores.sum(), inputs, create_graph=True)[0].pow(2).mean()\n\n\n"
        "out = model(batch)\n(out.mean() + penalty(out, batch)).backward()\n",
    ),
    "functional_call": (
        "FS310",
        "params = dict(model.module.named_parameters())\n"
        "torch.func.functional_call(model.module, params, (batch,)).sum().backward()\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_a_silent_hazard_holds_the_group(name: str) -> None:
    rule, body = HELD[name]
    text = HEAD + MODEL + body
    analysis, results = analyse_texts({"train.py": text})
    assert rule in {finding.rule for finding in analysis.findings if finding.level is Level.MANUAL}
    assert results["train.py"] == text


REWRITTEN = {
    "names with DDP's prefix": (
        "FS608",
        'head = [p for n, p in model.named_parameters() if n.startswith("module.head")]\n',
        'head = [p for n, p in model.named_parameters() if n.startswith("head")]\n',
    ),
    "names in a set": (
        "FS608",
        'for n, p in model.named_parameters():\n    p.requires_grad = n in {"module.head.weight", "module.head.bias"}\n',
        'for n, p in model.named_parameters():\n    p.requires_grad = n in {"head.weight", "head.bias"}\n',
    ),
    "prefix cut off by its length": (
        "FS608",
        "names = [n[len(\"module.\"):] for n, p in model.named_parameters()]\n",
        "names = [n for n, p in model.named_parameters()]\n",
    ),
    "gradients cleared by hand behind an evaluation": (
        "FS309",
        OPTIMIZER + BACKWARD
        + "optimizer.step()\nwith torch.no_grad():\n    model(batch)\nfor p in model.parameters():\n    p.grad = None\n",
        "        module.reshard()\nfor p in model.parameters():\n    p.grad = None\n",
    ),
    "gradients cleared between forward and backward, in a helper": (
        "FS309",
        "def clear(m):\n    for p in m.parameters():\n        p.grad = None\n\n\n"
        "loss = model(batch).sum()\nclear(model)\nloss.backward()\n",
        "            module.reshard()\n    for p in m.parameters():\n        p.grad = None\n",
    ),
    "weights clipped behind an evaluation": (
        "FS309",
        BACKWARD + "with torch.no_grad():\n    model(batch)\nfor p in model.parameters():\n    p.data.clamp_(-1, 1)\n",
        "        module.reshard()\nfor p in model.parameters():\n    p.data.clamp_(-1, 1)\n",
    ),
    "a layer written to behind an evaluation": (
        "FS309",
        BACKWARD + "with torch.no_grad():\n    model(batch)\nmodel.module.head.weight.data.mul_(0.5)\n",
        "        module.reshard()\nmodel.head.weight.data.mul_(0.5)\n",
    ),
    "weights restored behind an evaluation, by a helper": (
        "FS309",
        "def restore(parameters):\n    for kept, p in zip(saved, parameters):\n        p.data.copy_(kept)\n\n\n"
        "saved = [p.clone() for p in model.parameters()]\nwith torch.no_grad():\n    model(batch)\nrestore(model.parameters())\n",
        "        module.reshard()\nrestore(model.parameters())\n",
    ),
    "moments read off the optimizer": (
        "FS701",
        "optimizer = torch.optim.Adam(model.parameters())\n" + BACKWARD + "optimizer.step()\n"
        "for p in model.parameters():\n    state = optimizer.state[p]\n"
        '    print(state["exp_avg"].norm().item(), state["step"].item())\n',
        'print(state["exp_avg"].norm().full_tensor().item(), state["step"].item())\n',
    ),
    "gradients of an optimizer's groups": (
        "FS701",
        OPTIMIZER + BACKWARD + "for group in optimizer.param_groups:\n    for p in group['params']:\n"
        "        print(p.grad.norm().item())\n",
        "        print(p.grad.norm().full_tensor().item())\n",
    ),
    "a number that may be plain": (
        "FS701",
        'values = {"loss": model(batch).sum()}\nfor n, p in model.named_parameters():\n    values[n] = p.norm()\n'
        "for n, value in values.items():\n    print(n, float(value))\n",
        "float((value.full_tensor() if isinstance(value, DTensor) else value))",
    ),
    "a parameter of the model's own": (
        "FS701",
        "print(model.module.scale.item())\n", "print(model.scale.full_tensor().item())\n",
    ),
    "a helper for all tensors": (
        "FS701",
        "def rms(tensor):\n    return tensor.pow(2).mean().item()\n\n\nprint(rms(model.module.head.weight), rms(batch))\n",
        "(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).pow(2).mean().item()",
    ),
    "a temperature as it is used": (
        "FS701", "print(model.module.scale.exp().item())\n", "print(model.scale.exp().full_tensor().item())\n",
    ),
    "the norm of a layer's weight": (
        "FS701", "print(model.module.head.weight.norm().item())\n", "print(model.head.weight.norm().full_tensor().item())\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REWRITTEN)
def test_a_hazard_with_a_way_out_is_rewritten(name: str) -> None:
    rule, body, expected = REWRITTEN[name]
    analysis, results = analyse_texts({"train.py": HEAD + MODEL + body})
    levels = {finding.level for finding in analysis.findings if finding.rule == rule}
    assert Level.REVIEW in levels
    assert expected in results["train.py"]
    assert "fully_shard(model" in results["train.py"]


HARMLESS = {
    "columns that are set to zero": "with torch.no_grad():\n    for p in model.parameters():\n        p[:, 1].zero_()\n",
    "settings of groups that are kept by their kind": (
        'import collections\n\ngroups = collections.defaultdict(lambda: {"params": []})\nfor n, p in model.named_parameters():\n'
        '    groups["norm" in n]["params"].append(p)\n'
        'for group in groups.values():\n    group["foreach"] = True\n'
    ),
    "optimizer state that is moved to a device": (
        "optimizer = torch.optim.AdamW(model.parameters())\nfor state in optimizer.state.values():\n"
        "    for key, value in state.items():\n        if isinstance(value, torch.Tensor):\n"
        '            state[key] = value.to("cpu")\n'
    ),
    "endings and parts of names": (
        'decay = [p for n, p in model.named_parameters() if not n.endswith(".bias") and "norm" not in n]\n'
    ),
    "the last part of a name": 'last = {n.split(".")[-1] for n, p in model.named_parameters()}\n',
    "fixed initialisation": "for p in model.parameters():\n    nn.init.zeros_(p)\n",
    "gradients scaled by a number": BACKWARD + "for p in model.parameters():\n    p.grad.mul_(min(1.0, scale))\n",
    "an average of parameters": (
        "shadow = {n: p.detach().clone() for n, p in model.named_parameters()}\n"
        "for n, p in model.named_parameters():\n    shadow[n].mul_(0.9).add_(p.detach(), alpha=0.1)\n"
    ),
    "gradients right behind the backward": BACKWARD + "for p in model.parameters():\n    p.grad.clamp_(-1, 1)\n",
    "a norm that is compared": BACKWARD + "for p in model.parameters():\n    if p.grad.norm() > 1:\n        print(step)\n",
    "gradients replaced by sums of gradients": (
        BACKWARD + "kept = [p.grad.clone() for p in model.parameters()]\n" + BACKWARD
        + "for p, g in zip(model.parameters(), kept):\n    p.grad = p.grad + g\n"
    ),
    "an optimizer of a factory": "class Recipe:\n    def step(self):\n        self._optimizer.zero_grad()\n",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_right_on_shards_is_left_alone(name: str) -> None:
    analysis, results = analyse_texts({"train.py": HEAD + MODEL + HARMLESS[name]})
    hazards = ("FS307", "FS309", "FS310", "FS502", "FS608", "FS701", "FS702", "FS704")
    assert not [f for f in analysis.findings if f.rule in hazards and f.level is not Level.OK]
    assert HARMLESS[name] in results["train.py"]
    assert "fully_shard(model" in results["train.py"]


def test_optimizer_state_behind_a_forward_without_gradients_is_taken_from_shards() -> None:
    body = (
        OPTIMIZER + BACKWARD + "optimizer.step()\nwith torch.no_grad():\n    model(batch)\n"
        "state = optimizer.state_dict()\n"
    )  # fmt: skip
    _, results = analyse_texts({"train.py": HEAD + MODEL + body})
    text = results["train.py"]
    assert text.index(".reshard()") < text.index("get_optimizer_state_dict(model")


PARTS = {
    "a layer": "model.head.parameters()",
    "a part in a list": '[{"params": model.layers[0].parameters()}, {"params": [model.head.bias]}]',
    "parts in a loop": "[p for layer in model.layers for p in layer.parameters()]",
}


@pytest.mark.parametrize("name", PARTS)
def test_an_optimizer_over_a_part_of_the_model_belongs_to_its_group(name: str) -> None:
    head = HEAD.replace(
        "        self.head =", "        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])\n        self.head ="
    )
    text = f"model = Net()\noptimizer = torch.optim.SGD({PARTS[name]}, lr=0.1)\nmodel = DDP(model)\n"
    _, results = analyse_texts({"train.py": head + text})
    assert results["train.py"].index("fully_shard(model)") < results["train.py"].index("optimizer = ")


def test_an_optimizer_over_a_part_of_an_unseen_model_belongs_to_its_group() -> None:
    text = (
        "import torch\nfrom torchvision.models import resnet18\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\n"
        "model = resnet18()\noptimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1)\nmodel = DDP(model)\n"
    )
    _, results = analyse_texts({"train.py": text})
    assert results["train.py"].index("fully_shard(model)") < results["train.py"].index("optimizer = ")


def test_a_copy_from_before_the_wrap_may_be_plain() -> None:
    body = (
        "net = Net()\nkept = [p.detach().clone() for p in net.parameters()]\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=1)\n"
        "model = DDP(net)\nprint(kept[0].norm().item())\n"
    )
    _, results = analyse_texts({"train.py": HEAD + body})
    assert "(kept[0].full_tensor() if isinstance(kept[0], DTensor) else kept[0]).norm().item()" in results["train.py"]


def test_a_teacher_is_not_put_back_to_its_shards_by_the_backward_of_others() -> None:
    body = (
        "teacher = DDP(Net())\n" + OPTIMIZER + "with torch.no_grad():\n    goal = teacher(batch)\n"
        "(model(batch) - goal).sum().backward()\nfor p in teacher.parameters():\n    p.data.mul_(0.5)\n"
    )  # fmt: skip
    _, results = analyse_texts({"train.py": HEAD + MODEL + body})
    assert "        module.reshard()\nfor p in teacher.parameters():\n" in results["train.py"]


def test_a_load_behind_an_evaluation_goes_into_shards() -> None:
    body = "with torch.no_grad():\n    model(batch)\nmodel.module.load_state_dict(best)\n"
    _, results = analyse_texts({"train.py": HEAD + MODEL + body})
    assert "        module.reshard()\nset_model_state_dict(" in results["train.py"]


NAMED = {
    "flattened gradients": (BACKWARD + "flat = [p.grad.view(-1) for p in model.parameters()]\n", Level.MANUAL),
    "lists copied at once": (
        "p = list(model.parameters())\nq = [x.clone() for x in p]\ntorch._foreach_copy_(p, q)\n", Level.MANUAL
    ),
    "a norm changed in place": ("limits = [p.norm().clamp_(min=0.1) for p in model.parameters()]\n", Level.MANUAL),
    "a penalty on weights": (
        "loss = model(batch).sum() + sum(p.pow(2).sum() for p in model.parameters())\nloss.backward()\n", Level.REVIEW
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_what_raises_is_named_and_holds_nothing(name: str) -> None:
    body, level = NAMED[name]
    analysis, results = analyse_texts({"train.py": HEAD + MODEL + body})
    assert level in {finding.level for finding in analysis.findings if finding.rule == "FS702"}
    assert "fully_shard(model)" in results["train.py"]


AGAIN = {
    "in a loop": "net = Net()\nfor stage in range(2):\n    net.layers.append(nn.Linear(8, 8))\n    model = DDP(net)\n",
    "what the wrapper holds": "model = DDP(Net())\nmodel.module.head.requires_grad_(False)\nmodel = DDP(model.module)\n",
    "a shared part": (
        "part = nn.Linear(4, 8)\none = DDP(nn.Sequential(part, nn.Linear(8, 3)))\n"
        "two = DDP(nn.Sequential(part, nn.Linear(8, 1)))\n"
    ),
}  # fmt: skip
ONCE = {
    "alternatives": "net = Net()\nif flag:\n    model = DDP(net)\nelse:\n    model = DDP(net, bucket_cap_mb=50)\n",
    "a factory": "def make():\n    return Net()\n\n\none = DDP(make())\ntwo = DDP(make())\n",
    "a loop over models": "nets = [Net(), Net()]\nmodels = []\nfor net in nets:\n    models.append(DDP(net))\n",
    "a way out between": (
        "def wrap(net):\n    if flag:\n        return DDP(net)\n    return DDP(net, bucket_cap_mb=50)\n\n\nmodel = wrap(Net())\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AGAIN)
def test_parameters_under_two_wraps_stay_as_they_are(name: str) -> None:
    analysis, results = analyse_texts({"train.py": HEAD + AGAIN[name]})
    assert "FS122" in {finding.rule for finding in analysis.findings}
    assert results["train.py"] == HEAD + AGAIN[name]


@pytest.mark.parametrize("name", ONCE)
def test_one_wrap_for_each_model_is_enough(name: str) -> None:
    analysis, results = analyse_texts({"train.py": HEAD + ONCE[name]})
    assert "FS122" not in {finding.rule for finding in analysis.findings}
    assert "fully_shard(" in results["train.py"]


def test_keys_of_a_compiled_model_lose_their_prefix() -> None:
    body = "net = torch.compile(Net())\nmodel = DDP(net)\nstate = model.module.state_dict()\n"
    analysis, _ = analyse_texts({"train.py": HEAD + body})
    (finding,) = [f for f in analysis.findings if f.rule == "FS402"]
    assert finding.level is Level.REVIEW
    assert "_orig_mod." in finding.message


def test_a_comparison_with_a_shard_is_for_review_and_holds_nothing() -> None:
    text = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
model(batch()).sum().backward()
for parameter in model.parameters():
    assert parameter.abs().mean() < 1.0
"""
    analysis, results = analyse_texts({"train.py": text})
    assert "fully_shard(model)" in results["train.py"]
    compared = next(finding for finding in analysis.findings if finding.rule == "FS701")
    assert compared.level is Level.REVIEW and "flat shard" in compared.message


def test_a_teacher_in_the_group_of_its_student_is_resharded_before_it_follows() -> None:
    program = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model, path):
    print(sum(1 for _ in model.modules()), path)


model, teacher = FSDP(build()), FSDP(build())
optimizer = torch.optim.SGD(model.parameters())
for batch in batches:
    with torch.no_grad():
        aim = teacher(batch)
    (model(batch) - aim).sum().backward()
    optimizer.step()
    for p, q in zip(model.parameters(), teacher.parameters()):
        q.data.lerp_(p, 0.1)
    for p in model.parameters():
        p.data.mul_(0.5)
save(model, "a")
save(teacher, "b")
"""
    analysis, results = analyse_texts({"train.py": program})
    assert results["train.py"].count(".reshard()") == 1
    assert "for module in teacher.modules()" in results["train.py"]
    (found,) = [finding for finding in analysis.findings if finding.rule == "FS309"]
    assert "FSDP1's root ran on" in found.message


_HOOKED_BEFORE = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        {inside}

    def forward(self, x):
        return self.layer(x)


net = Net()
for name, parameter in net.named_parameters():
    {outside}
model = DDP(net)
"""


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_that_are_on_parameters_before_the_wrap_hold_the_group(inside: bool, hook: str) -> None:
    owner = "self.layer.weight" if inside else "parameter"
    line = f"{owner}.{hook}(lambda grad: grad)"
    text = _HOOKED_BEFORE.format(inside=line if inside else "pass", outside="pass" if inside else line)
    analysis, results = analyse_texts({"train.py": text})
    assert "FS702" in {finding.rule for finding in analysis.findings} and "fully_shard" not in results["train.py"]


_IN_ANOTHER_RECIPE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build():
    return torch.nn.Linear(2, 2)


def on_one_device():
    model = build()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(print)


def distributed():
    model = FSDP(build())
    {hooked}
"""


@pytest.mark.parametrize("hooked", [False, True])
def test_hooks_in_a_recipe_without_a_wrap_do_not_hold_the_one_with(hooked: bool) -> None:
    behind = "for parameter in model.parameters(): parameter.register_post_accumulate_grad_hook(print)"
    analysis, texts = analyse_texts({"train.py": _IN_ANOTHER_RECIPE.replace("{hooked}", behind if hooked else "print(model)")})
    assert [f.line for f in analysis.findings if f.rule == "FS702"] == ([17] if hooked else [])
    assert ("fully_shard" in texts["train.py"]) is not hooked


_OPTIMIZER = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Signs(torch.optim.Optimizer):
    def step(self, module):
        assert isinstance(module, FSDP)
        total = torch.tensor(0.0)
        for group in self.param_groups:
            for p in group["params"]:
                update = p.grad * group["lr"]
                p.add_(update.sign())
                {sums}
        return total
"""


@pytest.mark.parametrize(
    ("sums", "is_named"),
    [
        ("total += torch.tensordot(update, update)", True),
        ("total += update.full_tensor().sum()", False),
        ("total += update.numel() * update.norm().item()", False),
        ("p += update", False),
    ],
)
def test_an_optimizer_that_sums_up_sharded_tensors_by_itself_is_named(sums: str, is_named: bool) -> None:
    analysis, _ = analyse_texts({"optim.py": _OPTIMIZER.replace("{sums}", sums)})
    assert [f.line for f in analysis.findings if f.rule == "FS702"] == ([13] if is_named else [])


@pytest.mark.parametrize("asked", ["list(model.parameters())", "batch"])
def test_gradients_that_autograd_is_asked_for_are_named(asked: str) -> None:
    text = HEAD + MODEL + f"params = {asked}\ngrads = torch.autograd.grad(model(batch).sum(), params)\n"
    analysis, results = analyse_texts({"train.py": text})
    named = [f for f in analysis.findings if f.rule == "FS702" and "autograd is asked" in f.message]
    assert bool(named) == (asked != "batch")
    assert "fully_shard(model)" in results["train.py"]
