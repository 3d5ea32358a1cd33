"""What libraries give that know of no model of the program: what a file held, parsed arguments, and parts of these."""

from __future__ import annotations

import ast

from ..facts.facts import NOTHING
from ..flow.library import makes_no_modules
from ..flow.values import Constant, Opaque
from .arguments import given_for_parameter
from .assignments import assigned_values
from .file import File
from .program import Program

_LOADS = frozenset(
    {"torch.load", "torch.serialization.load", "torch.hub.load_state_dict_from_url", "pickle.load", "joblib.load",
     "safetensors.torch.load_file", "yaml.load", "yaml.safe_load", "omegaconf.OmegaConf.load"}
)  # fmt: skip
_DEEPEST = 4


def comes_from_file(file: File, node: ast.AST) -> bool:
    """Whether an expression is what a file held, or an entry or attribute of it: ``ckpt["ema"].float()``.

    A model that was pickled whole is plain, whoever it belonged to.
    """
    while not (values := file.values(node)):
        if isinstance(node, ast.Call):
            node = node.func
        if not isinstance(node, (ast.Attribute, ast.Subscript)):
            return False
        node = node.value
    return all(isinstance(v, Opaque) and v.name in _LOADS for v in values)


def is_given_known(program: Program, site: int) -> bool:
    """Whether each argument of a call is seen to be made, or is data of libraries."""
    flow_call = program.flow.calls[site]
    variables = [*flow_call.arguments, *(argument for _, argument in flow_call.keywords)]
    if all(program.flow.values_of(variable) for variable in variables if variable != NOTHING):
        return True
    if not program.is_written_as_call(site):
        return False
    file, call = program.call_node(site)
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg is not None)]
    return all(bool(file.values(one)) or is_data(file, one) for one in given if not isinstance(one, ast.Starred))


def is_data(file: File, node: ast.expr, depth: int = 0) -> bool:
    """Whether an expression is part of what a library gave that got no model: ``cfg["model"].width`` of a loaded ``cfg``."""
    while not (values := file.values(node)):
        if isinstance(node, ast.Call):
            node = node.func
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
            continue
        if not isinstance(node, ast.Name) or depth > _DEEPEST:
            return False
        found = [*((file, value) for value in assigned_values(file, node)), *given_for_parameter(file, node)]
        return bool(found) and all(is_data(*one, depth + 1) for one in found)
    return all(
        isinstance(v, Constant) or (isinstance(v, Opaque) and (v.name in _LOADS or makes_no_modules(v.name))) for v in values
    )
