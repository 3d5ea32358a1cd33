"""What a helper of the migration may do that is no mistake of the program."""

from torch import nn


def hook_a_copy(parameter):
    """A hook on a whole copy of a parameter, which lives as long as a rank works on it alone."""
    copy = nn.Parameter(parameter.detach().full_tensor())
    copy.register_hook(print)
    return copy
