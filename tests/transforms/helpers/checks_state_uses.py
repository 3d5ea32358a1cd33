"""What programs do with state dicts, on two ranks: averages, filters, files, wrappers, hooks. Run by test_state_uses.py."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from checks_optimizer_state import FULL, SHARDED, pair, same, train, wrap
from models import Block, Net, build, close, error_of, gathered, record_wrapper
from safetensors.torch import load_file, save_file
from to_fsdp2.transforms.helpers import named_optimizer_state as named
from to_fsdp2.transforms.helpers.full_parameters import full_parameters
from to_fsdp2.transforms.helpers.optimizer_state import consolidate_state_dict, load_optimizer_state, optimizer_state
from to_fsdp2.transforms.helpers.state import as_method, load_model_state, load_state, model_state, state_of
from to_fsdp2.transforms.helpers.state_kinds import set_state_dict_type, state_dict_type
from to_fsdp2.transforms.helpers.whole import whole
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    OptimStateKeyType,
    fully_shard,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel as DDP

MATCHED = "<All keys matched successfully>"


class Average:
    """Named shadows, put in place of the old ones when loaded."""

    def __init__(self, model: Any) -> None:
        self.decay, self.shadow = 0.9, {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: Any) -> None:
        for name, p in model.named_parameters():
            self.shadow[name].mul_(self.decay).add_(p.detach(), alpha=1 - self.decay)

    def state_dict(self) -> dict[str, Any]:
        return {"decay": self.decay, "shadow": self.shadow}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.decay, self.shadow = state["decay"], state["shadow"]


class CopiedAverage(Average):
    """The same, but the shadows are the state, and are written when loaded."""

    def state_dict(self) -> dict[str, Any]:
        return self.shadow

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            self.shadow[name].copy_(value)


class ListedAverage(Average):
    """Shadows without names."""

    def __init__(self, model: Any) -> None:
        self.shadow_params = [p.detach().clone() for p in model.parameters()]

    def update(self, model: Any) -> None:
        for shadow, p in zip(self.shadow_params, model.parameters(), strict=True):
            shadow.sub_(0.1 * (shadow - p.detach()))

    def state_dict(self) -> dict[str, Any]:
        return {"shadow_params": self.shadow_params}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow_params = [shadow.clone() for shadow in state["shadow_params"]]


class NumberedAverage(ListedAverage):
    """Shadows that a state dict numbers, and that are written in place."""

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": {str(i): shadow for i, shadow in enumerate(self.shadow_params)}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for i, shadow in enumerate(self.shadow_params):
            shadow.copy_(state["shadow"][str(i)])


def check_averages_of_weights() -> None:
    for cls in (Average, CopiedAverage, ListedAverage, NumberedAverage):
        states = []
        for kind in ("plain", "fsdp2"):
            model = build(kind)
            average, other = cls(model), cls(model)
            load_model_state(model, {key: value + 1 for key, value in model_state(model).items()})
            average.update(model)
            saved = copy.deepcopy(state_of(average))
            load_state(other, copy.deepcopy(saved))
            assert same(state_of(other), saved)
            other.update(model)
            states += [copy.deepcopy(saved), state_of(other)]
        assert same(states[:2], states[2:]), cls


def check_filters_and_files() -> None:
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    (model, optimizer), ddp = pair("fsdp2"), pair("ddp")[0].module
    adapters = {key: value for key, value in model_state(model).items() if "layers" in key}
    assert same(adapters, {key: value for key, value in ddp.state_dict().items() if "layers" in key})
    assert len(load_model_state(model, adapters, strict=False).missing_keys) == 3
    state, of_optimizer = state_of(model), state_of(optimizer)
    assert "share memory" in str(error_of(lambda: save_file(ddp.state_dict(), f"{folder[0]}/x")))
    save_file(state, f"{folder[0]}/x{dist.get_rank()}")  # as under FSDP1, which gathered tied parameters one by one
    record_wrapper(model, "ddp")
    tied = state_of(model)
    assert "share memory" in str(error_of(lambda: save_file(tied, f"{folder[0]}/x"))), "as tied as under DDP"
    record_wrapper(model, "fsdp1")
    if dist.get_rank() == 0:
        save_file({key: value for key, value in state.items() if "head" not in key}, f"{folder[0]}/model.safetensors")
        torch.save({"model": state, "optimizer": of_optimizer}, f"{folder[0]}/all.pt")
    dist.barrier()
    read = torch.load(f"{folder[0]}/all.pt", weights_only=True)
    assert same(read["model"], state) and same(read["optimizer"], optimizer.state_dict() and of_optimizer)
    assert load_model_state(model, load_file(f"{folder[0]}/model.safetensors"), strict=False).missing_keys == ["head.weight"]


def check_save_pretrained() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM  # late: slow to import

    sizes = dict.fromkeys(("hidden_size", "intermediate_size"), 8) | dict.fromkeys(("num_attention_heads",), 2)
    for tie in (True, False):
        config = LlamaConfig(vocab_size=13, num_hidden_layers=1, tie_word_embeddings=tie, **sizes)
        torch.manual_seed(0)
        plain = LlamaForCausalLM(config)
        model: Any = copy.deepcopy(plain)
        fully_shard(model.model.layers[0])
        fully_shard(model)
        record_wrapper(model, "ddp")
        state = {name.removeprefix("module."): value for name, value in model_state(model).items()}
        if dist.get_rank() == 0:
            with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
                plain.save_pretrained(one)
                model.save_pretrained(other, state_dict=state)
                assert same(load_file(Path(one) / "model.safetensors"), load_file(Path(other) / "model.safetensors"))


def check_compiled_models_keep_their_keys() -> None:
    for compile_first in (True, False):
        old: Any = build("plain")
        new: Any = build("plain")
        if compile_first:
            old, new = DDP(torch.compile(old, backend="eager")), torch.compile(new, backend="eager")
            fully_shard(new)
            record_wrapper(new, "ddp")
        else:
            record_wrapper(fully_shard(new), "ddp")
            old, new = torch.compile(DDP(old), backend="eager"), torch.compile(new, backend="eager")
        state = old.state_dict()
        assert list(model_state(new)) == list(state) and close(dict(model_state(new)), dict(state))
        for given in (state, {key.replace("module.", ""): value for key, value in state.items()}):
            assert str(load_model_state(new, given)) == MATCHED
        with state_dict_type(new, SHARDED):
            assert all(isinstance(value, DTensor) for value in model_state(new).values())


class Parent(nn.Module):
    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module, self.own = module, nn.Linear(2, 2)


def check_modules_around_the_model() -> None:
    """One that holds the wrapped model, and wrapped ones with a `module` of their own."""
    old, inner = Parent(wrap("ddp", Parent(Block()))), fully_shard(Parent(Block()))
    new = Parent(inner)
    assert (
        str(load_model_state(new, old.module.module.state_dict(prefix="module.") | old.own.state_dict(prefix="own."))) == MATCHED
    )
    record_wrapper(inner, "ddp")
    assert str(load_model_state(new, old.state_dict())) == MATCHED
    assert list(model_state(new)) == list(old.state_dict()) and close(dict(model_state(new)), dict(old.state_dict()))
    filled: dict[str, Any] = {}
    assert model_state(inner, filled, "p.") is filled
    assert "p.module.module.up.bias" in filled and not any(isinstance(value, DTensor) for value in filled.values())


def check_several_models_that_were_wrapped() -> None:
    """Side by side, and as parts of a module that was wrapped itself."""
    for together in (False, True):
        old, new = nn.ModuleDict({"a": Block(), "b": Block()}), nn.ModuleDict({"a": Block(), "b": Block()})
        for name in ("a", "b"):
            fully_shard(new[name])
            record_wrapper(new[name], "ddp")
        if together:
            old = DDP(old)
            record_wrapper(new, "ddp")
        else:
            old["a"], old["b"] = DDP(old["a"]), DDP(old["b"])
        assert str(load_model_state(new, old.state_dict())) == MATCHED
        assert list(model_state(new)) == list(old.state_dict()) and close(dict(model_state(new)), dict(old.state_dict()))


def check_other_placements() -> None:
    model: Any = nn.Linear(6, 4)
    state = copy.deepcopy(model.state_dict())
    fully_shard(model, shard_placement_fn=lambda parameter: Shard(parameter.dim() - 1))
    models: list[Any] = [model, replicate(nn.Linear(6, 4))]
    for sharded in models:
        assert str(load_model_state(sharded, state)) == MATCHED and same(model_state(sharded), state)
        optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1, momentum=0.9, foreach=False)
        sharded(torch.ones(3, 6)).sum().backward()
        optimizer.step()
        saved = copy.deepcopy(optimizer_state(optimizer))
        load_optimizer_state(optimizer, saved)
        assert same(optimizer_state(optimizer), saved)


def check_activation_checkpointing_leaves_no_trace() -> None:
    old, new = build("plain"), build("plain")
    for net in (old, new):
        apply_activation_checkpointing(net, check_fn=lambda module: isinstance(module, Block))
    old, new = wrap("fsdp1", old), wrap("fsdp2", new)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False) for model in (old, new)]
    train(old, optimizers[0], 0, 2)
    train(new, optimizers[1], 0, 2)
    assert same(old.state_dict(), model_state(new)) and str(load_model_state(new, old.state_dict())) == MATCHED
    with FSDP.state_dict_type(old, FULL, None, FullOptimStateDictConfig(False)):
        state = FSDP.optim_state_dict(old, optimizers[0])
    assert same(state, named.optim_state_dict(new, optimizers[1]))
    load_optimizer_state(optimizers[1], named.optim_state_dict_to_load(new, optimizers[1], state))


def check_other_meshes_and_offloading() -> None:
    expected, reference = pair("ddp")
    continued = train(*(pair("ddp")), 2, 4)
    alone: Any = dist.new_subgroups(1)[0]
    meshes = [init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")) for shape in ((2, 1), (1, 2))]
    for mesh, holders in (
        (meshes[0], [15, 15]),
        (meshes[1], [15, 0]),
        (DeviceMesh.from_group(alone, "cpu"), [15, 15]),
        (None, [15, 0]),
    ):
        options: dict[str, Any] = {"mesh": mesh} if mesh else {"offload_policy": CPUOffloadPolicy(pin_memory=False)}
        model: Any = build("plain")
        for layer in model.layers:
            fully_shard(layer, **options)
        fully_shard(model, **options)
        optimizer = torch.optim.AdamW(grouped(model), lr=1e-2, foreach=False)
        train(model, optimizer, 0, 1)
        assert str(load_model_state(model, expected.state_dict())) == MATCHED
        snapshot = model_state(model)
        load_optimizer_state(optimizer, reference.state_dict())
        assert same(snapshot, expected.module.state_dict()) and same(optimizer_state(optimizer), reference.state_dict())
        full = named.full_optim_state_dict(model, optimizer)
        load_optimizer_state(optimizer, named.scatter_full_optim_state_dict(full, model, optim=optimizer))
        set_state_dict_type(model, FULL, FullStateDictConfig(True, True))
        assert gathered(len(model_state(model))) == holders
        assert (mesh and mesh.size() == 1) or close(train(model, optimizer, 2, 4), continued)
        assert same(snapshot, expected.module.state_dict()), "a snapshot"


def grouped(model: Any) -> list[dict[str, Any]]:
    own = set(model.layers[1].parameters())
    return [
        {"params": [p for p in model.parameters() if (p in own) is first], "lr": 5e-3 if first else 1e-2}
        for first in (True, False)
    ]


class Renaming(Block):
    """State-dict hooks of its own, an old name among them."""

    def __init__(self) -> None:
        super().__init__()
        self._register_load_state_dict_pre_hook(self.rename)
        self.register_state_dict_post_hook(lambda module, state, prefix, _: state.update({f"{prefix}note": torch.tensor(3)}))

    @staticmethod
    def rename(state: dict[str, Any], prefix: str, *_: Any) -> None:
        state.pop(f"{prefix}note", None)
        if f"{prefix}fc.weight" in state:
            state[f"{prefix}up.weight"] = state.pop(f"{prefix}fc.weight")


class Filtering(Block):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {"up": {key: value for key, value in super().state_dict(*args, **kwargs).items() if "up" in key}}, 1

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict[0]["up"], strict=False)


def check_hooks_and_methods_of_the_users() -> None:
    model: Any = fully_shard(Renaming())
    state = model_state(model)
    assert state.pop("note") == 3
    state["fc.weight"] = state.pop("up.weight") + 1
    assert str(load_model_state(model, state)) == MATCHED and torch.equal(whole(model.up.weight), state["fc.weight"])
    model = fully_shard(Filtering())
    state = model_state(model)
    assert state[1] == 1 and {type(value) for value in state[0]["up"].values()} == {torch.Tensor}
    assert len(load_model_state(model, state).missing_keys) == 4


class Delegating(torch.optim.Optimizer):
    """An optimizer around another one, as accelerate has it."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)  # pyright: ignore[reportAssignmentType]

    def state_dict(self) -> Any:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.optimizer.load_state_dict(state_dict)


class Warming:
    """An object with an optimizer in it and a state dict of its own, whose inner calls were rewritten too."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.steps = optimizer, 3

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "optimizer": state_of(self.optimizer)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        load_state(self.optimizer, state["optimizer"])


def check_objects_around_optimizers() -> None:
    model, optimizer = pair("fsdp2")
    expected = optimizer_state(optimizer)
    for thing in (Delegating(optimizer), Warming(optimizer)):
        state = state_of(thing)
        assert same(state.get("optimizer", state), expected)
        load_state(thing, state)
        assert same(optimizer_state(optimizer), expected)
    for thing in (torch.optim.lr_scheduler.StepLR(optimizer, 3), torch.amp.GradScaler("cpu"), torch.jit.script(nn.Linear(2, 2))):
        state = thing.state_dict()
        assert same(state_of(thing), state)
        load_state(thing, state)
    train(model, optimizer, 2, 3)


def check_zero_redundancy() -> None:
    def zero(model: Any) -> Any:
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2, foreach=False)

    model = build("ddp")
    optimizer = zero(model)
    train(model, optimizer, 0, 2)
    consolidate_state_dict(optimizer, to=0)
    box = [state_of(optimizer) if dist.get_rank() == 0 else str(error_of(lambda: state_of(optimizer)))]
    assert dist.get_rank() == 0 or "has not been consolidated" in box[0]
    dist.broadcast_object_list(box)
    other, new = build("ddp"), build("fsdp2")
    optimizers = [zero(other), torch.optim.AdamW(new.parameters(), lr=1e-2, foreach=False)]
    saved = copy.deepcopy([model.state_dict(), box[0]])  # on a CPU both are the live tensors
    expected = train(model, optimizer, 2, 4)
    for each, fresh in zip((other, new), optimizers, strict=True):
        load_state(each, saved[0])
        load_state(fresh, copy.deepcopy(saved[1]))
        consolidate_state_dict(fresh)
        assert close(train(each, fresh, 2, 4), expected)


class Odd(nn.Module):
    """Parameters of one row and of one number, integer buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.row = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1, 5))
        self.linear, self.norm = nn.Linear(5, 3), nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.norm(self.linear(x + self.row)) * self.one).pow(2).sum()


def check_odd_shapes_and_values() -> None:
    torch.manual_seed(0)
    old, new = DDP(Odd()), Odd()
    fully_shard(new)
    load_model_state(new, old.state_dict())
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False) for model in (old, new)]
    for model, optimizer in zip((old, new), optimizers, strict=True):
        for step in range(2):
            optimizer.zero_grad()
            model(torch.arange(20.0).view(4, 5) * step).backward()
            optimizer.step()
    state, expected = old.module.state_dict(), optimizers[0].state_dict()
    assert same(state, model_state(new)) and same(expected, optimizer_state(optimizers[1]))
    load_optimizer_state(optimizers[1], copy.deepcopy(expected))
    by_name = named.full_optim_state_dict(new, optimizers[1], rank0_only=False)
    assert same(expected, named.rekey_optim_state_dict(by_name, OptimStateKeyType.PARAM_ID, new, optim=optimizers[1]))
    for change in (
        torch.Tensor.double,
        lambda t: t.clone().requires_grad_(t.is_floating_point()),
        lambda t: t.mT.contiguous().mT if t.dim() == 2 else t,
    ):
        given = {key: change(value) for key, value in state.items()}
        assert str(load_model_state(new, given)) == MATCHED and same(model_state(new), state)


def check_inside_summoned_parameters_and_on_meta() -> None:
    model, optimizer = pair("fsdp2")
    state = model_state(model)
    with full_parameters(model):
        assert same(model_state(model), state)
        load_model_state(model, {key: value + 1 for key, value in state.items()})
    assert same(model_state(model), {key: value + 1 for key, value in state.items()})
    train(model, optimizer, 2, 3)
    with torch.device("meta"):
        empty = model_state(wrap("fsdp2", Net()))
    assert all(value.is_meta and type(value) is torch.Tensor and value.shape == state[key].shape for key, value in empty.items())


def check_methods_that_are_values() -> None:
    """Read off the model early, called late, and by what has taken their place, as LoRA's recipes do."""
    states = []
    for kind in ("plain", "fsdp2"):
        model = build(kind)
        state, load = as_method(model, "state_dict", state_of), as_method(model, "load_state_dict", load_state)
        load({key: value + 1 for key, value in state().items()})
        states.append(copy.deepcopy(state()))
        model.state_dict = lambda state=state: {key: value for key, value in state().items() if "bias" in key}
        states.append(copy.deepcopy(state_of(model)))
    assert same(states[:2], states[2:])


def check_an_attribute_that_is_no_method_comes_as_it_is() -> None:
    bundle = SimpleNamespace(state_dict={"model": torch.ones(2)})
    assert as_method(bundle, "state_dict", state_of) is bundle.state_dict
