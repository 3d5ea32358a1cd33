"""What shard_like_fsdp1 must do on two ranks, against FSDP1. Run by test_shard_programs.py."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from models import batch, close, error_of, parameters_of, whole
from shard_models import MODELS, Model, Residual, build, differences, rank, result, train
from to_fsdp2.transforms.helpers.gradients import no_gradient_sync
from to_fsdp2.transforms.helpers.shard import shard_like_fsdp1
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, FSDPModule, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    always_wrap_policy,
    enable_wrap,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
    wrap,
)

CPU = torch.device("cpu")
BF16, F32 = torch.bfloat16, torch.float32
GRAD_OP = ShardingStrategy.SHARD_GRAD_OP
POLICY = ModuleWrapPolicy({Residual})
WRAPS: tuple[Callable[..., Any], ...] = (FSDP, shard_like_fsdp1)


def both(name: str, make: Callable[[Any], dict[str, Any]], steps: int = 3) -> list[str]:
    """What differs between FSDP1 and its stand-in, with the arguments that `make(model)` returns."""
    results = []
    for wrapper in WRAPS:
        model = build(name)
        run = wrapper(model, **{"use_orig_params": True, "device_id": CPU, **make(model)})
        optimizer, losses = torch.optim.SGD(run.parameters(), lr=0.3, momentum=0.9), []
        for step in range(steps):
            optimizer.zero_grad()
            loss = run(*batch(step))
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                losses += [loss.item(), run(*batch(50)).item()]
        results.append({**result(run, losses), "without gradient": [], "shapes": []})
    return differences(results)


def check_arguments_are_fsdp1s() -> None:
    mixed = functools.partial(dict, auto_wrap_policy=POLICY)
    two = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
    unnamed = init_device_mesh("cpu", (1, 2))
    cases: dict[str, dict[str, Any]] = {
        "nothing": {},
        "policy": {"auto_wrap_policy": POLICY},
        "transformer policy": {
            "auto_wrap_policy": functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Residual})
        },
        "lambda policy": {
            "auto_wrap_policy": functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, Residual))
        },
        "size policy": {"auto_wrap_policy": functools.partial(size_based_auto_wrap_policy, min_num_params=100)},
        "always": {"auto_wrap_policy": always_wrap_policy},
        **{s.name: {"auto_wrap_policy": POLICY, "sharding_strategy": s} for s in list(ShardingStrategy)[:3]},
        "HYBRID_SHARD": mixed(sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=two),
        "HYBRID_SHARD, no names": mixed(sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=unnamed),
        "hybrid by groups": mixed(
            sharding_strategy=ShardingStrategy._HYBRID_SHARD_ZERO2, process_group=(two.get_group(1), two.get_group(0))
        ),
        "process group": mixed(process_group=dist.new_group([0, 1])),
        "no shard in a group": mixed(process_group=dist.new_group([0, 1]), sharding_strategy=ShardingStrategy.NO_SHARD),
        "mesh": mixed(device_mesh=init_device_mesh("cpu", (2,))),
        "bf16": mixed(mixed_precision=MixedPrecision(BF16)),
        "bf16, fp32 reduced": mixed(mixed_precision=MixedPrecision(BF16, F32)),
        "bf16, inputs cast": mixed(mixed_precision=MixedPrecision(BF16, BF16, cast_forward_inputs=True)),
        "bf16 buffers": mixed(mixed_precision=MixedPrecision(BF16, F32, BF16)),
        "bf16 reduced": mixed(mixed_precision=MixedPrecision(reduce_dtype=BF16)),
        "performance": mixed(backward_prefetch=BackwardPrefetch.BACKWARD_POST, forward_prefetch=True, limit_all_gathers=False),
        "no offload": mixed(cpu_offload=CPUOffload(False)),
        "flat parameters": mixed(use_orig_params=False),
    }
    for name, arguments in cases.items():
        model = "blocks in a Sequential" if name in ("size policy", "always") else "tied"
        found = both(model, lambda _, arguments=arguments: arguments)
        assert not found, (name, found)
    ignoring: dict[str, Callable[[Any], dict[str, Any]]] = {
        "modules": lambda m: mixed(ignored_modules=[m.body.blocks[0]]),
        "states": lambda m: mixed(ignored_states=[*m.body.blocks[1].parameters()]),
        "modules as states": lambda m: mixed(ignored_states=[m.body.blocks[1].up]),
        "strategy of one block": lambda m: {
            "auto_wrap_policy": CustomPolicy(
                lambda x: (
                    {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP} if x is m.body.blocks[1] else isinstance(x, Residual)
                )
            )
        },
        "precision of one block": lambda m: {
            "mixed_precision": MixedPrecision(BF16, F32),
            "auto_wrap_policy": CustomPolicy(
                lambda x: (
                    {"mixed_precision": MixedPrecision(BF16, F32, cast_forward_inputs=True)}
                    if x is m.body.blocks[1]
                    else isinstance(x, Residual)
                )
            ),
        },
    }
    for name, make in ignoring.items():
        found = both("tied", make)
        assert not found, (name, found)


def check_models_train_as_under_fsdp1() -> None:
    raising = {"scalars", "complex and integer", "two types", "sparse gradients", "frozen bfloat16 and low rank"}
    for name in MODELS.keys() - raising - {"blocks that are called by parts", "one block twice", "reentrant checkpoint"}:
        cases: list[dict[str, Any]] = [{}, {"sharding_strategy": GRAD_OP}]
        for arguments in cases:
            if "weight_norm" not in name:
                arguments["auto_wrap_policy"] = POLICY
            found = both(name, lambda _, arguments=arguments: arguments)
            assert not found, (name, arguments, found)


def check_batch_norm_in_mixed_precision() -> None:
    """FSDP1 keeps BatchNorm in float32 where a policy was given."""
    mixed = MixedPrecision(BF16, F32)

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.bn = Residual(), nn.BatchNorm1d(6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.bn(self.inner(x))

    MODELS["normed"] = lambda: Model(Normed())
    found = both("normed", lambda _: {"auto_wrap_policy": POLICY, "mixed_precision": mixed})
    assert not found, found


def check_parameters_that_learn_later_in_mixed_precision() -> None:
    """A unit that is frozen at the first forward takes part as FSDP1's did once its parameters learn."""
    for mixed in (MixedPrecision(BF16, F32), MixedPrecision(BF16, BF16), MixedPrecision(reduce_dtype=BF16)):
        results = []
        for wrapper in WRAPS:
            model = build("tied")
            first = model.body.blocks[0].requires_grad_(False)
            run = wrapper(model, use_orig_params=True, device_id=CPU, auto_wrap_policy=POLICY, mixed_precision=mixed)
            optimizer = optimizer_of_all(run)
            train(run, optimizer, 2)
            first.requires_grad_(True)
            results.append({**train(run, optimizer, 3), "without gradient": [], "shapes": []})
        assert not differences(results), (mixed, differences(results))


def check_wrap_and_enable_wrap() -> None:
    """In constructors, with arguments of the context and of the call; nothing outside of the context."""

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(wrap(Residual()), wrap(Residual(), sharding_strategy=GRAD_OP), Residual())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)

    results = []
    for wrapper in WRAPS:
        torch.manual_seed(0)
        with enable_wrap(wrapper_cls=wrapper, device_id=CPU, use_orig_params=True):
            model = Model(wrap(Nested()))
            run = wrap(model)
        assert isinstance(wrap(nn.Linear(2, 2)), nn.Linear)
        results.append({**train(run, optimizer_of_all(run)), "without gradient": [], "shapes": []})
        kind = FSDP if wrapper is FSDP else FSDPModule
        top: Any = run
        inner = top.module.body if wrapper is FSDP else top.body
        assert [isinstance(block, kind) for block in inner.body] == [True, True, False]
    assert not differences(results)


def optimizer_of_all(run: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(run.parameters(), lr=0.3, momentum=0.9)


def check_calls_of_every_shape() -> None:
    """partial, a registry, assignment to children, by hand below a policy-less root, a wrap of a wrap, parts alone."""
    shard: Callable[..., Any] = functools.partial({"fsdp": shard_like_fsdp1}["fsdp"], device_id=CPU)
    reference = train(old := FSDP(build("blocks in a Sequential"), device_id=CPU, use_orig_params=True), optimizer_of_all(old))
    model = build("blocks in a Sequential")
    for i, block in enumerate(model.body):
        model.body[i] = shard(block)
    run = shard(shard(model))
    assert run is model
    assert differences_of_training(reference, train(run, optimizer_of_all(run))) == []
    # what is wrapped already may lie below a policy
    model = build("blocks in a Sequential")
    shard(model.body[0])
    shard(model, auto_wrap_policy=POLICY)
    assert sum(isinstance(m, FSDPModule) for m in model.modules()) == 4
    assert differences_of_training(reference, train(model, optimizer_of_all(model))) == []
    # a part alone: the rest stays plain
    model = build("blocks in a Sequential")
    shard(model.body)
    assert isinstance(model.body, FSDPModule)
    assert not isinstance(model, FSDPModule)
    # ignored parameters of a nested wrap stay ignored
    model = build("scalars")
    for block in model.body.blocks:
        shard(block, ignored_states=[block.gain])
    shard(model)(*batch(0)).backward()
    # by position, in FSDP1's order
    run = shard_like_fsdp1(build("tied"), None, ShardingStrategy.SHARD_GRAD_OP, None, POLICY, None, None, None, None, CPU, False)
    assert sum(isinstance(m, FSDPModule) for m in run.modules()) == 3


def differences_of_training(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return differences([{**each, "without gradient": [], "shapes": []} for each in (one, other)])


def check_strategies_by_name() -> None:
    strategies = ("SHARD_GRAD_OP", "shard_grad_op", "ShardingStrategy.SHARD_GRAD_OP", ShardingStrategy.SHARD_GRAD_OP)
    foreign = types.SimpleNamespace(
        param_dtype=BF16, reduce_dtype=F32, buffer_dtype=None, cast_forward_inputs=False, cast_root_forward_inputs=True
    )
    precisions = (foreign, MixedPrecision(BF16, F32))
    losses = []
    for strategy, mixed in [(s, foreign) for s in strategies] + [(strategies[0], p) for p in precisions]:
        run = shard_like_fsdp1(build("tied"), sharding_strategy=strategy, mixed_precision=mixed, auto_wrap_policy=POLICY)
        losses.append(train(run, optimizer_of_all(run))["losses"])
    assert all(other == losses[0] for other in losses)


def check_synchronized_states() -> None:
    """sync_module_states, which FSDP1 cannot on CPU: the first rank's weights and buffers."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    hybrid = {"sharding_strategy": "HYBRID_SHARD", "device_mesh": mesh}
    expected = train(run := shard_like_fsdp1(build("channels_last and BatchNorm")), optimizer_of_all(run))
    for arguments in ({}, hybrid):
        run = shard_like_fsdp1(build("channels_last and BatchNorm", rank()), sync_module_states=True, **arguments)
        assert not differences([expected, train(run, optimizer_of_all(run))])
    run = shard_like_fsdp1(build("channels_last and BatchNorm", rank()))
    assert differences([expected, train(run, optimizer_of_all(run))])


class Scaled(nn.Module):
    """A layer with numbers that bf16 does not hold exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))
        self.register_buffer("scale", torch.full((4,), 1 / 3))
        self.inner.register_buffer("shift", torch.full((4,), 1 / 7))
        self.inner.register_buffer("temporary", torch.full((4,), 1 / 9), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.first(x)) * self.scale + self.inner.shift


def check_states_have_buffers_in_their_own_dtype() -> None:
    """buffer_dtype is for computing: full state dicts have what it left of the numbers, in the dtype that they had before."""
    policy = MixedPrecision(buffer_dtype=BF16)
    states = []
    for wrap_model in WRAPS:
        run = wrap_model(Scaled(), mixed_precision=policy, auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}), device_id=CPU)
        run(torch.ones(2, 4)).sum().backward()
        assert all(buffer.dtype is BF16 for buffer in run.buffers())
        states.append({key: value for key, value in run.state_dict().items() if key.endswith(("scale", "shift", "temporary"))})
    expected, found = states
    assert set(expected) == {"scale", "inner.shift"} == set(found)
    for key, value in expected.items():
        assert value.dtype is found[key].dtype is F32 and torch.equal(value, found[key]) and torch.equal(value, value.bfloat16())


def check_offloaded_parameters() -> None:
    expected = train(run := shard_like_fsdp1(build("tied")), optimizer_of_all(run))
    run = shard_like_fsdp1(build("tied"), cpu_offload=CPUOffload(True), auto_wrap_policy=POLICY)
    assert not differences([expected, train(run, optimizer_of_all(run))])


def check_meta_device() -> None:
    """The same initial weights as FSDP1 gives, by param_init_fn or reset_parameters; an optimizer holds them."""

    def initialize(module: nn.Module) -> None:
        module.to_empty(device=CPU, recurse=False)
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()  # pyright: ignore[reportCallIssue]

    for function in (initialize, None):
        for name in ("blocks in a Sequential", "channels_last and BatchNorm"):
            values: list[Any] = []
            run: Any = None
            optimizer: Any = None
            for wrapper in WRAPS:
                with torch.device("meta"):
                    model = MODELS[name]()
                optimizer = optimizer_of_all(model)
                torch.manual_seed(5)
                run = wrapper(model, auto_wrap_policy=POLICY, param_init_fn=function, device_id=CPU, use_orig_params=True)
                values.append(parameters_of(run))
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            assert held == {id(p) for p in run.parameters()}
            assert close(values[0], values[1], 0.0), (function, name)


def check_accumulation_is_fsdp1s() -> None:
    for mixed in (None, MixedPrecision(BF16, BF16)):
        results = []
        for wrapper in WRAPS:
            run = wrapper(build("tied"), auto_wrap_policy=POLICY, device_id=CPU, use_orig_params=True, mixed_precision=mixed)
            optimizer, losses = optimizer_of_all(run), []
            for step in range(6):
                with contextlib.nullcontext() if step % 3 == 2 else no_gradient_sync(run):
                    loss = run(*batch(step))
                    loss.backward()
                losses.append(loss.item())
                if step % 3 == 2:
                    optimizer.step()
                    optimizer.zero_grad()
            results.append({**result(run, losses), "without gradient": [], "shapes": []})
        found = differences(results, 0.0 if mixed else 1e-6)
        assert not found, (mixed, found)


def check_uses_between_forward_and_backward() -> None:
    """The model's gradients are zeroed there, or the optimizer is built there; in-place operations on views of outputs."""

    def zeroed(run: Any) -> list[float]:
        optimizer, losses = optimizer_of_all(run), []
        for step in range(4):
            loss = run(*batch(step))
            run.zero_grad(set_to_none=step % 2 == 0)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def built_late(run: Any) -> list[float]:
        run(*batch(0))
        return train(run, optimizer_of_all(run))["losses"]

    for use in (zeroed, built_late):
        old, new = (
            use(wrapper(build("tied"), auto_wrap_policy=POLICY, device_id=CPU, use_orig_params=True)) for wrapper in WRAPS
        )
        assert old == new, use


def check_nested_by_hand() -> None:
    """In every strategy, with checkpoints around calls and around modules; FSDP1 raises with reentrant ones at the root only."""
    for strategy in list(ShardingStrategy)[:3]:
        for name in ("blocks in a Sequential", "checkpoint", "reentrant checkpoint"):
            results = []
            for wrapper in WRAPS:
                wrapped = functools.partial(wrapper, device_id=CPU, use_orig_params=True, sharding_strategy=strategy)
                model = build(name)
                blocks = model.body if name == "blocks in a Sequential" else model.body.blocks
                for i, block in enumerate(blocks):
                    blocks[i] = wrapped(block if i else checkpoint_wrapper(block))
                run = wrapped(model)
                results.append({**train(run, optimizer_of_all(run)), "without gradient": [], "shapes": []})
            for each in results:
                each["parameters"] = {
                    name.replace("_checkpoint_wrapped_module.", ""): p for name, p in each["parameters"].items()
                }
            assert not differences(results), (strategy, name)


def check_what_is_refused() -> None:
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"nonsense": 1}, TypeError),
        ({"sharding_strategy": "zero3"}, ValueError),
        ({"sharding_strategy": 1}, ValueError),
        ({"mixed_precision": MixedPrecision(BF16, keep_low_precision_grads=True)}, NotImplementedError),
        ({"sharding_strategy": "HYBRID_SHARD", "device_mesh": init_device_mesh("cpu", (2,))}, ValueError),
        ({"auto_wrap_policy": CustomPolicy(lambda m: {"nonsense": 1} if isinstance(m, Residual) else False)}, TypeError),
    ]
    for arguments, expected in wrong:
        assert isinstance(error_of(lambda arguments=arguments: shard_like_fsdp1(build("tied"), **arguments)), expected), arguments


def check_compiled_and_checkpointed() -> None:
    expected = train(run := shard_like_fsdp1(build("tied")), optimizer_of_all(run))
    for after in (False, True):
        model = build("tied")
        wrappers = [functools.partial(torch.compile, backend="eager"), shard_like_fsdp1]
        run = wrappers[not after](wrappers[after](model))
        assert not differences([expected, train(run, optimizer_of_all(run))], 1e-6), after


def check_containers_as_roots() -> None:
    """ModuleList and ModuleDict, which fully_shard refuses: their entries are sharded."""
    blocks = nn.ModuleList(Residual() for _ in range(2))
    run = shard_like_fsdp1(blocks, auto_wrap_policy=POLICY)
    assert run is blocks
    for name, p in run.named_parameters():
        assert p.shape == whole(p).shape, name
    assert isinstance(run[0](torch.ones(2, 6)), torch.Tensor)


class Partly(nn.Module):
    """Its second layer has no part in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.used(x).tanh()


class Skipping(nn.Module):
    """Leaves a unit out on all ranks, and a layer of its own always."""

    def __init__(self) -> None:
        super().__init__()
        self.units, self.head, self.unused = nn.ModuleList([Partly(), Partly()]), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, skip: bool) -> torch.Tensor:
        for unit in self.units[: 1 if skip else 2]:
            x = unit(x)
        return self.head(x)


def check_unused_parameters_decay_in_units_that_ran() -> None:
    found = []
    for wrapper in WRAPS:
        torch.manual_seed(0)
        run = wrapper(Skipping(), device_id=CPU, use_orig_params=True, auto_wrap_policy=ModuleWrapPolicy({Partly}))
        optimizer = torch.optim.AdamW(run.parameters(), lr=0.1, weight_decay=0.5)
        for step in range(4):
            optimizer.zero_grad()
            inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(2 * step + rank()))
            run(inputs, step > 1).square().mean().backward()
            optimizer.step()
        found.append(parameters_of(run))
    one, other = found
    assert all(torch.equal(one[name], other[name]) for name in one), [n for n in one if not torch.equal(one[n], other[n])]


class ByName(nn.Module):
    """Calls its parts by their forward, as the first Llama did; they are units."""

    def __init__(self) -> None:
        super().__init__()
        self.first: nn.Module = Residual(6)
        self.blocks = nn.ModuleList([Residual(6), Residual(6)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first.forward(x)
        for block in self.blocks:
            x = block.forward(x)
        return x


def check_units_that_are_called_by_their_forward() -> None:
    for checkpoints in (False, True):
        results = []
        for wrapper in WRAPS:
            torch.manual_seed(3)
            plain = ByName()
            if checkpoints:
                plain.first = checkpoint_wrapper(plain.first)
            run = wrapper(plain, use_orig_params=True, device_id=CPU, auto_wrap_policy=POLICY)
            calls: list[int] = []
            run.register_forward_hook(lambda *_, calls=calls: calls.append(1))
            optimizer = torch.optim.SGD(run.parameters(), lr=0.3, momentum=0.9)
            for step in range(3):
                torch.manual_seed(10 * rank() + step)
                x = torch.randn(4, 6)
                (run(x) if step else run.forward(x)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    run(x)
            assert calls == [1] * 6 or (wrapper is FSDP and calls == [1] * 5), calls
            results.append(list(parameters_of(run).values()))
        assert all(map(close, *results))
