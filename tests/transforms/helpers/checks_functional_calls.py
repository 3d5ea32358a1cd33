"""What functional_calls.py must do on two ranks. Run by test_functional_calls.py."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from models import batch, build, close, error_of, parameters_of
from to_fsdp2.transforms.helpers.each_rank import whole_on_each_rank
from to_fsdp2.transforms.helpers.functional_calls import call_with_weights, on_whole_tensors
from to_fsdp2.transforms.helpers.methods import forward_method
from torch.distributed.tensor import DTensor
from torch.func import functional_call, grad, vmap


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() * 1.5 for name, value in parameters_of(model).items()}


def shards_are_registered(model: Any) -> bool:
    return all(isinstance(p, DTensor) for p in model.parameters())


def check_the_given_weights_are_used_and_kept() -> None:
    for kind in ("fsdp2", "plain"):
        model, plain = build(kind), build("plain")
        given = weights_of(plain)
        expected = functional_call(plain, weights_of(plain), batch(0))
        assert close(call_with_weights(model, given, batch(0)), expected)
        assert all(type(value) is torch.Tensor for value in given.values())
        assert kind == "plain" or shards_are_registered(model)
    model(*batch(1)).backward()
    assert all(p.grad is not None for p in model.parameters())


def check_functional_call_itself_uses_the_shards() -> None:
    """Why there is a helper: when torch's own function does it, this can go."""
    model, plain = build("fsdp2"), build("plain")
    model(*batch(0)).backward()
    given = weights_of(plain)
    expected = functional_call(plain, weights_of(plain), batch(0))
    assert not close(functional_call(model, given, batch(0)), expected)
    assert any(isinstance(value, DTensor) for value in given.values())


def check_what_is_not_given_is_the_models_own() -> None:
    model, plain = build("fsdp2"), build("plain")
    name = "emb.weight"
    given = {name: weights_of(plain)[name]}
    expected = functional_call(plain, given, batch(0))
    assert close(call_with_weights(model, given, batch(0)), expected)
    assert close(call_with_weights(model, [given, {}], batch(0)), expected)
    assert close(call_with_weights(model, {f"module.{name}": given[name]}, batch(0)), expected)
    assert shards_are_registered(model)


def check_gradients_reach_the_given_weights() -> None:
    model, plain = build("fsdp2"), build("plain")
    mine, theirs = ({name: value.requires_grad_() for name, value in weights_of(plain).items()} for _ in range(2))
    call_with_weights(model, mine, batch(0)).backward()
    functional_call(plain, theirs, batch(0)).backward()
    for name, value in theirs.items():
        assert (mine[name].grad is None) == (value.grad is None) and (value.grad is None or close(mine[name].grad, value.grad))


def check_sharded_weights_are_taken_whole() -> None:
    """A step away from the model's own parameters, as meta-learning makes it."""
    model, plain = build("fsdp2"), build("plain")
    mine = {name: p * 0.5 for name, p in model.named_parameters()}
    theirs = {name: p * 0.5 for name, p in plain.named_parameters()}
    assert close(call_with_weights(model, mine, batch(0)), functional_call(plain, theirs, batch(0)))


def check_one_rank_calls_it_alone_with_all_weights() -> None:
    model, plain = build("fsdp2"), build("plain")
    given = weights_of(plain)
    if dist.get_rank() == 0:
        assert close(call_with_weights(model, given, batch(0)), functional_call(plain, weights_of(plain), batch(0)))
    with whole_on_each_rank(model):
        if dist.get_rank() == 0:
            name = "emb.weight"
            some = {name: given[name]}
            assert close(call_with_weights(model, some, batch(0)), functional_call(plain, some, batch(0)))
            assert close(model(*batch(0)), plain(*batch(0)))
    assert shards_are_registered(model)


def check_methods_and_errors_leave_the_model_as_it_was() -> None:
    model = build("fsdp2")
    forward_method(model, "eval")
    assert isinstance(error_of(lambda: call_with_weights(model, {"scale": torch.zeros(2)}, batch(0))), RuntimeError)
    assert shards_are_registered(model)
    model(*batch(1)).backward()


def check_transformed_functions_get_whole_weights() -> None:
    """The gradients of each sample, of parameters as the model has them."""
    found = []
    for model, run, prepared in ((build("fsdp2"), call_with_weights, on_whole_tensors), (build("plain"), functional_call, None)):

        def loss_of(weights: Any, row: Any, model: Any = model, run: Any = run) -> Any:
            return run(model, weights, (row,)).square().sum()

        each: Any = vmap(grad(loss_of), in_dims=(None, 0))
        each = each if prepared is None else prepared(each)
        weights = {name: p.detach() for name, p in model.named_parameters()}
        found.append(each(weights, torch.stack([batch(0)[0], batch(1)[0]])))
    assert all(type(value) is torch.Tensor for value in found[0].values())
    assert close(*found)
