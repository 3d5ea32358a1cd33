"""Whether FSDP1 shows one flat parameter in place of those of a unit, as it does without ``use_orig_params=True``."""

from __future__ import annotations

import ast

from .program import Program

_GIVEN_OTHERWISE = r"\buse_orig_params\b[\"']?\]?\s*[:=]\s*(?!True\b)(?!bool\b)[^=\s]"


def shows_flat_parameters(program: Program, call: ast.Call) -> bool | None:
    """Whether a call of the wrapper asks for flat parameters; None where that is decided at run time."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if "use_orig_params" in given:
        said = given["use_orig_params"]
        return said.value is False if isinstance(said, ast.Constant) else None
    if None not in given:
        return True
    return None if program.mentions(_GIVEN_OTHERWISE) else False  # in a dictionary of arguments
