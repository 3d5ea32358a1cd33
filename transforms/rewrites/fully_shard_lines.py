"""The statements that shard a module with FSDP2, as people write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .fsdp1_arguments import Fsdp1Arguments

Spell = Callable[[str], str]
_FSDP = "torch.distributed.fsdp."


def lines_for_fsdp1(arguments: Fsdp1Arguments, spell: Spell, free_name: Callable[[str], str]) -> Callable[[str], str]:
    """The lines, given the module's name. ``spell`` gives the name of a torch symbol in the file."""
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
        if arguments.classes and not arguments.units_cast_inputs:
            head += f"{unit_policy} = {kind}({given}, cast_forward_inputs=False)\n"
            unit_keywords.append(f"mp_policy={unit_policy}")
        else:
            unit_keywords.append(f"mp_policy={policy}")
    common = [] if arguments.reshard else ["reshard_after_forward=False"]
    if arguments.offload:
        common.append(f"offload_policy={spell(_FSDP + 'CPUOffloadPolicy')}()")

    def lines(module: str) -> str:
        text = head
        text += _moved_and_synchronized(module, arguments, spell)
        if arguments.classes:
            text += units_loop(module, arguments.classes, shard, [*unit_keywords, *common])
        text += f"{shard}({', '.join([module, *keywords, *common])})\n"
        if arguments.device and not arguments.synchronize:
            # The parameters are on the device by now: whole ones were never there together.
            text += f"{module}.to({arguments.device})\n"
        return text

    return lines


def units_loop(module: str, classes: Sequence[str], shard: str, keywords: Sequence[str]) -> str:
    """A loop that shards every module of some classes, children first."""
    test = classes[0] if len(classes) == 1 else f"({', '.join(classes)})"
    call = f"{shard}({', '.join(['unit', *keywords])})"
    return f"for unit in reversed(list({module}.modules())):\n    if isinstance(unit, {test}):\n        {call}\n"


def broadcast_loop(module: str, spell: Spell) -> str:
    """A loop that gives every rank the weights and buffers of rank 0."""
    broadcast = spell("torch.distributed.broadcast")
    return f"for tensor in [*{module}.parameters(), *{module}.buffers()]:\n    {broadcast}(tensor.detach(), src=0)\n"


def _moved_and_synchronized(module: str, arguments: Fsdp1Arguments, spell: Spell) -> str:
    text = ""
    if arguments.device and arguments.synchronize:
        text += f"{module}.to({arguments.device})\n"
    if arguments.buffer_dtype:
        text += (
            f"for buffer in {module}.buffers():\n"
            f"    if buffer.is_floating_point():\n        buffer.data = buffer.data.to({arguments.buffer_dtype})\n"
        )
    if arguments.synchronize:
        text += broadcast_loop(module, spell)
    return text
