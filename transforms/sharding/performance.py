"""Arguments of FSDP1 that only steer when parameters are gathered: FSDP2 decides this by itself."""

from __future__ import annotations

from ..findings import Level
from ..rule import Outcome
from .constructor import Argument, Constructor, translates


@translates("limit_all_gathers")
def limit_all_gathers(constructor: Constructor, argument: Argument) -> Outcome:
    """FSDP2 always limits, without blocking the CPU."""
    if argument.constant() is False:
        return Outcome(
            Level.REVIEW,
            "limit_all_gathers=False goes: FSDP2 always bounds how much is gathered ahead; speed only",
        )
    return Outcome(
        Level.SAFE, "limit_all_gathers goes: FSDP2 always limits", silent=argument.constant() is ...
    )


@translates("use_orig_params")
def use_orig_params(constructor: Constructor, argument: Argument) -> Outcome:
    """FSDP2 has original parameters only."""
    if argument.constant() is True or not _looks_at_shapes(constructor):
        return Outcome(Level.SAFE, "use_orig_params goes: FSDP2 always keeps the original parameters")
    return Outcome(
        Level.REVIEW,
        "use_orig_params goes: parameters had one dimension under FSDP1 and have their own shapes now, so groups "
        "chosen by p.dim() or p.ndim come out differently",
    )


@translates("backward_prefetch")
def backward_prefetch(constructor: Constructor, argument: Argument) -> Outcome:
    """FSDP2 always prefetches the next unit before the current one computes."""
    if argument.is_none or "BACKWARD_POST" in argument.view.text(argument.node):
        return Outcome(
            Level.REVIEW,
            "FSDP2 always gathers the next unit early in the backward (BACKWARD_PRE): more memory, same numbers",
        )
    return Outcome(Level.SAFE, "backward_prefetch goes: FSDP2 always does BACKWARD_PRE")


@translates("forward_prefetch")
def forward_prefetch(constructor: Constructor, argument: Argument) -> Outcome:
    """Explicit in FSDP2, and only a matter of speed."""
    if argument.constant() is False:
        return Outcome(Level.SAFE, "forward_prefetch=False is what FSDP2 does")
    return Outcome(
        Level.REVIEW,
        "forward_prefetch goes, same numbers: FSDP2 gathers ahead implicitly",
        "Where the CPU is the bottleneck, name the next units with set_modules_to_forward_prefetch.",
    )


def _looks_at_shapes(constructor: Constructor) -> bool:
    """Whether the repository sorts anything by the number of dimensions."""
    return any(call.method == "dim" for file in constructor.program.files for call in file.calls) or any(
        load[2] == "ndim" for file in constructor.program.files for load in file.loads
    )
