"""What optimizer_state.py, state_kinds.py and named_optimizer_state.py must do on two ranks. Run by test_optimizer_state.py."""

from __future__ import annotations

import contextlib
import copy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from models import Block, batch, build, close, error_of, parameters_of
from to_fsdp2.transforms.helpers import named_optimizer_state as named
from to_fsdp2.transforms.helpers.optimizer_state import load_optimizer_state, optimizer_state
from to_fsdp2.transforms.helpers.state import load_model_state, load_state, model_state
from to_fsdp2.transforms.helpers.state_kinds import get_state_dict_type, set_state_dict_type, state_dict_type
from to_fsdp2.transforms.helpers.whole import whole
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    MixedPrecisionPolicy,
    OptimStateKeyType,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP

CPU = torch.device("cpu")
FULL, SHARDED, LOCAL = StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT, StateDictType.LOCAL_STATE_DICT
OPTIMIZERS = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-2, foreach=False),
    "amsgrad fused": lambda groups: torch.optim.AdamW(groups, lr=1e-2, amsgrad=True, fused=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=1e-2),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=1e-2, foreach=False),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=1e-2, centered=True, momentum=0.5, foreach=False),
}  # fmt: skip


def wrap(kind: str, net: Any) -> Any:
    """`net` as plain | ddp | fsdp1 | flat (FSDP1 without original parameters) | fsdp2."""
    if kind == "ddp":
        return DDP(net)
    if kind in ("fsdp1", "flat"):
        return FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=kind == "fsdp1", device_id=CPU)
    if kind == "fsdp2":
        for layer in net.layers:
            fully_shard(layer)
        fully_shard(net)
    return net


def pair(kind: str, optimizer: str = "adamw", steps: int = 2, frozen: bool = False, seed: int = 0) -> tuple[Any, Any]:
    """A model and its optimizer of two groups, after some steps."""
    net = build("plain")
    net.layers[0].requires_grad_(not frozen)
    model = wrap(kind, net)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    own = set(net.layers[1].parameters())
    groups = [{"params": [p for p in trained if (p in own) is first], "lr": 5e-3 if first else 1e-2} for first in (True, False)]
    made = OPTIMIZERS[optimizer](groups)
    train(model, made, 0, steps)
    return model, made


def train(model: Any, optimizer: Any, start: int, end: int) -> list[float]:
    losses = []
    for step in range(start, end):
        optimizer.zero_grad()
        loss = model(*batch(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """The leaves of nested dicts and lists by path."""
    if isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: leaf for name, item in items for key, leaf in flat(item, f"{path}/{name}").items()}
    return {path: value}


def same(one: Any, other: Any) -> bool:
    one, other = flat(one), flat(other)
    return one.keys() == other.keys() and all(
        close(one[key], other[key]) and type(one[key]) is type(other[key])
        if isinstance(one[key], torch.Tensor)
        else one[key] == other[key]
        for key in one
    )


def check_optimizer_state_is_ddps_and_each_loads_the_others() -> None:
    for optimizer in OPTIMIZERS:
        for steps, frozen in ((0, False), (2, False), (2, True)):
            old, new = pair("ddp", optimizer, steps, frozen), pair("fsdp2", optimizer, steps, frozen)
            before, mine = old[1].state_dict(), optimizer_state(new[1])
            assert same(before, mine), (optimizer, steps, frozen)
            before = copy.deepcopy(before)
            model, fresh = pair("fsdp2", optimizer, 0, frozen)
            load_model_state(model, model_state(old[0]))
            load_optimizer_state(fresh, before)
            assert same(before, old[1].state_dict()), "what is loaded is not changed"
            assert same(before, optimizer_state(fresh))
            back, plain = pair("ddp", optimizer, 0, frozen)
            load_model_state(back.module, model_state(new[0]))
            load_state(plain, mine)
            expected = train(*old, 2, 5)
            assert close(train(model, fresh, 2, 5), expected), (optimizer, steps, frozen)
            assert close(train(back, plain, 2, 5), expected)
            assert close(parameters_of(model), parameters_of(old[0]), 1e-5)


def check_full_state_by_name_is_fsdp1s() -> None:
    for frozen in (False, True):
        for rank0_only in (False, True):
            configs = FullStateDictConfig(rank0_only=rank0_only), FullOptimStateDictConfig(False, rank0_only)
            old, new = pair("fsdp1", frozen=frozen), pair("fsdp2", frozen=frozen)
            with FSDP.state_dict_type(old[0], FULL, *configs):
                before = old[0].state_dict(), FSDP.optim_state_dict(*old)
            with state_dict_type(new[0], FULL, *configs):
                mine = model_state(new[0]), named.optim_state_dict(*new)
            assert same(before, mine), (frozen, rank0_only)
            assert bool(mine[0]) is bool(mine[1]) is (not rank0_only or dist.get_rank() == 0)
            box = [before[0]]
            dist.broadcast_object_list(box)
            model, fresh = pair("fsdp2", "adamw", 0, frozen)
            load_model_state(model, box[0])
            with state_dict_type(model, FULL, *configs):
                given = copy.deepcopy(before[1])
                fresh.load_state_dict(named.optim_state_dict_to_load(model, fresh, before[1]))
                assert same(given, before[1])
            assert close(train(model, fresh, 2, 5), train(*old, 2, 5))


def check_kinds() -> None:
    model, optimizer = pair("fsdp2")
    assert get_state_dict_type(model) == FSDP.get_state_dict_type(build("fsdp1"))
    assert set_state_dict_type(model, SHARDED, ShardedStateDictConfig(offload_to_cpu=True)).state_dict_type is FULL
    assert get_state_dict_type(model).state_dict_config == ShardedStateDictConfig(offload_to_cpu=True)
    assert get_state_dict_type(model).optim_state_dict_config == ShardedOptimStateDictConfig()
    state = model_state(model)
    weight = model.layers[0].up.weight
    assert all(isinstance(value, DTensor) for value in state.values())
    assert state["layers.0.up.weight"].to_local().data_ptr() != weight.to_local().data_ptr(), "a snapshot"
    assert isinstance(named.optim_state_dict(model, optimizer)["state"]["emb.weight"]["exp_avg"], DTensor)
    with state_dict_type(model, FULL):
        assert not isinstance(model_state(model)["emb.weight"], DTensor)
        assert not isinstance(model_state(model.layers[0])["up.weight"], DTensor)
    assert isinstance(model_state(model.layers[0])["up.weight"], DTensor), "restored, for units too"
    with contextlib.suppress(KeyError), state_dict_type(model, FULL):
        raise KeyError
    assert get_state_dict_type(model).state_dict_type is SHARDED
    for kind in (SHARDED, LOCAL):
        with state_dict_type(model, kind):
            state = model_state(model), named.optim_state_dict(model, optimizer)
            other, fresh = pair("fsdp2", "adamw", 0)
            load_model_state(other, state[0])
            fresh.load_state_dict(named.optim_state_dict_to_load(other, fresh, state[1]))
            assert same(optimizer_state(fresh), optimizer_state(optimizer))
            assert close(parameters_of(other), parameters_of(model))
    old = build("fsdp1")
    with state_dict_type(old, LOCAL):
        assert "_flat_param" in str(error_of(partial(load_model_state, model, model_state(old))))


def check_legacy_functions() -> None:
    old, new = pair("fsdp1"), pair("fsdp2")
    with FSDP.state_dict_type(old[0], FULL, None, FullOptimStateDictConfig(False)):
        before = FSDP.optim_state_dict(*old)
    mine = named.full_optim_state_dict(*new)
    assert same(before if dist.get_rank() == 0 else {}, mine)
    mine = named.full_optim_state_dict(*new, rank0_only=False)
    sharded = named.sharded_optim_state_dict(*new)
    assert isinstance(sharded["state"]["scale"]["exp_avg"], DTensor)
    wanted = optimizer_state(new[1])
    loads = {
        "shard": lambda model, optim: named.shard_full_optim_state_dict(mine, model, optim=optim),
        "shard by input": lambda model, optim: named.shard_full_optim_state_dict(mine, model, optim.param_groups),
        "scatter": lambda model, optim: named.scatter_full_optim_state_dict(
            mine if dist.get_rank() == 0 else None, model, optim=optim
        ),
        "flatten": lambda model, optim: named.flatten_sharded_optim_state_dict(sharded, model, optim),
    }
    for name, load in loads.items():
        model, optimizer = pair("fsdp2", "adamw", 0)
        optimizer.load_state_dict(load(model, optimizer))
        assert same(optimizer_state(optimizer), wanted), name
    model, optimizer = pair("plain")
    name, position = OptimStateKeyType.PARAM_NAME, OptimStateKeyType.PARAM_ID
    by_name = named.rekey_optim_state_dict(optimizer.state_dict(), name, model, optim=optimizer)
    assert same(by_name, FSDP.rekey_optim_state_dict(optimizer.state_dict(), name, model, optim=optimizer))
    by_id = named.rekey_optim_state_dict(mine, position, model, optim=optimizer)
    assert same(by_id, FSDP.rekey_optim_state_dict(mine, position, model, optim=optimizer))
    assert same(by_id, named.rekey_optim_state_dict(mine, position, new[0], optim=new[1]))
    optimizer.load_state_dict(by_id)
    assert same(optimizer.state_dict(), wanted)


def check_live_fsdp1_answers_by_itself() -> None:
    for kind in ("fsdp1", "flat"):
        model, optimizer = pair(kind)
        configs = FullStateDictConfig(), FullOptimStateDictConfig(False)
        with state_dict_type(model, FULL, *configs):
            assert get_state_dict_type(model) == FSDP.get_state_dict_type(model)
            assert get_state_dict_type(model).optim_state_dict_config == configs[1]
            state = FSDP.optim_state_dict(model, optimizer)
            assert same(named.optim_state_dict(model, optimizer), state)
            load = FSDP.optim_state_dict_to_load(model, optimizer, state)
            assert same(named.optim_state_dict_to_load(model, optimizer, state), load)
            assert same(named.optim_state_dict_to_load(state, model, optimizer), load), "as torch 2.0 had it"
            assert same(named.optim_state_dict_to_load(model, optimizer, state, load_directly=True), load)
        assert same(named.full_optim_state_dict(model, optimizer), FSDP.full_optim_state_dict(model, optimizer))
        shards = FSDP.sharded_optim_state_dict(model, optimizer)
        assert named.sharded_optim_state_dict(model, optimizer)["state"].keys() == shards["state"].keys()
        assert same(named.flatten_sharded_optim_state_dict(shards, model, optimizer), load)
        assert same(named.shard_full_optim_state_dict(state, model, optim=optimizer), load)
        given = copy.deepcopy(state) if dist.get_rank() == 0 else None
        assert same(named.scatter_full_optim_state_dict(given, model, optim=optimizer), load)
        own = optimizer.state_dict()
        mine = optimizer_state(optimizer)
        assert same(mine, own) and all(mine["state"][key] is entry for key, entry in own["state"].items())
        load_optimizer_state(optimizer, copy.deepcopy(own))
        assert same(optimizer.state_dict(), own)


def check_after_a_forward_without_gradients() -> None:
    (model, optimizer), (other, reference) = pair("fsdp2"), pair("ddp")
    expected = copy.deepcopy(reference.state_dict())
    continued = train(other, reference, 2, 4)

    def evaluated() -> Any:
        with torch.no_grad():
            model(*batch(9))
        return model

    state = model_state(evaluated())
    assert same(optimizer_state(evaluated() and optimizer), expected)
    load_state(evaluated() and optimizer, state_dict=expected)
    by_name = named.full_optim_state_dict(evaluated(), optimizer, rank0_only=False)
    load_optimizer_state(optimizer, named.shard_full_optim_state_dict(by_name, evaluated(), optim=optimizer))
    load_optimizer_state(optimizer, named.scatter_full_optim_state_dict(by_name, evaluated(), optim=optimizer))
    shards = named.sharded_optim_state_dict(evaluated(), optimizer)
    load_optimizer_state(optimizer, named.flatten_sharded_optim_state_dict(shards, evaluated(), optimizer))
    by_id = named.rekey_optim_state_dict(by_name, OptimStateKeyType.PARAM_ID, evaluated(), optim=optimizer)
    assert same(by_id, expected)
    set_state_dict_type(evaluated(), SHARDED)
    named.optim_state_dict_to_load(evaluated(), optimizer, named.optim_state_dict(evaluated(), optimizer), load_directly=True)
    load_model_state(evaluated(), state_dict=state, strict=True)
    assert same(optimizer_state(optimizer), expected) and close(train(model, optimizer, 2, 4), continued)


def check_mixed_precision_and_optimizers_that_know_names() -> None:
    model = build("plain")
    for unit in (*model.layers, model):
        fully_shard(unit, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    optimizer = torch.optim.SGD(list(model.named_parameters()), lr=0.1, momentum=0.9, foreach=False)
    train(model, optimizer, 0, 2)
    state = named.full_optim_state_dict(model, optimizer, rank0_only=False)
    assert state["param_groups"][0]["param_names"] == state["param_groups"][0]["params"]
    assert {value.dtype for value in [*model_state(model).values(), *flat(state["state"]).values()]} == {torch.float32}
    optimizer.load_state_dict(named.optim_state_dict_to_load(model, optimizer, state))
    assert same(named.full_optim_state_dict(model, optimizer, rank0_only=False), state)
    keyed = Keyed(optimizer, [name for name, _ in model.named_parameters()])
    assert same(named.optim_state_dict(model, keyed)["state"], state["state"])
    loadable = named.optim_state_dict_to_load(model, keyed, state, is_named_optimizer=True)
    assert loadable["param_groups"][0]["params"] == sorted(keyed.names)
    assert all(isinstance(entry["momentum_buffer"], DTensor) for entry in loadable["state"].values())
    assert same(whole(loadable["state"]), state["state"])


class Keyed:
    """An optimizer whose state dict is keyed by name, in alphabetical order, as torchrec's is."""

    def __init__(self, optimizer: Any, names: list[str]) -> None:
        self.optimizer, self.names, self.param_groups = optimizer, names, optimizer.param_groups

    def state_dict(self) -> dict[str, Any]:
        state = self.optimizer.state_dict()["state"]
        return {
            "state": {name: state[self.names.index(name)] for name in sorted(self.names)},
            "param_groups": [{"lr": 0.1, "params": sorted(self.names)}],
        }
