"""What full_parameters.py must do on two ranks. Run by test_full_parameters.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from models import Net, batch, build, clean, close, error_of, parameters_of
from to_fsdp2.transforms.helpers.each_rank import everything_whole_on_each_rank, whole_on_each_rank
from to_fsdp2.transforms.helpers.full_parameters import apply_to_full, full_parameters
from to_fsdp2.transforms.helpers.methods import forward_method
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor


def inner(model: Any) -> Any:
    return getattr(model, "module", model)


def reads(model: Any) -> Any:
    return {clean(name): p.detach().clone() for name, p in model.named_parameters()}


def forward(model: Any) -> Any:
    with torch.no_grad():
        return model(batch(50, rank=0)[0]).clone()


@torch.no_grad()
def write(model: Any) -> None:
    for p in model.parameters():
        p.mul_(0.5).add_(0.01)


def write_data(model: Any) -> None:
    for p in model.parameters():
        p.data = p.data * 0.9


@torch.no_grad()
def write_rows(model: Any) -> None:
    inner(model).emb.weight[3] = 7.0
    inner(model).layers[0].up.bias.normal_(generator=torch.Generator().manual_seed(3))


def initialize(model: Any) -> None:
    torch.manual_seed(5)
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.orthogonal_(module.weight)


def load(model: Any) -> Any:
    state = {name: value * 0.25 for name, value in inner(model).state_dict().items()}
    return str(inner(model).load_state_dict(state)), {k: v.clone() for k, v in inner(model).state_dict().items()}["emb.weight"]


def assign(model: Any) -> None:
    inner(model).load_state_dict({name: value * 0.25 for name, value in inner(model).state_dict().items()}, assign=True)


def freeze(model: Any) -> None:
    inner(model).layers[1].requires_grad_(False)


def replace(model: Any) -> None:
    inner(model).layers[1].up.weight = nn.Parameter(torch.full_like(inner(model).layers[1].up.weight, 0.2))


INSIDE: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "reads": (reads, {"writeback": False}),
    "numbers": (lambda m: [[p.norm().item(), p.max().item(), float(p.sum())] for p in m.parameters()], {}),
    "shapes": (lambda m: [list(p.shape) for p in m.parameters() if type(p) is nn.Parameter], {}),
    "state dict": (lambda m: {k: v.clone() for k, v in inner(m).state_dict().items()}, {"writeback": False}),
    "writes": (write, {}),
    "writes that are dropped": (write, {"writeback": False}),
    "data": (write_data, {}),
    "rows": (write_rows, {}),
    "init": (initialize, {}),
    "load": (lambda m: load(m)[1], {}),
    "load, then write": (lambda m: (load(m), write(m))[1], {}),
    "load, dropped": (lambda m: load(m)[1], {"writeback": False}),
    "a part without its own unit": (lambda m: inner(m).head(torch.ones(2, 6)).detach(), {"writeback": False}),
    "forward": (forward, {"writeback": False}),
    "forward, not recursive": (forward, {"recurse": False, "writeback": False}),
    "forward, read": (lambda m: [forward(m), reads(m)], {"writeback": False}),
    "write, forward": (lambda m: (write(m), forward(m))[1], {}),
    "forward, write, forward": (lambda m: (forward(m), write(m), forward(m))[2], {}),
    "write, forward, dropped": (lambda m: (write(m), forward(m))[1], {"writeback": False}),
    "load, forward": (lambda m: (load(m), forward(m))[1], {}),
}


@contextlib.contextmanager
def whole_anyway(model: Any, writeback: bool = True, **_: object) -> Iterator[None]:
    """What the context means for a DDP model."""
    old = {p: p.detach().clone() for p in model.parameters()}
    yield
    for p, value in old.items():
        if not writeback:
            p.data.copy_(value)


def used(kind: str, use: str, evaluated: bool, gathered: bool) -> list[Any]:
    inside, arguments = INSIDE[use]
    model = build("plain" if gathered else kind)
    if gathered:
        for layer in model.layers:
            fully_shard(layer, reshard_after_forward=False)
        fully_shard(model, reshard_after_forward=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5, foreach=False)

    def step(number: int) -> float:
        loss = model(*batch(number))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    step(0)
    if evaluated:
        forward(model)
    with full_parameters(model, **arguments) if kind == "fsdp2" else whole_anyway(model, **arguments):
        result = inside(model)
    after = parameters_of(model)
    return [result, after, [step(1), step(2)], parameters_of(model)]


def check_uses_inside_are_ddps() -> None:
    for use in INSIDE:
        ddp = used("ddp", use, False, False)
        for evaluated, gathered in ((False, False), (True, False), (True, True)):
            ours = used("fsdp2", use, evaluated, gathered)
            for name, one, other in zip(("inside", "after", "losses", "trained"), ddp, ours, strict=True):
                assert close(one, other, 1e-5), (use, evaluated, gathered, name)


def check_assigned_state_and_new_parameters() -> None:
    for change in (assign, replace, freeze):
        plain, model = build("plain"), build("fsdp2")
        before = list(model.parameters())
        change(plain)
        with full_parameters(model):
            change(model)
        assert all(one is other for one, other in zip(before, model.parameters(), strict=True))
        ours = parameters_of(model)
        assert [p.requires_grad for p in before] == [dict(plain.named_parameters())[name].requires_grad for name in ours]
        assert close({name: parameters_of(plain)[name] for name in ours}, ours), change
        model(*batch(0)).backward()


def check_context_leaves_what_it_found() -> None:
    model = build("fsdp2")
    before = [id(p) for p in model.parameters()]
    hooks = [len(m._forward_hooks) + len(m._load_state_dict_post_hooks) for m in model.modules()]
    with contextlib.suppress(KeyError), full_parameters(model):
        assert {type(p) for p in model.parameters()} == {nn.Parameter} and model.head.weight is model.emb.weight
        with full_parameters(model, writeback=False), torch.no_grad():
            model.emb.weight.fill_(2.0)
            assert forward(model) is not None
        raise KeyError
    assert before == [id(p) for p in model.parameters()], "the same objects"
    assert hooks == [len(m._forward_hooks) + len(m._load_state_dict_post_hooks) for m in model.modules()]
    assert parameters_of(model)["emb.weight"].unique().tolist() == [2.0], "the outer context writes back"


def check_gradients_inside() -> None:
    seen = []
    for kind in ("fsdp1", "fsdp2"):
        model = build(kind)
        model(*batch(0)).backward()
        with full_parameters(model, with_grads=True):
            grads = {clean(name): p.grad.clone() for name, p in model.named_parameters()}
            for p in model.parameters():
                p.grad.mul_(0.5)
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        seen.append([grads, parameters_of(model)])
        model(*batch(1)).backward()
        with full_parameters(model, with_grads=True, writeback=False):
            for p in model.parameters():
                p.grad.zero_()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        seen[-1].append(parameters_of(model))
    assert close(seen[0], seen[1], 1e-5)


def check_rank0_only() -> None:
    for kind in ("fsdp1", "fsdp2"):
        model = build(kind)
        with full_parameters(model, rank0_only=True, writeback=False):
            full = inner(model).emb.weight.shape == (13, 6) and type(inner(model).emb.weight) is nn.Parameter
            assert full == (dist.get_rank() == 0), kind
        error = error_of(lambda model=model: full_parameters(model, rank0_only=True).__enter__())
        assert isinstance(error, NotImplementedError), kind
    with full_parameters(build("fsdp2"), offload_to_cpu=True, rank0_only=True, writeback=False):
        pass
    model = build("fsdp2")
    with full_parameters(model, rank0_only=True, writeback=False), whole_on_each_rank(model), everything_whole_on_each_rank():
        if dist.get_rank() == 0:
            assert inner(model).emb.weight.norm() > 0 and not isinstance(inner(model).emb.weight, DTensor)
    with whole_on_each_rank(model):
        assert not isinstance(inner(model).emb.weight, DTensor)
    model(*batch(0)).backward()


def check_other_models_get_fsdp1s_own() -> None:
    for kind in ("plain", "ddp"):
        model = build(kind)
        before = list(model.parameters())
        with full_parameters(model) as nothing:
            assert nothing is None and all(p is q for p, q in zip(before, model.parameters(), strict=True))
            write(model)
    one, other = build("fsdp1"), build("fsdp1")
    with full_parameters(one), FSDP.summon_full_params(other):
        assert reads(one).keys() == reads(other).keys() and close(reads(one), reads(other))
        write(one)
        write(other)
    assert close(parameters_of(one), parameters_of(other))
    both: Any = nn.ModuleList([build("fsdp1"), build("fsdp2"), Net()])
    with full_parameters(both):
        assert both[0].emb.weight.shape == both[1].emb.weight.shape == both[2].emb.weight.shape
        write(both)
    assert close(parameters_of(both[0]), parameters_of(both[1]))


def check_parts_of_models() -> None:
    model = build("fsdp2")
    with full_parameters(model.layers[0]):
        assert type(model.layers[0].up.weight) is nn.Parameter
        assert isinstance(model.layers[1].up.weight, DTensor) and isinstance(model.emb.weight, DTensor)
        write(model.layers[0])
    with full_parameters(model, recurse=False):
        assert type(model.emb.weight) is nn.Parameter and isinstance(model.layers[1].up.weight, DTensor)
    with full_parameters(model.layers, recurse=False):
        assert isinstance(model.layers[1].up.weight, DTensor)
    model(*batch(0)).backward()


def check_mixed_precision_is_read_in_full() -> None:
    model = build("plain")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    forward(model)
    with full_parameters(model):
        assert close(reads(model), reads(build("plain"))) and model.emb.weight.dtype == torch.float32
        forward(model)
        assert close(reads(model), reads(build("plain")))


def check_registered_methods_inside() -> None:
    for evaluated in (False, True):
        model = build("fsdp2")
        model.encode = lambda ids, model=model: model(ids) * model.scale.sum()
        register_fsdp_forward_method(model, "encode")
        registered = model.encode
        expected = build("plain")
        if evaluated:
            forward(model)
        ids = torch.arange(3)
        with torch.no_grad(), full_parameters(model):
            write(model)
            write(expected)
            assert close(model.encode(ids), expected(ids) * expected.scale.sum())
            assert close(reads(model), reads(expected)), "still whole"
            model.layers[0].up.bias.fill_(3.0)
            expected.layers[0].up.bias.fill_(3.0)
        assert model.encode == registered
        assert close(parameters_of(model), parameters_of(expected))
        assert close(model.encode(ids), expected(ids) * expected.scale.sum())


def check_methods_registered_inside() -> None:
    """`forward_method(model, name)` for the first time, and once more."""
    model, expected = build("fsdp2"), build("plain")
    model.encode = lambda ids: model(ids) * model.scale.sum()
    ids = torch.arange(3)
    with torch.no_grad(), full_parameters(model):
        for _ in range(2):
            write(model)
            write(expected)
            assert close(forward_method(model, "encode")(ids), expected(ids) * expected.scale.sum())
            assert close(reads(model), reads(expected)), "still whole"
    assert close(parameters_of(model), parameters_of(expected))
    assert close(forward_method(model, "encode")(ids), expected(ids) * expected.scale.sum())


def check_inference_mode() -> None:
    for inference in (torch.inference_mode, torch.no_grad):
        model = build("fsdp2")
        model(*batch(0)).backward()
        with inference(), full_parameters(model, writeback=False):
            assert close(model(batch(1, rank=0)[0]), build("plain")(batch(1, rank=0)[0]), 1e-5)
            assert close(reads(model), reads(build("plain")))
        model.zero_grad()
        model(*batch(0)).backward()
        assert close(parameters_of(model), reads(build("plain")))


def check_apply_is_fsdp1s() -> None:
    def init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            torch.manual_seed(module.weight.numel())
            nn.init.orthogonal_(module.weight)
        if isinstance(module, nn.LayerNorm):
            nn.init.constant_(module.weight, 2.0)

    results = []
    for kind in ("plain", "ddp", "fsdp1", "fsdp2"):
        model = build(kind)
        assert apply_to_full(model, init) is model
        results.append(parameters_of(model))
        model(*batch(0)).sum().backward()
    assert all(close(results[0], other) for other in results[1:])


def check_shards_written_by_who_keeps_them() -> None:
    model: Any = build("fsdp2")
    kept = dict(model.named_parameters())
    with full_parameters(model):
        kept["scale"].data.clamp_(-0.1, 0.1)
        with torch.no_grad():
            model.emb.weight[0] = 7.0
    scale, weight = kept["scale"].full_tensor(), kept["emb.weight"].full_tensor()
    assert scale.abs().max() <= 0.1 and (weight[0] == 7.0).all() and not (weight[1:] == 7.0).any()
