"""What sharded_math.py must tell apart on two ranks: models of FSDP1 and of DDP, code of helpers and others' code."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from models import batch, build, close, parameters_of
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.mixed import compute_as_whole
from to_fsdp2.transforms.helpers.parts import compute_with_parts
from to_fsdp2.transforms.helpers.whole import whole as gathered
from to_fsdp2.transforms.rewrites.helper_place import module_text
from to_fsdp2.transforms.rewrites.helper_source import BESIDE_CODE, beside_code, features_of, import_lines, with_needs
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP


def as_whole(model: Any) -> Any:
    compute_as_whole(model)
    return model


def each_order() -> list[tuple[Any, Any]]:
    """A model of FSDP1's kind and one of DDP's, the first or the second of which was sharded first."""
    first = compute_with_parts(build("fsdp2")), as_whole(build("fsdp2"))
    second = as_whole(build("fsdp2")), compute_with_parts(build("fsdp2"))
    return [first, second[::-1]]


def on_all(number: torch.Tensor) -> torch.Tensor:
    number = number.detach().clone()
    dist.all_reduce(number)
    return number


def check_each_model_answers_as_its_kind() -> None:
    for parts, whole in each_order():
        for model in (parts, whole):
            model(*batch(0)).backward()
        for mine, its in zip(parts.parameters(), whole.parameters(), strict=True):
            for part, full in ((mine, its), (mine.grad, its.grad), (mine.data, its.data), (mine.detach() * 2, its.detach() * 2)):
                assert isinstance(part, DTensor) and close(on_all(part.square().sum()), full.square().sum().detach())
                assert full.numel() == full.shape.numel() and part.numel() == part.to_local().numel()
            assert not isinstance(its.detach() * 2, DTensor)


def check_training_of_both_goes_on() -> None:
    found = []
    for kind in ("alone", "together"):
        parts, whole = each_order()[0] if kind == "together" else (build("fsdp2"), build("fsdp2"))
        optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in (parts, whole)]
        for step in range(3):
            for model, optimizer in zip((parts, whole), optimizers, strict=True):
                model(*batch(step)).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
        state = [value for values in optimizers[0].state.values() for value in values.values() if value.dim()]
        assert kind == "alone" or all(value.numel() == value.to_local().numel() for value in state)
        found.append([parameters_of(parts), parameters_of(whole)])
    assert close(*found)


def check_copies_and_moved_parameters_keep_their_kind() -> None:
    parts, _ = each_order()[0]
    for parameters in (copy.deepcopy(list(parts.parameters())), list(parts.to(torch.float64).parameters())):
        assert all(isinstance(p, DTensor) and p.numel() == p.to_local().numel() for p in parameters)


def check_the_first_tensor_says_of_which_kind_a_computation_is() -> None:
    parts, whole = each_order()[0]
    with torch.no_grad():
        parts.emb.weight.mul_(3)
        whole.emb.weight.copy_(parts.emb.weight)
        parts.head.weight.data.add_(whole.emb.weight)
    assert close(parts.emb.weight.full_tensor(), 2 * whole.emb.weight.full_tensor())
    assert whole.emb.weight.numel() == 13 * 6 and parts.emb.weight.numel() == parts.emb.weight.to_local().numel()


OF_THE_PROGRAM = """

def square(p):
    return max((one.pow(2).sum() for one in [p]))


class Meter:
    def read(self, p):
        return (lambda: p.numel())()
"""


def module(name: str, text: str) -> Any:
    made = ModuleType(name)
    sys.modules[name] = made
    exec(compile(text, f"{name}.py", "exec"), made.__dict__)
    return made


def require_parts_in(of_program: Any, helpers: Any) -> None:
    """That code of the program sees parts, and what a helper computes is of the whole."""
    net = helpers.compute_with_parts(build("fsdp2"))
    net(*batch(0)).backward()
    weight = net.emb.weight
    assert close(of_program.square(weight.detach()), weight.to_local().detach().square().sum())
    assert of_program.Meter().read(weight) == weight.to_local().numel()
    expected = torch.stack([p.grad.full_tensor().norm() for p in net.parameters()]).norm()
    norm = helpers.clip_grad_norm(net.parameters(), 1e9)
    assert close(norm.full_tensor() if isinstance(norm, DTensor) else norm, expected)


def check_code_beside_the_helpers_is_the_programs() -> None:
    needed = with_needs(["compute_with_parts", "clip_grad_norm", "sharded_grad_scaler"])
    lines = ["from __future__ import annotations", *import_lines(needed)]
    text = "\n".join([*lines, OF_THE_PROGRAM, beside_code(needed), OF_THE_PROGRAM.replace("square", "other")])
    train = module("train", text)
    require_parts_in(train, train)
    require_parts_in(module("train.parts", OF_THE_PROGRAM), train)


def check_modules_with_a_like_name_are_the_programs() -> None:
    names = ["compute_with_parts", "clip_grad_norm"]
    helpers = module("fsdp2_helpers", module_text(names, features_of(names) & BESIDE_CODE))
    for name in ("fsdp2_helpers_of_ours", "torch_optimizers", "training"):
        require_parts_in(module(name, OF_THE_PROGRAM), helpers)


def check_whole_tensors_in_code_beside_the_helpers() -> None:
    needed = with_needs(["compute_as_whole"])
    text = "\n".join(["from __future__ import annotations", *import_lines(needed), OF_THE_PROGRAM, beside_code(needed)])
    train, net = module("train", text), build("fsdp2")
    train.compute_as_whole(net)
    twice: Callable[[Any], Any] = module("train_utils", "def twice(p):\n    return p.detach() * 2\n").twice
    assert not isinstance(twice(net.emb.weight), DTensor)
    assert not isinstance(train.square(net.emb.weight.detach()), DTensor)


def check_parameters_in_compiled_functions() -> None:
    """What torch.compile traces sees DTensors, and no answers of ours: whole() gathers there, and averages the gradient."""
    results = []
    for wrap, read in ((DDP, lambda p: p), (shard_like_ddp, gathered)):
        model = wrap(build("plain"))
        inner = model.module if wrap is DDP else model
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []

        @torch.compile(backend="eager")
        def loss_of(*given: Any, model: Any = model, inner: Any = inner, read: Any = read) -> torch.Tensor:
            start = torch.zeros(2, inner.scale.numel())
            start[torch.tensor([True, False])] = read(inner.scale)
            return model(*given) + (start * dist.get_rank()).square().sum()

        for step in range(3):
            optimizer.zero_grad()
            loss = loss_of(*batch(step))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        results.append((parameters_of(inner), losses))
    assert close(*[parameters for parameters, _ in results])
    assert close(*[losses for _, losses in results])
