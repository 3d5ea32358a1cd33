"""FS934: hooks of parameters that FSDP2 never runs."""

from __future__ import annotations

from collections.abc import Iterator

from ..contract import Breach, Contract
from ..findings import Level
from ..rule import ContractRule, Example


def never_run(contract: Contract) -> Iterator[Breach]:
    """Hooks on sharded parameters, whenever they are registered; those after accumulation only if they were before."""
    for file, call, function in contract.methods("register_hook", "register_post_accumulate_grad_hook"):
        calls = contract.models.of_owners(file, function.value, ("parameters",))
        if not calls or not contract.modes.agree(file, call, calls):
            continue
        is_before = contract.order.is_before(file, call, calls)
        if is_before and contract.runs_parameter_hooks(calls):
            continue
        if function.attr == "register_hook" or is_before:
            message = f"{function.attr} has no effect here: the hook never runs on a sharded model"
            yield Breach(file, call, message, f"torch.Tensor.{function.attr}", model=function.value)


RULE = ContractRule(
    id="FS934",
    title="hooks of sharded parameters",
    why="fully_shard replaces parameters and hands out their gradients itself: their tensor hooks never run, without an error.",
    advice="register_post_accumulate_grad_hook behind fully_shard, which gets the sharded gradient",
    breaches=never_run,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model):\n"
                "    fully_shard(model)\n"
                "    for p in model.parameters():\n"
                "        p.register_hook(lambda grad: grad.clamp(-1, 1))\n"
            ),
            after=(
                "from torch.distributed.fsdp import fully_shard\n\n\n"
                "def f(model):\n"
                "    fully_shard(model)\n"
                "    for p in model.parameters():\n"
                "        p.register_post_accumulate_grad_hook(lambda p: p.grad.clamp_(-1, 1))\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
