# pyright: reportCallIssue=false, reportArgumentType=false
"""State dicts of sharded models against DDP's and FSDP1's; what happens without processes."""

import copy
from typing import Any

import pytest
from two_ranks import names, outcome

torch = pytest.importorskip("torch")

from to_fsdp2.transforms.helpers import named_optimizer_state as named  # noqa: E402
from to_fsdp2.transforms.helpers import state_kinds  # noqa: E402
from to_fsdp2.transforms.helpers.ddp_keys import own_key  # noqa: E402
from to_fsdp2.transforms.helpers.optimizer_state import consolidate_state_dict  # noqa: E402
from to_fsdp2.transforms.helpers.state import load_state, state_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import OptimStateKeyType, StateDictType  # noqa: E402

FILES = ("checks_state.py", "checks_whole_states.py")


@pytest.mark.slow
@pytest.mark.parametrize(("file", "check"), [(file, check) for file in FILES for check in names(file)])
def test_on_two_ranks(file: str, check: str) -> None:
    assert outcome(file, check) == "passed"


def trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_plain_objects_answer_by_themselves():
    model, optimizer = trained()
    for thing in (model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3), torch.amp.GradScaler("cpu")):
        state = thing.state_dict()
        assert same(state_of(thing), state) and type(state_of(thing)) is type(state)
        assert load_state(thing, copy.deepcopy(state)) == thing.load_state_dict(copy.deepcopy(state))
        assert same(thing.state_dict(), state)
    assert state_of(model)["0.weight"].data_ptr() == model[0].weight.data_ptr(), "no copies"
    assert list(state_of(model, prefix="p.")) == list(model.state_dict(prefix="p."))
    without = {key: value for key, value in model.state_dict().items() if "bias" not in key}
    assert load_state(model, without, strict=False).missing_keys == ["0.bias", "1.bias", "2.bias"]
    for call in (model.load_state_dict, lambda state: load_state(model, state)):
        with pytest.raises(RuntimeError, match="Missing key"):
            call({f"module.{key}": value for key, value in model.state_dict().items()})
        with pytest.raises(TypeError, match="dict-like"):
            call(3)
    with pytest.raises(AttributeError, match="state_dict"):
        state_of(3)
    assert consolidate_state_dict(optimizer) is None


def test_any_signature_is_passed_on():
    class Loader:
        around: dict[str, Any]

        def state_dict(self, model, *, thing):
            return model, thing

        def load_state_dict(self, model, *, thing=None):
            return model, thing

    assert state_of(Loader(), model=1, thing=2) == (1, 2) and load_state(Loader(), 1, thing=3) == (1, 3)
    loader = Loader()
    loader.around = {}
    loader.around["around"] = loader.around
    given = {"a": [torch.ones(2)], "around": {"around": (1, {"x": torch.ones(1)})}}
    assert load_state(loader, model=given)[0] is given, "whatever the attributes are"


def test_fsdp1s_functions_on_plain_models():
    model, optimizer = trained()
    with state_kinds.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        assert state_kinds.get_state_dict_type(model) is None
        assert same(state_of(model), model.state_dict())
    by_name = named.optim_state_dict(model, optimizer)
    assert list(by_name["state"]) == [name for name, _ in model.named_parameters()]
    loadable = named.optim_state_dict_to_load(model, optimizer, by_name)
    assert same(loadable, optimizer.state_dict())
    back = named.rekey_optim_state_dict(by_name, OptimStateKeyType.PARAM_ID, model)
    assert same(back, optimizer.state_dict())
    assert named.rekey_optim_state_dict(back, OptimStateKeyType.PARAM_ID, model) is back


@pytest.mark.parametrize(
    ("key", "own"),
    [
        ("module.0.weight", "0.weight"),
        ("0.weight", "0.weight"),
        ("inner.module.module.bias", "inner.module.bias"),
        ("module.inner.module.bias", "inner.module.bias"),
        ("inner.module.bias", "inner.module.bias"),
        ("module.unknown", "unknown"),
        ("unknown.module.x", "unknown.module.x"),
        ("module", ""),
    ],
)
def test_which_module_is_ddps(key, own):
    inner = nn.Module()
    inner.module = nn.Linear(2, 2)
    model = nn.Sequential(nn.Linear(2, 2))
    model.inner = inner
    assert own_key(model, key) == own
