"""Classes of modules with a `named_parameters` of their own, which may lack arguments that fully_shard asks torch's with."""

from torch import nn


def use_torchs_names(module: nn.Module) -> list[nn.Module]:
    """Let the modules in `module` whose class has its own `named_parameters` answer as torch's do, and return them."""
    own = [part for part in module.modules() if type(part).named_parameters is not nn.Module.named_parameters]
    for part in own:
        part.__dict__["named_parameters"] = nn.Module.named_parameters.__get__(part)
    return own


def use_own_names(parts: list[nn.Module]) -> None:
    """Let modules answer by their own `named_parameters` again."""
    for part in parts:
        del part.__dict__["named_parameters"]
