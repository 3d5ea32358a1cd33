"""What whole.py and state.py must do on two ranks. Run by test_state.py."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from functools import partial
from typing import Any

import torch
from models import Net, batch, build, close, error_of, record_wrapper
from to_fsdp2.transforms.helpers.state import load_model_state, load_state, model_state, state_of
from to_fsdp2.transforms.helpers.whole import state_entry, whole
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

Pair = namedtuple("Pair", "first second")


def trained(kind: str, steps: int = 2, ddp: bool = False, evaluate: bool = False, **options: Any) -> Any:
    model = build(kind, **options)
    if ddp:
        record_wrapper(model, "ddp")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, foreach=False)
    for step in range(steps):
        optimizer.zero_grad()
        model(*batch(step)).backward()
        optimizer.step()
    if evaluate:
        with torch.no_grad():
            model(*batch(9))
    return model


def same_state(one: Any, other: Any) -> bool:
    return list(one) == list(other) and type(one) is type(other) and close(dict(one), dict(other), 1e-6)


def check_whole_keeps_containers_and_what_is_not_sharded() -> None:
    model = build("fsdp2")
    shard = model.head.weight
    plain = {"a": torch.ones(2), "b": [1, (None, torch.zeros(3))], "c": Pair("x", 2)}
    assert whole(plain) is plain
    ordered = OrderedDict(a=plain["a"], w=shard)
    ordered._metadata = {"": 1}  # type: ignore[attr-defined]
    value = {"o": ordered, "l": [shard, plain], "t": (1, shard), "p": Pair(shard, "x"), "plain": plain}
    result = whole(value)
    assert type(result["o"]) is OrderedDict and result["o"]._metadata == {"": 1} and result["o"]["a"] is plain["a"]
    assert type(result["p"]) is Pair and result["plain"] is plain and result["l"][1] is plain and type(result["t"]) is tuple
    full = shard.full_tensor()
    for gathered in (result["o"]["w"], result["l"][0], result["t"][1], result["p"].first, whole(shard)):
        assert not isinstance(gathered, DTensor) and torch.equal(gathered, full)
    assert isinstance(value["l"][0], DTensor) and whole(plain["a"]) is plain["a"] and whole(None) is None


def check_model_state_is_ddps_and_fsdp1s() -> None:
    for evaluate in (False, True):
        ddp, fsdp1 = trained("ddp", evaluate=evaluate), trained("fsdp1", evaluate=evaluate)
        new, like_ddp = trained("fsdp2", evaluate=evaluate), trained("fsdp2", ddp=True, evaluate=evaluate)
        assert same_state(model_state(new), fsdp1.state_dict())
        assert same_state(model_state(like_ddp), ddp.state_dict())
        assert same_state(state_of(like_ddp), ddp.module.state_dict()), "what is unwrapped has no prefix"
        assert list(model_state(like_ddp)._metadata) == [name for name in ddp.state_dict()._metadata if name]
        assert same_state(model_state(new.layers[1]), fsdp1.layers[1].state_dict())
        assert same_state(model_state(new.head), ddp.module.head.state_dict())
        assert same_state(model_state(like_ddp, prefix="p."), ddp.state_dict(prefix="p."))
        assert all(type(value) is torch.Tensor for value in model_state(new).values())


def check_the_users_own_call_for_everything_else() -> None:
    for kind in ("plain", "ddp", "fsdp1"):
        model = trained(kind)
        own, mine = model.state_dict(), model_state(model)
        assert same_state(own, mine)
        if kind != "fsdp1":
            assert all(own[key].data_ptr() == mine[key].data_ptr() for key in own), "no copies"
        changed = {key: value + 1 for key, value in own.items()}
        assert str(load_state(model, changed)) == "<All keys matched successfully>"
        assert close(dict(model.state_dict()), changed)
        wrong = {f"module.{key}": value for key, value in own.items()}
        assert str(error_of(partial(load_model_state, model, wrong))) == str(error_of(partial(model.load_state_dict, wrong)))
        assert len(load_model_state(model, wrong, strict=False).missing_keys) == len(own)


def check_loading_whole_state() -> None:
    state = dict(trained("ddp").state_dict())
    inner = {key.removeprefix("module."): value for key, value in state.items()}
    for given in (state, inner, OrderedDict(inner), trained("fsdp2").state_dict()):
        for evaluate in (False, True):
            for assign in (False, True):
                model = trained("fsdp2", steps=1, evaluate=evaluate)
                before = {key: (id(value), value.shape) for key, value in given.items()}
                result = load_model_state(model, given, assign=assign)
                assert str(result) == "<All keys matched successfully>"
                assert close({key: whole(value) for key, value in model.state_dict().items()}, inner)
                assert before == {key: (id(value), value.shape) for key, value in given.items()}
                model(*batch(5)).backward()
    model = build("fsdp2")
    part = {key: value for key, value in inner.items() if "layers.0" not in key} | {"other": torch.ones(1)}
    result = load_model_state(model, part, strict=False)
    assert len(result.missing_keys) == 6 and result.unexpected_keys == ["other"]
    assert "size mismatch for scale" in str(error_of(lambda: load_model_state(model, inner | {"scale": torch.ones(3)})))
    assert load_model_state(model.layers[1], build("plain").layers[0].state_dict()).missing_keys == []


def check_meta_models_take_assign() -> None:
    state = model_state(trained("fsdp2"))
    with torch.device("meta"):
        model = Net()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    assert str(load_model_state(model, state, assign=True)) == "<All keys matched successfully>"
    model.head.weight = model.emb.weight  # assign unties, as ever
    assert run(model) == run(trained("fsdp2"))


def run(model: Any, steps: int = 2) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(*batch(20 + step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_entries_of_states_are_whole_and_detached_if_they_are_tensors() -> None:
    model, plain = build("fsdp2"), build("plain")
    entry = state_entry(model.scale)
    assert type(entry) is torch.Tensor and not entry.requires_grad and close(entry, plain.scale.detach())
    for other in (4.0, "name", None, [1, 2]):
        assert state_entry(other) is other
