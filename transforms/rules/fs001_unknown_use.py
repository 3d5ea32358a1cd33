"""What no other rule answers for: reported, so that nothing is missed in silence."""

from __future__ import annotations

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule, rule_for
from ..sites import Site


def check(site: Site, migration: Migration) -> Outcome:
    called, bracket, _ = site.symbol.partition("(")
    if bracket and rule_for(called, "call") is RULE:
        return Outcome(Level.MANUAL, "part of its call", silent=True)
    advice = next((text for owner, text in _INSTEAD.items() if site.symbol.startswith(owner)), "")
    if site.symbol.startswith(_BLIND) and site.role != "import":
        message = f"{site.member} does not see modules of FSDP2: it finds nothing there, without an error"
        return Outcome(Level.MANUAL, message, advice, holds=True)
    return Outcome(Level.MANUAL, f"no rule migrates this use of {site.member}", advice)


_PRIVATE_MODULE = "torch.distributed.fsdp._"
_UNITS = "The units of an FSDP2 model are [module for module in model.modules() if isinstance(module, FSDPModule)]."
_STATE = "Take and load state with the functions of torch.distributed.checkpoint.state_dict."
_LOOP = "Call fully_shard on the modules that it wraps, the innermost first, and on the model last."
_INSTEAD = {
    f"{_PRIVATE_MODULE}common_utils.FSDP_": "Names of FSDP2's modules and parameters are the plain ones: what looks for this "
    "part of a name, or takes it out, may go.",
    f"{_PRIVATE_MODULE}common_utils._": "Ask isinstance(module, FSDPModule) instead, and use that class's methods.",
    f"{_PRIVATE_MODULE}traversal_utils": _UNITS,
    f"{_PRIVATE_MODULE}flat_param": "FSDP2 has no flat parameters: every parameter is a DTensor of its own name and shape, "
    "with to_local() and full_tensor().",
    f"{_PRIVATE_MODULE}unshard_param_utils": "Read with parameter.full_tensor() on all ranks; write with set_model_state_dict.",
    f"{_PRIVATE_MODULE}state_dict_utils": _STATE,
    f"{_PRIVATE_MODULE}optim_utils": _STATE,
    "torch.distributed.fsdp.wrap._": _LOOP,
}
"""What takes the place of private parts of torch, by the beginning of their names."""
_BLIND = (
    f"{_PRIVATE_MODULE}traversal_utils._",
    *(f"{_PRIVATE_MODULE}common_utils._{name}" for name in ("get_module_fsdp_state", "is_fsdp_flattened")),
)
"""Functions that look for FSDP1's state, and take a model of FSDP2 for one without any."""

_PRIVATE = """\
from torch.distributed.fsdp._traversal_utils import _get_fsdp_states

states = _get_fsdp_states(module)
"""

RULE = Rule(
    id="FS001",
    title="A use that no other rule knows",
    why=(
        "Every use of FSDP1, DDP and the old checkpoint functions is reported, also one that has no rewrite: private "
        "functions of torch above all, which FSDP2 replaced by others or does without."
    ),
    advice="Look at what it is for: FSDP2 keeps the model itself, so most helpers around the wrapper can go.",
    symbols=("*",),
    check=check,
    examples=(Example(_PRIVATE, _PRIVATE, Level.MANUAL),),
)
