"""Own classes of optimizers: a step that may look at more than single elements gets whole parameters."""

from __future__ import annotations

import re

import pytest
from migrated_texts import HEAD, migrated
from to_fsdp2.transforms.queries.whole_optimizers import _BY_ELEMENT
from to_fsdp2.transforms.rewrites.helper_source import definitions

PROGRAM = (
    HEAD
    + """import math
import bitsandbytes.optim.optimizer
from newton import orthogonalized
from projector import Projector


def clipped(update):
    return update.clamp_(-1, 1)


class Own({base}):
    def __init__(self, params, lr=0.1):
        super().__init__(params, {{"lr": lr}})

{step}


def main():
    model = DDP(nn.Linear(4, 4))
    optimizer = Own(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


main()
"""
)
PROJECTOR = """import torch


class Projector:
    def project(self, grad):
        return torch.linalg.svd(grad)[0] @ grad

    def halved(self, grad):
        return grad.mul(0.5)
"""
STEP = """    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                {line}
"""


def _is_whole(line: str, base: str = "torch.optim.Optimizer") -> bool:
    train = PROGRAM.format(base=base, step=STEP.format(line=line))
    return "@on_whole_parameters" in migrated(train=train, projector=PROJECTOR)["train"]


@pytest.mark.parametrize("line", [
    "p.sub_(p.grad / p.grad.norm())",
    "p.sub_(state['projector'].project(p.grad))",
    "state['projector'] = Projector(); p.sub_(state['projector'].project(p.grad))",
    "p.data = group['compress'](p.grad)",
    "p.sub_(orthogonalized(p.grad))",
    "p.sub_(p.grad[:, :1])",
    "p.sub_(p.grad @ state['basis'])",
])  # fmt: skip
def test_a_step_that_may_look_at_more_than_elements(line: str) -> None:
    assert _is_whole(line)


@pytest.mark.parametrize("line", [
    "p.sub_(p.grad.sign(), alpha=group['lr'])",
    "p.addcdiv_(state.setdefault('m', torch.zeros_like(p)).lerp_(p.grad, 0.1), p.grad.abs().sqrt_().add_(1e-8))",
    "p.sub_(clipped(p.grad)) if math.isfinite(group['lr']) else self.zero_grad()",
    "half = Projector(); p.sub_(half.halved(p.grad))",
    "torch._foreach_add_([p], [p.grad], alpha=-group['lr'])",
    "p.copy_(torch.max(p, p.grad))",
])  # fmt: skip
def test_a_step_by_element_stays(line: str) -> None:
    assert not _is_whole(line)


def test_a_base_class_with_kernels_of_its_own() -> None:
    assert _is_whole("self.update_step(group, p)", base="bitsandbytes.optim.optimizer.Optimizer2State")
    made = migrated(
        train=PROGRAM.format(base="bitsandbytes.optim.optimizer.Optimizer2State", step="    other = 1"), projector=PROJECTOR
    )
    assert "optimizer = step_on_whole(Own(model.parameters()))" in made["train"]


FACTORY = HEAD + """from timm.optim import AdamP, NAdam
from timm.optim.lookahead import Lookahead


def create(name, model):
    if name == "adamp":
        return AdamP(model.parameters(), lr=0.1)
    return NAdam(model.parameters())


class Scaler:
    def __call__(self, loss, optimizer):
        loss.backward()
        self.scaler.step(optimizer)


def main(name):
    model = DDP(nn.Linear(4, 4))
    optimizer = create(name, model)
    if name.startswith("lookahead"):
        optimizer = Lookahead(optimizer)
    Scaler()(model(torch.ones(2, 4)).sum(), optimizer)


main("adamp")
"""


def test_optimizers_of_libraries_by_where_they_come_from() -> None:
    text = migrated(train=FACTORY)["train"]
    assert "return step_on_whole(AdamP(model.parameters(), lr=0.1))" in text
    assert "return NAdam(model.parameters())" in text
    assert "optimizer = step_on_whole(Lookahead(optimizer))" in text


ASSIGNING = HEAD + """from timm.optim import AdamP, Lamb, Lookahead, NvNovoGrad


def create(kind, model):
    if kind == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    elif kind == "adamp":
        optimizer = AdamP(model.parameters(), lr=0.1)
    elif kind == "lamb":
        optimizer = Lamb(model.parameters(), lr=0.1)
    else:
        optimizer = NvNovoGrad(model.parameters(), lr=0.1)
    return optimizer


create("adam", DDP(nn.Linear(2, 2)))
"""


def test_a_function_that_makes_one_of_several_optimizers_is_edited_where_it_returns_it() -> None:
    assert migrated(train=ASSIGNING)["train"].count("step_on_whole(") == 1
    assert "    return step_on_whole(optimizer)\n" in migrated(train=ASSIGNING)["train"]
    early = ASSIGNING.replace('    elif kind == "adamp":', '        return optimizer\n    elif kind == "adamp":')
    assert migrated(train=early)["train"].count("= step_on_whole(") == 3


def test_the_helper_knows_no_other_optimizers_than_the_rule() -> None:
    (line,) = [one.text for one in definitions().values() if one.name == "BY_ELEMENT"]
    assert set(re.findall(r'"(\w+)"', line)) <= _BY_ELEMENT


OF_MANY = HEAD + """from apex.optimizers import FusedLAMB, FusedNovoGrad, FusedSGD


class {name}(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, {{"lr": lr}})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.sub_(p.grad / p.grad.norm())


def make(kind, params):
    if kind == "lamb":
        optimizer = FusedLAMB(params)
    elif kind == "novograd":
        optimizer = FusedNovoGrad(params)
    elif kind == "sgd":
        optimizer = FusedSGD(params)
    else:
        optimizer = {name}(params)
    return optimizer


def main(kind):
    model = DDP(nn.Linear(4, 4))
    optimizer = {made}
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


main("own")
"""


@pytest.mark.parametrize(("name", "made", "is_decorated"), [
    ("Scaled", "make(kind, model.parameters())", False),
    ("Scaled", "Scaled(model.parameters()) if kind else make(kind, model.parameters())", True),
    ("RAdam", "make(kind, model.parameters())", True),
])  # fmt: skip
def test_what_a_factory_gives_is_shown_whole_parameters_once(name: str, made: str, is_decorated: bool) -> None:
    """By the name of a common one the helper takes it for that, and lets it be."""
    text = migrated(train=OF_MANY.format(name=name, made=made))["train"]
    assert "    return step_on_whole(optimizer)\n" in text
    assert ("@on_whole_parameters" in text) == is_decorated
