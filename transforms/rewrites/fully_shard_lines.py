"""The statements that shard a module with FSDP2, as people write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .fsdp1_arguments import Fsdp1Arguments

if TYPE_CHECKING:
    from .fsdp1_plan import Fsdp1Plan

Spell = Callable[[str], str]
_FSDP = "torch.distributed.fsdp."


def lines_for_fsdp1(plan: Fsdp1Plan, spell: Spell, helper: Spell, free_name: Callable[[str], str]) -> Callable[[str], str]:
    """The lines, given the module's name. ``spell`` gives the name of a torch symbol in the file, ``helper`` of ours."""
    arguments = plan.arguments
    shard = spell(f"{_FSDP}fully_shard")
    keywords: list[str] = []
    head = ""
    unit_keywords: list[str] = []
    if arguments.precision:
        policy, unit_policy = free_name("mp_policy"), free_name("unit_mp_policy")
        given = ", ".join(f"{name}={value}" for name, value in arguments.precision.items())
        kind = spell(f"{_FSDP}MixedPrecisionPolicy")
        head += f"{policy} = {kind}({given})\n"
        keywords.append(f"mp_policy={policy}")
        if arguments.unit_test and not arguments.units_cast_inputs:
            head += f"{unit_policy} = {kind}({given}, cast_forward_inputs=False)\n"
            unit_keywords.append(f"mp_policy={unit_policy}")
        else:
            unit_keywords.append(f"mp_policy={policy}")
    common = [f"mesh={arguments.mesh}"] if arguments.mesh else []
    common += [] if arguments.reshard else ["reshard_after_forward=False"]
    if arguments.strategy:  # the model itself is not resharded after forward by default
        strategy = arguments.strategy
        if not strategy.replace(".", "_").isidentifier():
            strategy = free_name("strategy")
            head += f"{strategy} = {arguments.strategy}\n"
        unit_keywords.append(f"reshard_after_forward={strategy} != {spell(_FSDP + 'ShardingStrategy')}.SHARD_GRAD_OP")
    if arguments.offload:
        common.append(f"offload_policy={spell(_FSDP + 'CPUOffloadPolicy')}()")

    def lines(module: str) -> str:
        text = head
        text += _moved_and_synchronized(module, arguments, spell, helper)
        named = f"{helper('keep_class_name')}({{}})\n" if plan.keeps_names else ""
        sharded = f"{shard}({', '.join([module, *keywords, *common])})\n{named.format(module)}"
        if arguments.unit_test:
            call = f"{shard}({', '.join(['unit', *unit_keywords, *common])})\n{named.format('unit')}"
            sharded = units_loop(module, arguments.unit_test, call) + sharded
        text += f"with {helper('rebound_parameters')}({module}):\n{indented(sharded)}" if plan.rebinds else sharded
        if arguments.device and not arguments.synchronize:
            # The parameters are on the device by now: whole ones were never there together.
            text += f"{module}.to({arguments.device})\n"
        if plan.acts_in_parts:
            text += f"{helper('compute_with_parts')}({module})\n"
        if plan.reshards:
            text += f"{helper('reshard_after_evaluation')}({module})\n"
        if plan.resets:
            text += f"{helper('reset_shards_in_zero_grad')}()\n"
        return text

    return lines


def units_loop(module: str, test: str, call: str) -> str:
    """A loop over the modules below ``module`` that a test of ``unit`` is true of, children first."""
    over = f"reversed(list({module}.modules()))" if test.startswith("isinstance(") else f"reversed(list({module}.modules())[1:])"
    return f"for unit in {over}:\n    if {test}:\n{indented(indented(call))}"


def indented(text: str) -> str:
    """Lines, one level deeper."""
    return "".join(f"    {line}\n" for line in text.splitlines())


def broadcast_loop(module: str, spell: Spell) -> str:
    """A loop that gives every rank the weights and buffers of rank 0."""
    broadcast = spell("torch.distributed.broadcast")
    return f"for tensor in [*{module}.parameters(), *{module}.buffers()]:\n    {broadcast}(tensor.detach(), src=0)\n"


def _moved_and_synchronized(module: str, arguments: Fsdp1Arguments, spell: Spell, helper: Spell) -> str:
    text = ""
    if arguments.device and arguments.synchronize:
        text += f"{module}.to({arguments.device})\n"
    if arguments.buffer_dtype:
        text += f"{helper('cast_buffers')}({module}.modules(), {arguments.buffer_dtype})\n"
    if arguments.synchronize:
        text += broadcast_loop(module, spell)
    return text
